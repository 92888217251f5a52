// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"slices"
	"strings"

	"modernc.org/cc/v4"
)

// cc v4.31.0 parses all attributes but drops some: those behind an enumerator
// (parser.enumeratorConst), and the second one in a list of three. The scanner
// reads the dropped words from the header's text. TestDropped fails when a new
// version of cc keeps them.

// droppedWords returns the words of the header's text between two tokens, or
// nil if the text does not have the tokens at their positions.
func (s *scanner) droppedWords(from, to cc.Token) []string {
	a, b := from.Position(), to.Position()
	text, ok := s.texts[a.Filename]
	if !ok || a.Filename != b.Filename {
		return nil
	}
	start, end := offsetOf(text, a.Line, a.Column), offsetOf(text, b.Line, b.Column)
	if start < 0 || end < start+len(from.SrcStr()) || !strings.HasPrefix(text[start:], from.SrcStr()) || !strings.HasPrefix(text[end:], to.SrcStr()) {
		return nil
	}
	var out []string
	for _, word := range wordsIn(text[start+len(from.SrcStr()) : end]) {
		blank := strings.TrimSpace(word) == "" || strings.HasPrefix(word, "/*") || strings.HasPrefix(word, "//") || word[0] == '\\'
		if !blank {
			out = append(out, word)
		}
	}
	return s.unfolded(out)
}

// unfolded replaces each macro by its definition, without arguments.
func (s *scanner) unfolded(all []string) []string {
	var out []string
	for i := 0; i < len(all); i++ {
		m := s.macroNamed[all[i]]
		if m == nil {
			out = append(out, all[i])
			continue
		}
		for _, t := range m.ReplacementList() {
			out = append(out, t.SrcStr())
		}
		if m.IsFnLike && i+1 < len(all) && all[i+1] == "(" { // skip the macro's arguments, which are texts at best
			for depth := 0; i+1 < len(all); {
				i++
				if depth += bracket(all[i]); depth == 0 {
					break
				}
			}
		}
	}
	return out
}

// offsetOf returns the offset of a line and column in a text, or -1 if the text
// does not have it.
func offsetOf(text string, line, column int) int {
	at := 0
	for ; line > 1; line-- {
		n := strings.IndexByte(text[at:], '\n')
		if n < 0 {
			return -1
		}
		at += n + 1
	}
	if at += column - 1; at > len(text) {
		return -1
	}
	return at
}

// areHarmless reports whether the words are attributes that are all harmless.
func areHarmless(all []string) bool {
	if len(all) == 0 {
		return false
	}
	if all[0] == "," { // the words continue a list of attributes
		return namesHarmless(all[1:])
	}
	for len(all) > 0 {
		if strings.Trim(all[0], "_") != "attribute" || len(all) < 6 || all[1] != "(" || all[2] != "(" {
			return false
		}
		end := skipBrackets(all, 1)
		if end < 0 || all[end-1] != ")" {
			return false
		}
		if !namesHarmless(all[3 : end-1]) {
			return false
		}
		all = all[end+1:]
	}
	return true
}

// namesHarmless reports whether a list of attributes has only harmless ones.
func namesHarmless(list []string) bool {
	depth, first := 0, true
	for _, word := range list {
		depth += bracket(word)
		if depth == 0 && word == "," {
			first = true
			continue
		}
		if first && !slices.Contains(harmless, strings.Trim(word, "_")) {
			return false
		}
		first = false
	}
	return depth == 0
}

// skipBrackets returns the index of the bracket that closes the one at index i,
// or -1.
func skipBrackets(all []string, i int) int {
	depth := 0
	for ; i < len(all); i++ {
		if depth += bracket(all[i]); depth == 0 {
			return i
		}
	}
	return -1
}
