// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
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

func TestMessages(t *testing.T) {
	d := testdevice.Require(t)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	most := strings.Repeat("x", maxMessage)
	var clients []*process.Process
	for range 3 { // at the same time
		clients = append(clients, process.StartMain(t, address, "hello", "world", "", most))
	}
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Equal(t, "HELLO\nWORLD\n\n"+strings.ToUpper(most)+"\n", client.Stdout())
		require.Empty(t, client.Stderr())
	}
	many := process.RunMain(t, append([]string{address}, make([]string, 100)...)...)
	require.Zero(t, many.Wait())
	require.Equal(t, strings.Repeat("\n", 100), many.Stdout())

	long := process.RunMain(t, address, most+"x")
	require.Equal(t, 1, long.Wait())
	require.Contains(t, long.Stderr(), "a message holds at most 4096")

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())

	nobody := process.RunMain(t, address, "hello")
	require.Equal(t, 1, nobody.Wait())
	require.Contains(t, nobody.Stderr(), "message: dial "+address+": ")
}

// Without a host, the server listens on all addresses.
func TestEveryAddress(t *testing.T) {
	d := testdevice.Require(t)
	server := process.StartMain(t, "-listen", ":0")
	port := server.Prints(`listening on \S+:(\d+)\n`)
	for _, host := range []netip.Addr{d.IPv4, d.IPv6} {
		client := process.RunMain(t, net.JoinHostPort(host.String(), port), "hello")
		require.Zero(t, client.Wait())
		require.Equal(t, "HELLO\n", client.Stdout())
	}
	server.Signal(syscall.SIGTERM)
	require.Zero(t, server.Wait())
}
