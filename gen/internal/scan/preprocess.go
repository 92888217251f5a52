// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// Limits for headers, so that the time, the memory and the stack that they need
// stay small. rdma-core's headers need less than half of each.
const (
	maxWork   = 150_000 // tokens that the preprocessor handles; a token counts again with each macro that it passes through
	maxTokens = 100_000 // tokens after preprocessing
	maxDepth  = 100     // nesting of brackets, and of #if
)

var tooDeep = fmt.Sprintf("brackets are nested more than %d deep", maxDepth)

// preprocess runs only the preprocessor. It finds the preprocessor's errors,
// and output that is beyond the limits, because the parser has none. It returns
// the macros that cannot be evaluated.
func (t *translation) preprocess() (bad map[string]unusable, problems []problem) {
	c := &counter{all: map[string]bool{}}
	var names []string
	end := &later{text: func() string { // text behind the headers that uses each of their macros
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
		if len(problems) == 0 {
			problems = append(problems, t.files.somewhere("%s", cmp.Or(unplaced(err), "the C preprocessor gives up")))
		}
	case c.unfinished:
		problems = append(problems, t.files.lastEnd)
	}
	t.words = c.all
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

// ofMacros handles the problems of the text behind the headers, which expands
// macros. It changes the position of each to that of the macro's definition.
func (t *translation) ofMacros(problems []problem, names []string) []problem {
	if i := slices.IndexFunc(problems, func(p problem) bool { return p.text == tooFar }); i >= 0 {
		problems = problems[i : i+1] // the others are consequences of this one
	}
	for i, p := range problems {
		if p.file == pragmaOperator { // cc does not say where it is
			problems[i] = t.files.somewhere("%s", p.text)
		}
		if n := (p.line - 2) / 3; p.file == endName && n < len(names) {
			problems[i] = t.files.macros[names[n]]
			problems[i].text = p.text
		}
	}
	return problems
}

// later is a source whose text is made when cc begins to read it.
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
	errTooMany = fmt.Errorf("the headers expand to more than %d words", maxTokens)
)

// counter receives the preprocessor's output, one word with each Write. The
// output is that of the headers, followed by the expansion of each macro and a
// semicolon.
type counter struct {
	words      []string        // words of the headers, or of the current macro
	all        map[string]bool // all words that have come so far
	tokens     int
	depth      int
	inMacros   bool
	unfinished bool // whether the headers end inside a declaration
	expansions [][]string
}

func (c *counter) Write(p []byte) (int, error) {
	word := strings.TrimSpace(string(p))
	if word == "" {
		return len(p), nil
	}
	c.words = append(c.words, word)
	c.all[word] = true
	if c.tokens++; c.tokens > maxTokens {
		return 0, errTooMany
	}
	if c.depth += bracket(word); c.depth > maxDepth {
		return 0, errTooDeep
	}
	return len(p), nil
}

// next ends the headers or a macro. cc calls it at each mark.
func (c *counter) next() {
	last := len(c.words) - 1
	if c.inMacros {
		c.expansions = append(c.expansions, c.words[:max(last, 0)]) // without the semicolon
	} else if last >= 0 {
		c.unfinished = c.depth != 0 || !strings.Contains(";}", c.words[last])
	}
	c.words, c.depth, c.inMacros = nil, 0, true
}

// bracket returns 1 for an opening bracket, -1 for a closing one, and 0 for any
// other word.
func bracket(word string) int {
	switch word {
	case "(", "[", "{":
		return 1
	case ")", "]", "}":
		return -1
	}
	return 0
}

// isExpression reports whether a macro's expansion may be an expression. With
// anything else, cc might not end the evaluation.
func isExpression(words []string) bool {
	depth := 0
	for _, word := range words {
		if depth += bracket(word); depth < 0 || strings.Contains("{};#@\\", word) {
			return false
		}
	}
	return depth == 0
}
