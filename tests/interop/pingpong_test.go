// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// C's rping takes sizes from 23 to 65535, whatever its message says.
const minSize, maxSize = 23, 65535

func TestPingPong(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{{theirs, ours}, {ours, theirs}} {
		for _, with := range []struct {
			ip   netip.Addr
			size int
		}{{d.IPv4, 64}, {d.IPv4, 4096}, {d.IPv4, maxSize}, {d.IPv6, 64}, {d.IPv6, maxSize}} {
			t.Run(fmt.Sprintf("%s server %s client/%v/%d", pair.server.name, pair.client.name, with.ip, with.size), func(t *testing.T) {
				args := []string{"-a", with.ip.String(), "-S", fmt.Sprint(with.size), "-V", "-C", "100"}
				server := pair.server.serve(t, args...)
				client := pair.client.run(t, append([]string{"-c"}, args...)...)
				require.Zero(t, client.Wait())
				require.Zero(t, server.Wait())
				require.Empty(t, client.Stdout())
				require.Contains(t, server.Stderr(), "server DISCONNECT EVENT...\n")
			})
		}
	}
}

// The queue pairs of one end or of both are made by the program.
func TestPingPongManualQP(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct {
		server     program
		serverArgs string
		client     program
		clientArgs string
	}{
		{theirs, "", ours, "-q"},
		{theirs, "-q", ours, "-q"},
		{ours, "-q", theirs, ""},
		{ours, "-q", theirs, "-q"},
		{ours, "-q", ours, "-q"},
	} {
		name := fmt.Sprintf("%s server %s %s client %s", pair.server.name, pair.serverArgs, pair.client.name, pair.clientArgs)
		t.Run(name, func(t *testing.T) {
			args := []string{"-a", d.IPv4.String(), "-V", "-C", "20", "-S", fmt.Sprint(minSize)}
			server := pair.server.serve(t, append(args, strings.Fields(pair.serverArgs)...)...)
			client := pair.client.run(t, append(append([]string{"-c"}, args...), strings.Fields(pair.clientArgs)...)...)
			require.Zero(t, client.Wait())
			require.Zero(t, server.Wait())
		})
	}
}

// Both programs print the same pings.
func TestPrintedPings(t *testing.T) {
	d := needDevice(t)
	var printed []string
	for _, pair := range []struct{ server, client program }{{theirs, ours}, {ours, theirs}} {
		args := []string{"-a", d.IPv4.String(), "-v", "-C", "60", "-S", "300"} // more pings than letters
		server := pair.server.serve(t, args...)
		client := pair.client.run(t, append([]string{"-c"}, args...)...)
		require.Zero(t, client.Wait())
		require.Zero(t, server.Wait())
		require.Equal(t, strings.ReplaceAll(server.Stdout(), "server ping data", "ping data"), client.Stdout())
		printed = append(printed, client.Stdout())
	}
	require.Equal(t, printed[0], printed[1])
	require.Contains(t, printed[0], "ping data: rdma-ping-59: BCDE")
}

func TestPersistentServer(t *testing.T) {
	const clients = 8
	d := needDevice(t)
	server := ours.serve(t, "-P")
	for round := range 2 { // at once, and again later
		var all []*process.Process
		for range clients {
			all = append(all, theirs.start(t, "-c", "-a", d.IPv4.String(), "-V", "-C", "20"))
		}
		for _, client := range all {
			require.Zero(t, client.Wait())
		}
		n := strings.Count(server.Stderr(), "server DISCONNECT EVENT...\n")
		require.LessOrEqual(t, n, clients*(round+1))
	}
	server.Eventually("all disconnected", func() bool {
		return strings.Count(server.Stderr(), "server DISCONNECT EVENT...\n") == 2*clients
	})
	require.Equal(t, 2*clients, strings.Count(server.Stderr(), "\n"), "nothing else to report")
	interrupt(server)
	require.Zero(t, server.Wait())
}
