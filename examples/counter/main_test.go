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
	process.Misused(t, "", "-x", "-n -1 192.0.2.1:7471", "192.0.2.1:7471 more", "-listen :7471 192.0.2.1:7471")
}

// Clients that take tickets at the same time get each number once.
func TestTickets(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Atomics)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	const each = 200
	var clients []*process.Process
	for range 4 {
		clients = append(clients, process.StartMain(t, "-n", fmt.Sprint(each), address))
	}
	taken := map[string]bool{}
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Empty(t, client.Stderr())
		numbers := strings.Fields(client.Stdout())
		require.Len(t, numbers, each)
		for _, number := range numbers {
			require.False(t, taken[number], "twice: %s", number)
			taken[number] = true
		}
	}
	for i := range len(clients) * each {
		require.True(t, taken[fmt.Sprint(i)], "no client has %d", i)
	}
	one := process.RunMain(t, address)
	require.Zero(t, one.Wait())
	require.Equal(t, "800\n", one.Stdout())
	none := process.RunMain(t, "-n", "0", address)
	require.Zero(t, none.Wait())
	require.Empty(t, none.Stdout())

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	server.Prints("\ntickets taken: 801\n")
	require.Empty(t, server.Stderr())
}
