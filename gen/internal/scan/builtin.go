// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"regexp"
	"strings"

	"modernc.org/cc/v4"
)

// builtins holds cc's own declarations, line by line.
var builtins = splitBuiltins()

// builtin is a line of cc's own declarations. If it declares a function, it has
// the function's name without builtinPrefix, because a header may use the
// function without it.
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

// builtinsFor returns cc's own declarations, without the functions that are not
// in words. Parsing all 180 of them would take longer than parsing a small
// header.
func builtinsFor(words map[string]bool) string {
	var text strings.Builder
	for _, b := range builtins {
		if b.function == "" || words[b.function] || words[builtinPrefix+b.function] {
			text.WriteString(b.line)
		}
	}
	return text.String()
}
