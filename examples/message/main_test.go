package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/selfexec"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) { selfexec.Main(m, main) }

func TestWrongArguments(t *testing.T) {
	selfexec.Misused(t, "", "-x", "192.0.2.1:7471", "-listen :7471 hello", "-listen")
}

func TestMessages(t *testing.T) {
	d := testdevice.Require(t)
	server := selfexec.Start(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	most := strings.Repeat("x", maxMessage)
	var clients []*selfexec.Process
	for range 3 { // at the same time
		clients = append(clients, selfexec.Start(t, address, "hello", "world", "", most))
	}
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Equal(t, "HELLO\nWORLD\n\n"+strings.ToUpper(most)+"\n", client.Stdout())
		require.Empty(t, client.Stderr())
	}
	many := selfexec.Run(t, append([]string{address}, make([]string, 100)...)...)
	require.Zero(t, many.Wait())
	require.Equal(t, strings.Repeat("\n", 100), many.Stdout())

	long := selfexec.Run(t, address, most+"x")
	require.Equal(t, 1, long.Wait())
	require.Contains(t, long.Stderr(), "messages have up to 4096")

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())

	nobody := selfexec.Run(t, address, "hello")
	require.Equal(t, 1, nobody.Wait())
	require.Contains(t, nobody.Stderr(), "message: dial "+address+": ")
}

// Without a host, the server listens on all addresses.
func TestEveryAddress(t *testing.T) {
	d := testdevice.Require(t)
	server := selfexec.Start(t, "-listen", ":0")
	port := server.Prints(`listening on \S+:(\d+)\n`)
	for _, host := range []netip.Addr{d.IPv4, d.IPv6} {
		client := selfexec.Run(t, net.JoinHostPort(host.String(), port), "hello")
		require.Zero(t, client.Wait())
		require.Equal(t, "HELLO\n", client.Stdout())
	}
	server.Signal(syscall.SIGTERM)
	require.Zero(t, server.Wait())
}
