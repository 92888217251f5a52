// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "192.0.2.1:7471", "-listen :7471 hello", "-listen")
}

// The board prints each text from the field that the writer chose.
func TestNotifications(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	board := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := board.Prints(`listening on (\S+)\n`)

	var texts, want []string
	for i := range fields {
		texts = append(texts, strings.Repeat(fmt.Sprint(i%10), i*fieldSize/(fields-1)))
		want = append(want, fmt.Sprintf("field %d: %s\n", i, texts[i]))
	}
	require.Len(t, texts[fields-1], fieldSize)
	writer := process.RunMain(t, append([]string{address}, texts...)...)
	require.Zero(t, writer.Wait())
	require.Equal(t, strings.Join(want, ""), board.Prints(`(?s)(field 0.*field 15: 5+\n)`))
	require.Zero(t, process.RunMain(t, address, "once more").Wait())
	board.Prints("field 0: once more\n")

	long := process.RunMain(t, address, strings.Repeat("x", fieldSize+1))
	require.Equal(t, 1, long.Wait())
	require.Contains(t, long.Stderr(), "a field holds at most 256")
	many := process.RunMain(t, append([]string{address}, make([]string, fields+1)...)...)
	require.Equal(t, 1, many.Wait())
	require.Contains(t, many.Stderr(), "the board has 16 fields")

	board.Signal(os.Interrupt)
	require.Zero(t, board.Wait())
	require.Empty(t, board.Stderr())
}
