// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pragmaText is what follows _Pragma.
var pragmaText = regexp.MustCompile(`^\s*\(\s*"((?:\\.|[^"\\\n])*)"`)

// directives has the directives that cc obeys, and #warning, which it may
// ignore. cc ignores unknown ones, such as misspelt ones. It obeys #line, but a
// declaration would then seem to belong to another header.
var directives = []string{
	"if", "ifdef", "ifndef", "elif", "else", "endif", "include", "define", "undef", "error", "warning", "pragma",
}

// text is the state of a check.
type text struct {
	*files
	name         string
	line, column int
	lineStart    bool   // only blanks and comments since the line began
	directive    string // of this line; # until its name was seen
	defining     bool   // the next word is the name of a macro
	conditions   int    // of #if that are open
	brackets     int    // that are open, in this directive or outside of directives
	outside      int    // brackets, while in a directive
	before       string // word
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
		t.reject(t.problem("a NUL byte"))
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

// backslash rejects those that join no lines, or join them in a way that cc
// does not see.
func (t *text) backslash(word, rest string) {
	switch {
	case word == `\`:
		t.reject(t.problem("a stray backslash"))
	case rest == "":
		t.reject(t.problem("a backslash ends the file"))
	case strings.HasPrefix(t.before, `\`):
		t.reject(t.problem("a line with a backslash alone"))
	}
}

// named takes the name of a directive.
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
		// One that is not written as a text will be seen when it is obeyed.
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

// tooDeep notes where the text has too many brackets. In a directive that is
// a problem at once. Elsewhere the text alone does not tell, because all
// branches of an #if are counted; see counter.
func (t *text) tooDeep() {
	p := t.problem("%s", tooDeep)
	if t.directive != "" {
		t.reject(p)
	} else if t.deep == nil {
		t.deep = &p
	}
}
