// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"

	"modernc.org/cc/v4"
)

// brackets follows the headers when only the parser runs. After a syntax error,
// cc continues. In some places it reads until it finds a certain bracket or
// comma, and does not stop at the end of the input. So brackets has more
// closing brackets than can be open, and ends with a mark, at which the parser
// is stopped.
var brackets = strings.Repeat(") ] , } ; { } ;\n", 2*maxDepth) + mark

// syntax parses the headers and returns the first syntax error. It leaves out
// the others, which may follow from the first.
func (t *translation) syntax() (problems []problem) {
	stopped := false
	defer func() {
		if p := recover(); stopped {
			problems = []problem{t.files.somewhere("a syntax error, after which the C parser does not end")}
		} else if p != nil {
			panic(p)
		}
	}()
	_, err := cc.Parse(t.config(0, func() { stopped = true; panic(mark) }), t.sources(brackets))
	for _, p := range problemsOf(err) {
		if p.file != endName { // brackets always causes errors
			return []problem{p}
		}
	}
	return nil
}
