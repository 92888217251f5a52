// SPDX-License-Identifier: Apache-2.0

package main

import (
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

func TestStream(t *testing.T) {
	d := testdevice.Require(t)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	long := strings.Repeat("long ", 20_000) // more than a window of the rsocket's, and of gRPC's
	var clients []*process.Process
	for range 3 { // at the same time
		clients = append(clients, process.StartMain(t, address, "hello", "", long, "world", long))
	}
	upper := strings.ToUpper(long)
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Equal(t, strings.Join([]string{"HELLO", "", upper, "WORLD", upper, ""}, "\n"), client.Stdout())
		require.Empty(t, client.Stderr())
	}
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())

	nobody := process.RunMain(t, address, "hello")
	require.Equal(t, 1, nobody.Wait())
	require.Contains(t, nobody.Stderr(), "code = Unavailable")
}
