// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourUdaddy   = program{"Go", true, "udaddy"}
	theirUdaddy = program{"C", false, "udaddy"}
)

func TestUdaddy(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{{theirUdaddy, ourUdaddy}, {ourUdaddy, theirUdaddy}} {
		for _, with := range []struct {
			ip                       netip.Addr
			connections, count, size int
			more                     []string
		}{
			{d.IPv4, 1, 10, 100, nil},
			{d.IPv6, 1, 10, 100, []string{"-f", "ipv6"}},
			{d.IPv4, 3, 5, 1024, []string{"-f", "ip", "-P", "udp"}},
			{d.IPv6, 2, 40, 512, []string{"-t", "0x20"}},
			{d.IPv4, 1, 1, 1, []string{"-p", "0x111"}},
			{d.IPv4, 2, 0, 100, nil},
			{d.IPv4, 2, 10, 0, nil},
		} {
			name := fmt.Sprintf("%s server, %s client, %v, %d*%d messages of %d bytes",
				pair.server.name, pair.client.name, with.ip, with.connections, with.count, with.size)
			t.Run(name, func(t *testing.T) {
				args := append([]string{
					"-b", with.ip.String(), "-c", fmt.Sprint(with.connections),
					"-C", fmt.Sprint(with.count), "-S", fmt.Sprint(with.size),
				}, with.more...)
				server := pair.server.start(t, args...)
				listens(t, server)
				client := pair.client.run(t, append(args, "-s", with.ip.String())...)
				for _, r := range []*process.Process{client, server} {
					require.Zero(t, r.Wait())
					require.Contains(t, r.Stdout(), "return status 0")
					if with.count*with.size > 0 {
						require.Contains(t, r.Stdout(), "data transfers complete")
					}
				}
			})
		}
	}
}

// Without -b both listen on every address of IPv4.
func TestUdaddyListensEverywhere(t *testing.T) {
	d := needDevice(t)
	for _, pair := range []struct{ server, client program }{{theirUdaddy, ourUdaddy}, {ourUdaddy, theirUdaddy}} {
		server := pair.server.start(t)
		listens(t, server)
		require.Zero(t, pair.client.run(t, "-s", d.IPv4.String()).Wait())
		require.Zero(t, server.Wait())
	}
}

// A server refuses a client when it cannot send messages of its size.
func TestUdaddyIsRejected(t *testing.T) {
	d := needDevice(t)
	ip := d.IPv4.String()
	server := ourUdaddy.start(t, "-b", ip, "-S", "4096")
	listens(t, server)
	client := theirUdaddy.run(t, "-s", ip)
	require.NotZero(t, client.Wait())
	require.Contains(t, client.Stdout(), "RDMA_CM_EVENT_UNREACHABLE, error: 2")
	require.Equal(t, 1, server.Wait())
	require.Contains(t, server.Stderr(), "messages of 4096 bytes: the port's MTU allows 1024: message too long\n")

	server = theirUdaddy.start(t, "-b", ip, "-S", "4096")
	listens(t, server)
	client = ourUdaddy.run(t, "-s", ip)
	require.Equal(t, 1, client.Wait())
	require.Contains(t, client.Stderr(), "udaddy: dial 192.0.2.1:7174: connection rejected: ")
	require.NotContains(t, client.Stderr(), "no program listens")
	server.Wait()
}

func TestUdaddyFails(t *testing.T) {
	d := needDevice(t)
	ip := d.IPv4.String()
	for _, tt := range []struct {
		args []string
		text string
	}{
		{[]string{"-s", ip}, "udaddy: dial 192.0.2.1:7174: connection rejected: no program listens on the port\n"},
		{[]string{"-s", ip, "-S", "1025"}, "messages of 1025 bytes: the port's MTU allows 1024: message too long\n"},
		{[]string{"-s", "unknown.invalid"}, "unknown.invalid"},
		{[]string{"-s", "unknown.invalid", "-f", "ip"}, "unknown.invalid"},
		{[]string{"-b", "203.0.113.7"}, "listen for datagrams on 203.0.113.7:7174: "},
		// RoCE has neither.
		{[]string{"-s", ip, "-P", "ipoib"}, "dial 192.0.2.1:7174: address not resolved: invalid argument\n"},
		{[]string{"-b", ip, "-p", "2"}, "listen for datagrams on 192.0.2.1:7174: "},
		{[]string{"-s", d.IPv6.String(), "-f", "gid", "-b", d.IPv6.String()}, "no such device: "},
		{[]string{"-b", d.IPv6.String(), "-f", "gid"}, "no such device: "},
	} {
		we, they := ourUdaddy.run(t, tt.args...), theirUdaddy.run(t, tt.args...)
		require.NotZero(t, they.Wait(), tt.args)
		require.Equal(t, 1, we.Wait(), tt.args)
		require.Regexp(t, "^udaddy: .*\n$", we.Stderr())
		require.Contains(t, we.Stderr(), tt.text, tt.args)
	}
}

func TestUdaddyIsInterrupted(t *testing.T) {
	d := needDevice(t)
	server := ourUdaddy.start(t, "-b", d.IPv4.String())
	listens(t, server)
	interrupt(server)
	require.Equal(t, 130, server.Wait())
	require.Equal(t, "udaddy: interrupted\n", server.Stderr())
}
