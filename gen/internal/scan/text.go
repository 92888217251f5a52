// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pragmaText matches the text in brackets that follows _Pragma.
var pragmaText = regexp.MustCompile(`^\s*\(\s*"((?:\\.|[^"\\\n])*)"`)

// directives lists the allowed directives: those that cc obeys, and #warning,
// which it may ignore. Others are rejected, because cc ignores misspelt ones:
// see TestCCTakes.
// #line is not allowed, because with it a declaration could seem to be in
// another header.
var directives = []string{
	"if", "ifdef", "ifndef", "elif", "else", "endif", "include", "define", "undef", "error", "warning", "pragma",
}

// text is the state of files.check.
type text struct {
	*files
	name         string
	line, column int
	lineStart    bool   // whether the line has had only blanks and comments
	directive    string // name of the line's directive; # before the name has come; empty in other lines
	defining     bool   // whether the next word is the name of a macro
	conditions   int    // number of #if without an #endif
	brackets     int    // number of open brackets, in this directive or outside directives
	outside      int    // in a directive: number of open brackets before it
	before       string // previous word
}

// check rejects errors that cc does not notice, and records the macros. It
// returns the position of the file's end.
func (f *files) check(name, content string) problem {
	t := &text{files: f, name: name, line: 1, column: 1, lineStart: true}
	for rest := content; rest != ""; {
		word := firstWord(rest)
		rest = rest[len(word):]
		t.word(word, rest)
		t.before = word
		if n := strings.Count(word, "\n"); n > 0 {
			t.line += n
			t.column = len(word) - strings.LastIndex(word, "\n")
		} else {
			t.column += len(word)
		}
	}
	return t.problem("the headers end in the middle of a declaration")
}

func (t *text) problem(format string, args ...any) problem {
	return problem{t.name, t.line, t.column, fmt.Sprintf(format, args...)}
}

func (t *text) word(word, rest string) {
	if strings.Contains(word, "\x00") {
		t.reject(t.problem("the header contains a NUL byte"))
	}
	switch {
	case word == "\n":
		if t.directive != "" {
			t.brackets = t.outside
		}
		t.lineStart, t.directive, t.defining = true, "", false
	case strings.TrimSpace(word) == "" || strings.HasPrefix(word, "/*") || strings.HasPrefix(word, "//"):
	case word[0] == '\\':
		t.backslash(word, rest)
	case word == "#" && t.lineStart:
		t.directive, t.outside, t.brackets, t.lineStart = "#", t.brackets, 0, false
	case t.directive == "#":
		t.named(word)
	default:
		t.lineStart = false
		t.inLine(word, rest)
	}
}

// backslash rejects a backslash that joins no lines, or that cc does not
// recognise as joining lines.
func (t *text) backslash(word, rest string) {
	switch {
	case word == `\`:
		t.reject(t.problem("a stray backslash"))
	case rest == "":
		t.reject(t.problem("a backslash ends the file"))
	case strings.HasPrefix(t.before, `\`):
		t.reject(t.problem("a line has a backslash and nothing else"))
	}
}

// named handles the name of a directive.
func (t *text) named(word string) {
	t.directive, t.defining = word, word == "define"
	switch {
	case !slices.Contains(directives, word):
		t.reject(t.problem("#%s cannot be represented", word))
	case strings.HasPrefix(word, "if"):
		if t.conditions++; t.conditions > maxDepth {
			t.reject(t.problem("#if is nested more than %d deep", maxDepth))
		}
	case word == "endif":
		t.conditions--
	}
}

func (t *text) inLine(word, rest string) {
	switch {
	case word == "_Pragma":
		// If the argument is not written as a text, pragmas checks it.
		if literal := pragmaText.FindStringSubmatch(rest); literal != nil && !isHarmless(strings.Fields(literal[1])) {
			t.reject(t.problem("_Pragma(\"%s\") cannot be represented", literal[1]))
		}
	case t.defining:
		t.defining = false
		if !strings.HasPrefix(rest, "(") {
			t.macros[word] = t.problem("")
		}
	case strings.Contains("([{", word):
		if t.brackets++; t.brackets == maxDepth+1 {
			t.tooDeep()
		}
	case strings.Contains(")]}", word):
		t.brackets--
	}
}

// tooDeep records that the text has too many open brackets. In a directive,
// that is a problem. Outside directives, it may not be one, because the count
// includes all branches of an #if; see counter.
func (t *text) tooDeep() {
	p := t.problem("%s", tooDeep)
	if t.directive != "" {
		t.reject(p)
	} else if t.deep == nil {
		t.deep = &p
	}
}
