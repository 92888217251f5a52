// SPDX-License-Identifier: Apache-2.0

package program

import (
	"strings"
	"unicode"
)

// Printable returns a text of a stranger's with U+FFFD in place of all that is
// not printable, such as a new line, or what tells a terminal to do something.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
