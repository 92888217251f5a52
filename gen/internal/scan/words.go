// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"
	"unicode/utf8"
)

// wordsIn splits a header as C does, as far as it matters here: a comment, a
// quoted text or blanks in a row are one word.
func wordsIn(text string) []string {
	var out []string
	for text != "" {
		word := firstWord(text)
		out = append(out, word)
		text = text[len(word):]
	}
	return out
}

// firstWord returns the word that a text, which is not empty, begins with.
func firstWord(text string) string {
	n := 1
	switch c := text[0]; {
	case strings.HasPrefix(text, "/*"):
		if n = strings.Index(text[2:], "*/"); n < 0 {
			return text
		}
		n += len("/**/")
	case strings.HasPrefix(text, "//"):
		n = lineComment(text)
	case c == '"' || c == '\'':
		n = quoted(text)
	case c == '\\':
		n += lineEnd(text[1:])
	case isBlank(c):
		n = run(text, isBlank)
	case isLetter(c) || c == '$':
		n = run(text, func(c byte) bool { return isLetter(c) || isDigit(c) || c == '$' })
	case isDigit(c) || c == '.' && len(text) > 1 && isDigit(text[1]):
		n = run(text, func(c byte) bool { return isLetter(c) || isDigit(c) || c == '.' })
	default:
		_, n = utf8.DecodeRuneInString(text)
	}
	return text[:n]
}

func isBlank(c byte) bool  { return strings.IndexByte(" \t\r\f\v", c) >= 0 }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

// run returns the number of bytes at the beginning of text for which belongs
// returns true.
func run(text string, belongs func(byte) bool) int {
	n := 0
	for n < len(text) && belongs(text[n]) {
		n++
	}
	return n
}

// lineEnd returns the length of the line end with which a text begins, or 0.
func lineEnd(text string) int {
	switch {
	case strings.HasPrefix(text, "\n"):
		return 1
	case strings.HasPrefix(text, "\r\n"):
		return 2
	}
	return 0
}

// lineComment returns the length of a // comment. The comment continues on the
// next line if the line ends with a backslash.
func lineComment(text string) int {
	n := len("//")
	for n < len(text) && text[n] != '\n' {
		if n++; text[n-1] == '\\' {
			n += lineEnd(text[n:])
		}
	}
	return n
}

// quoted returns the length of a string or character constant. Without a
// closing quote, the constant ends with its line.
func quoted(text string) int {
	for n := 1; n < len(text); n++ {
		switch text[n] {
		case text[0]:
			return n + 1
		case '\n':
			return n
		case '\\':
			if n+1 == len(text) {
				return n
			}
			n++
		}
	}
	return len(text)
}
