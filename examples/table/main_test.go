// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
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
	process.Misused(t, "", "-x", "192.0.2.1:7471", "-listen :7471 1", "-listen")
}

func TestRows(t *testing.T) {
	d := testdevice.Require(t)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	var clients []*process.Process
	for range 3 { // at the same time
		clients = append(clients, process.StartMain(t, address, "0", "2", "99999"))
	}
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Equal(t, "the square root of 0 is 0.000000\nthe square root of 2 is 1.414214\n"+
			"the square root of 99999 is 316.226185\n", client.Stdout())
		require.Empty(t, client.Stderr())
	}
	for row, text := range map[string]string{
		"100000": "row 100000: the table has 100000", "-1": `row "-1"`, "two": `row "two"`,
	} {
		client := process.RunMain(t, "--", address, row)
		require.Equal(t, 1, client.Wait())
		require.Contains(t, client.Stderr(), text)
	}
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())
}

// The table is on one device.
func TestEveryAddress(t *testing.T) {
	testdevice.Require(t)
	server := process.RunMain(t, "-listen", ":0")
	require.Equal(t, 1, server.Wait())
	require.Contains(t, server.Stderr(), "listen on a device's address")
}
