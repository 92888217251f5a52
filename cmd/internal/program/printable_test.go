// SPDX-License-Identifier: Apache-2.0

package program

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"node 7: größer, 日本":    "node 7: größer, 日本",
		"\x1b[2J\a\n\t\r\x00":   "\ufffd[2J\ufffd\ufffd\ufffd\ufffd\ufffd",
		"\u009b2J, \u202eabc":   "\ufffd2J, \ufffdabc",
		"not UTF-8: \x9b, \xff": "not UTF-8: \ufffd, \ufffd",
	} {
		require.Equal(t, want, Printable(text))
	}
}
