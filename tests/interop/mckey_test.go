// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourMckey   = program{"Go", true, "mckey"}
	theirMckey = program{"C", false, "mckey"}
)

const group, group6 = "239.86.69.68", "ff0e::5645:4d43"

// join starts a member and returns when it has joined.
func join(t *testing.T, p program, args ...string) *process.Process {
	t.Helper()
	if !p.ours { // whose output would come at its end
		p.command, args = "stdbuf", append([]string{"-oL", "mckey"}, args...)
	}
	m := p.start(t, args...)
	m.Prints("mckey: joined dgid: ")
	return m
}

// sendToMembers has a sender send to members until each has its messages. The
// sender sends more than those wait for: C's destroys its queue pair at once,
// with what the kernel has not sent by then, so that of 10 messages Linux 7.2
// may send few.
func sendToMembers(t *testing.T, members []*process.Process, sender program, args ...string) {
	t.Helper()
	args = append(args, "-s", "-C", "1000")
	for _, m := range members {
		m.Eventually("has received enough", func() bool {
			if !m.Ended() {
				s := sender.run(t, args...)
				require.Zero(t, s.Wait())
				require.Contains(t, s.Stdout(), "data transfers complete")
			}
			return m.Ended()
		})
		require.Zero(t, m.Wait())
		require.Contains(t, m.Stdout(), "data transfers complete")
	}
}

func TestMckey(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		members []program
		sender  program
		mode    string
		size    int
	}{
		{[]program{ourMckey, ourMckey, theirMckey}, theirMckey, "", 100},
		{[]program{ourMckey, ourMckey, theirMckey}, ourMckey, "-o", 1024},
		{[]program{theirMckey, theirMckey, ourMckey}, ourMckey, "", 1},
		{[]program{theirMckey, theirMckey, ourMckey}, theirMckey, "-o", 512},
	} {
		t.Run(fmt.Sprintf("%s sender %s", tt.sender.name, tt.mode), func(t *testing.T) {
			args := []string{"-m", group, "-b", d.IPv4.String(), "-S", fmt.Sprint(tt.size)}
			var members []*process.Process
			for _, p := range tt.members {
				members = append(members, join(t, p, args...))
			}
			for _, m := range members {
				require.Contains(t, m.Stdout(), "mckey: joined dgid: ::ffff:"+group+" mlid 0x0 sl 0\n")
			}
			sendToMembers(t, members, tt.sender, append(args, strings.Fields(tt.mode)...)...)
		})
	}
}

// Each queue pair of a member gets all messages of each queue pair of a sender.
func TestMckeyConnections(t *testing.T) {
	d := needDevice(t)
	args := []string{"-m", group, "-b", d.IPv4.String(), "-c", "3"}
	for _, pair := range []struct{ member, sender program }{{ourMckey, theirMckey}, {theirMckey, ourMckey}} {
		members := []*process.Process{join(t, pair.member, append(args, "-C", "20")...)}
		sendToMembers(t, members, pair.sender, args...)
		require.Equal(t, 3, strings.Count(members[0].Stdout(), "joined dgid"))
	}
}

// C's cannot join groups of IPv6 on RoCE v2, as Linux does not have it; ours
// can.
func TestMckeyIPv6(t *testing.T) {
	d := needDevice(t)
	args := []string{"-m", group6, "-b", d.IPv6.String()}
	require.NotZero(t, theirMckey.run(t, args...).Wait())
	members := []*process.Process{join(t, ourMckey, args...), join(t, ourMckey, args...)}
	require.Contains(t, members[0].Stdout(), "mckey: joined dgid: "+group6+" mlid 0x0 sl 0\n")
	sendToMembers(t, members, ourMckey, append(args, "-o")...)
}

func TestMckeyFails(t *testing.T) {
	d := needDevice(t)
	ip := d.IPv4.String()
	for _, tt := range []struct {
		args []string
		text string
	}{
		{[]string{"-m", "192.0.2.9", "-b", ip}, "join 192.0.2.9: rdma_join_multicast (192.0.2.9): the address is not that of a multicast group\n"},
		{[]string{"-m", "unknown.invalid", "-b", ip}, "look up the group: lookup unknown.invalid"},
		{[]string{"-m", group}, "no route to the group"},
		{[]string{"-m", group, "-b", "203.0.113.7"}, "203.0.113.7"},
		{[]string{"-m", group, "-b", ip, "-S", "1025"}, "messages of 1025 bytes: the port's MTU allows 1024: message too long\n"},
		// Soft-RoCE has none of these.
		{[]string{"-m", group, "-b", ip, "-l"}, "not supported\n"},
		{[]string{"-m", group, "-b", ip, "-p", "0x2"}, "rdma_bind_addr (192.0.2.1:0): invalid argument\n"},
		{[]string{"-M", group6, "-b", ip}, "not supported\n"},
	} {
		we, they := ourMckey.run(t, tt.args...), theirMckey.run(t, tt.args...)
		require.NotZero(t, they.Wait(), tt.args)
		require.Equal(t, 1, we.Wait(), tt.args)
		require.Regexp(t, "^mckey: .*\n$", we.Stderr())
		require.Contains(t, we.Stderr(), tt.text, tt.args)
	}
}

func TestMckeyIsInterrupted(t *testing.T) {
	d := needDevice(t)
	for _, mode := range []string{"-C10", "-s"} { // while it waits for messages, and for the network
		m := join(t, ourMckey, "-m", group, "-b", d.IPv4.String(), mode)
		interrupt(m)
		require.Equal(t, 130, m.Wait())
		require.Equal(t, "mckey: interrupted\n", m.Stderr())
	}
}
