// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// Limits of what the headers come to, so that neither time nor memory nor the
// stack runs away. The real ones need less than half of each.
const (
	maxWork   = 150_000 // of the preprocessor: tokens, counted again with every macro that they pass through
	maxTokens = 100_000 // after preprocessing
	maxDepth  = 100     // of brackets, and of #if
)

var tooDeep = fmt.Sprintf("brackets are nested more than %d deep", maxDepth)

// preprocess runs the preprocessor alone: for its errors, and to see that the
// parser, which knows no limits, can cope with what comes out. It returns the
// macros that cannot be evaluated.
func (t *translation) preprocess() (bad map[string]unusable, problems []problem) {
	c := new(counter)
	var names []string
	end := &later{text: func() string { // which comes after the headers, and uses each of their macros
		names = slices.Sorted(maps.Keys(t.files.macros))
		return mark + strings.Join(append(names, ""), "\n;\n"+mark)
	}}
	err := cc.Preprocess(t.config(maxWork, c.next), t.sources(end), c)
	switch {
	case len(t.files.problems) > 0:
		problems = t.files.problems
	case errors.Is(err, errTooDeep) && t.files.deep != nil:
		problems = append(problems, *t.files.deep)
	case errors.Is(err, errTooDeep), errors.Is(err, errTooMany):
		problems = append(problems, t.files.somewhere("%v", err))
	case err != nil:
		problems = t.ofMacros(problemsOf(err), names)
	case c.unfinished:
		problems = append(problems, t.files.lastEnd)
	}
	bad = map[string]unusable{}
	t.expansions = map[string][]string{}
	for i, words := range c.expansions {
		t.expansions[names[i]] = words
		if !isExpression(words) {
			bad[names[i]] = unusable{t.files.macros[names[i]], words}
		}
	}
	return bad, problems
}

// unusable is a macro that cannot be evaluated: where it is defined, and what
// it expands to.
type unusable struct {
	at    problem
	words []string
}

// ofMacros moves the problems that are in the expansion of a macro behind the
// headers to where the macro is defined.
func (t *translation) ofMacros(problems []problem, names []string) []problem {
	if i := slices.IndexFunc(problems, func(p problem) bool { return p.text == tooFar }); i >= 0 {
		problems = problems[i : i+1] // others are its consequences
	}
	for i, p := range problems {
		if p.file == pragmaOperator { // of which cc does not tell where it is
			problems[i] = t.files.somewhere("%s", p.text)
		}
		if n := (p.line - 2) / 3; p.file == endName && n < len(names) {
			problems[i] = t.files.macros[names[n]]
			problems[i].text = p.text
		}
	}
	if len(problems) == 0 {
		problems = append(problems, t.files.somewhere("the C preprocessor gives up"))
	}
	return problems
}

// later is a source whose text is made when cc comes to it.
type later struct {
	text func() string
	rest io.Reader
}

func (l *later) Read(p []byte) (int, error) {
	if l.rest == nil {
		l.rest = strings.NewReader(l.text())
	}
	return l.rest.Read(p)
}

var (
	errTooDeep = errors.New(tooDeep)
	errTooMany = fmt.Errorf("the headers come to more than %d words", maxTokens)
)

// counter receives the preprocessor's output, which is one word with each
// Write: first the headers, then each macro, expanded, and a semicolon.
type counter struct {
	words      []string // of the headers or of this macro
	tokens     int
	depth      int
	inMacros   bool
	unfinished bool // the headers end inside of a declaration
	expansions [][]string
}

func (c *counter) Write(p []byte) (int, error) {
	word := strings.TrimSpace(string(p))
	if word == "" {
		return len(p), nil
	}
	c.words = append(c.words, word)
	if c.tokens++; c.tokens > maxTokens {
		return 0, errTooMany
	}
	if c.depth += bracket(word); c.depth > maxDepth {
		return 0, errTooDeep
	}
	return len(p), nil
}

// next is called at each mark.
func (c *counter) next() {
	last := len(c.words) - 1
	if c.inMacros {
		c.expansions = append(c.expansions, c.words[:max(last, 0)]) // without the semicolon
	} else if last >= 0 {
		c.unfinished = c.depth != 0 || !strings.Contains(";}", c.words[last])
	}
	c.words, c.depth, c.inMacros = nil, 0, true
}

// bracket returns 1 for one that opens and -1 for one that closes.
func bracket(word string) int {
	switch word {
	case "(", "[", "{":
		return 1
	case ")", "]", "}":
		return -1
	}
	return 0
}

// isExpression reports whether a macro's expansion may be an expression. In
// evaluating anything else, cc could lose itself.
func isExpression(words []string) bool {
	depth := 0
	for _, word := range words {
		if depth += bracket(word); depth < 0 || strings.Contains("{};#@\\", word) {
			return false
		}
	}
	return depth == 0
}
