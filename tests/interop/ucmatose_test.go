// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourUcmatose   = program{"Go", true, "ucmatose"}
	theirUcmatose = program{"C", false, "ucmatose"}
)

// completed is how either program ends when all went well.
const completed = "test complete\nreturn status 0\n"

// Ours works with C's in both directions, and with itself.
func TestUcmatose(t *testing.T) {
	d := needDevice(t)
	v4, v6 := d.IPv4.String(), d.IPv6.String()
	mixed := [][2]program{{ourUcmatose, theirUcmatose}, {theirUcmatose, ourUcmatose}}
	all := append(mixed, [2]program{ourUcmatose, ourUcmatose})
	for _, tt := range []struct {
		name                 string
		pairs                [][2]program
		host, server, client string
	}{
		{"defaults", all, v4, "", ""},
		{"addresses of both ends", mixed, v4, "-f ip -b " + v4, "-f ip -b " + v4},
		{"IPv6", mixed, v6, "-f ipv6 -c 3 -b " + v6, "-f ipv6 -c 3 -b " + v6},
		{"port", mixed, v4, "-p 7481", "-p 7481"},
		{"port space", mixed, v4, "-P ib", "-P ib"},
		{"no messages", mixed, v4, "-C 0 -c 3", "-C 0 -c 3"},
		{"no size", mixed, v4, "-S 0", "-S 0"},
		{"one small message", mixed, v4, "-C 1 -S 1", "-C 1 -S 1"},
		{"many messages", mixed, v4, "-C 200 -S 17 -c 3", "-C 200 -S 17 -c 3"},
		{"large messages", mixed, v4, "-C 5 -S 100000 -c 3", "-C 5 -S 100000 -c 3"},
		{"options", mixed, v4, "-a 18", "-t 32 -a 18"},
		{"many connections", all, v4, "-c 40 -C 3", "-c 40 -C 3"},
		{"many connections that migrate", all, v4, "-m -c 40 -C 3", "-m -c 40 -C 3"},
		{"the server migrates", mixed, v6, "-m -c 10 -b " + v6, "-c 10"},
		{"the client migrates", mixed, v6, "-c 10 -b " + v6, "-m -c 10"},
	} {
		for _, pair := range tt.pairs {
			t.Run(fmt.Sprintf("%s/%s server %s client", tt.name, pair[0].name, pair[1].name), func(t *testing.T) {
				server := pair[0].start(t, strings.Fields(tt.server)...)
				listens(t, server)
				client := pair[1].run(t, append(strings.Fields(tt.client), "-s", tt.host)...)
				require.Zero(t, client.Wait())
				require.Zero(t, server.Wait())
				for _, r := range []*process.Process{server, client} {
					require.True(t, strings.HasSuffix(r.Stdout(), completed), r.Stdout())
					require.Empty(t, r.Stderr())
				}
			})
		}
	}
}

func TestUcmatoseFails(t *testing.T) {
	d := needDevice(t)
	v4 := d.IPv4.String()
	for name, args := range map[string]string{
		"no program listens":      "-s " + v4 + " -p 7482 -c 3",
		"no such address":         "-s 198.51.100.77",
		"a name, not an address":  "-s localhost -f ip",
		"not a local address":     "-b 198.51.100.77",
		"a GID, which RoCE lacks": "-f gid -s " + d.GID.String(),
	} {
		t.Run(name, func(t *testing.T) {
			for _, p := range []program{ourUcmatose, theirUcmatose} {
				r := p.run(t, strings.Fields(args)...)
				require.NotZero(t, r.Wait(), p.name)
				require.NotContains(t, r.Stdout(), completed)
				t.Logf("%s: %s%s", p.name, r.Stdout(), r.Stderr())
			}
		})
	}
}

// A peer that is killed while a message of its is outstanding ends ours.
func TestUcmatosePeerIsKilled(t *testing.T) {
	d := needDevice(t)
	their := theirUcmatose.start(t, "-c", "3", "-C", "2")
	listens(t, their)
	our := ourUcmatose.start(t, "-c", "3", "-C", "3", "-s", d.IPv4.String())
	// The kernel says CONNECT of IDs that are connecting.
	our.Eventually("all are connected", func() bool {
		return strings.Count(strings.Join(resources(t, "qp"), "\n"), "type RC state RTS") == 2*3
	})
	their.Signal(syscall.SIGKILL)
	require.Equal(t, 1, our.Wait())
	require.Equal(t, "ucmatose: disconnected\n", our.Stderr())
	require.True(t, strings.HasSuffix(our.Stdout(), "test complete\nreturn status 1\n"), our.Stdout())
}

// What the peer has no receive for is an error that says so.
func TestUcmatoseCountsDiffer(t *testing.T) {
	d := needDevice(t)
	server := ourUcmatose.start(t, "-c", "3", "-C", "3")
	listens(t, server)
	theirUcmatose.run(t, "-c", "3", "-C", "2", "-s", d.IPv4.String())
	require.Equal(t, 1, server.Wait())
	require.Contains(t, server.Stderr(), "the peer had no receive posted")
}

func TestUcmatoseInterrupted(t *testing.T) {
	d := needDevice(t)
	server := ourUcmatose.start(t, "-b", d.IPv4.String())
	listens(t, server)
	interrupt(server)
	require.Equal(t, 130, server.Wait())
	require.Equal(t, "ucmatose: interrupted\n", server.Stderr())
}
