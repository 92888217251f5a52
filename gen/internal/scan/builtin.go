// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"regexp"
	"strings"

	"modernc.org/cc/v4"
)

// builtins are the lines of cc's own declarations.
var builtins = splitBuiltins()

// builtin is a line, with the name of the function that it declares. A header
// may use the function without the prefix.
type builtin struct{ line, function string }

const builtinPrefix = "__builtin_"

var builtinFunction = regexp.MustCompile(`^[\w *]+?\b(?:` + builtinPrefix + `)?(\w+) ?\(.*\);$`)

func splitBuiltins() (all []builtin) {
	for line := range strings.Lines(cc.Builtin) {
		b := builtin{line: line}
		if m := builtinFunction.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			b.function = m[1]
		}
		all = append(all, b)
	}
	return all
}

// builtinsFor returns what cc declares itself, without the functions that are
// not among the words: to parse 180 of them takes longer than a small header.
func builtinsFor(words map[string]bool) string {
	var text strings.Builder
	for _, b := range builtins {
		if b.function == "" || words[b.function] || words[builtinPrefix+b.function] {
			text.WriteString(b.line)
		}
	}
	return text.String()
}
