// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"

	"modernc.org/cc/v4"
)

// cc goes on after a syntax error, and in places reads on until it meets a
// certain bracket or comma: at the end of the input, for ever. So what follows
// the headers here has more brackets than can be open, and no end: at the mark
// behind them the parser is stopped.
var brackets = strings.Repeat(") ] , } ; { } ;\n", 2*maxDepth) + mark

// syntax parses the headers for the first syntax error alone, as all others
// may be its consequences.
func (t *translation) syntax() (problems []problem) {
	stopped := false
	defer func() {
		if p := recover(); stopped {
			problems = []problem{t.files.somewhere("a syntax error, at which the C parser loses itself")}
		} else if p != nil {
			panic(p)
		}
	}()
	_, err := cc.Parse(t.config(0, func() { stopped = true; panic(mark) }), t.sources(brackets))
	for _, p := range problemsOf(err) {
		if p.file != endName { // where there must be errors
			return []problem{p}
		}
	}
	return nil
}
