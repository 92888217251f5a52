// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourRstream   = program{"Go", true, "rstream"}
	theirRstream = program{"C", false, "rstream"}
)

// streamPairs are servers and clients.
var streamPairs = [][2]program{{ourRstream, theirRstream}, {theirRstream, ourRstream}}

// streamHead is the first line of the table, in either program.
var streamHead = regexp.MustCompile(`^name +bytes +xfers +iters +total +time +Gb/sec +usec/xfer\n`)

// Ours works with C's in both directions; make interop has more.
func TestRstream(t *testing.T) {
	d := needDevice(t)
	v4, v6 := d.IPv4.String(), d.IPv6.String()
	for _, tt := range []struct {
		name, host, args string
		row              string // what the last line begins with
	}{
		{"one byte, more messages than credits", v4, "-T v -S 1 -C 1000 -I 2", "custom 1 1k 2 3.9k "},
		{"larger than the window", v4, "-T v -S 3000001 -C 1", "custom 2.8m 1 1 5.7m "},
		{"small buffers, blocking", v4, "-T v -T b -B 2048 -S 100000 -C 2", "custom 97k 2 1 390k "},
		{"asynchronous", v4, "-T v -T b -T a -S 9999 -C 20 -I 2", "custom 9.7k 20 2 781k "},
		{"IPv6, another port, looked up by rdma_cm, keepalive", v6, "-f ipv6 -p 7483 -T r -k 1 -T v -C 20 -S 64", "custom 64 20 1 2.5k "},
	} {
		for _, pair := range streamPairs {
			t.Run(fmt.Sprintf("%s/%s server %s client", tt.name, pair[0].name, pair[1].name), func(t *testing.T) {
				server := pair[0].start(t, append(strings.Fields(tt.args), "-b", tt.host)...)
				listens(t, server)
				client := pair[1].run(t, append(strings.Fields(tt.args), "-s", tt.host)...)
				for _, r := range []*process.Process{client, server} {
					require.Zero(t, r.Wait())
					require.Regexp(t, streamHead, strings.TrimPrefix(r.Stdout(), "Keepalive: ON\n"))
					lines := strings.Split(strings.TrimSuffix(r.Stdout(), "\n"), "\n")
					last := strings.Join(strings.Fields(lines[len(lines)-1]), " ")
					require.True(t, strings.HasPrefix(last, tt.row), last)
				}
			})
		}
	}
}

// Ours notices that C's has been killed, and says so.
func TestRstreamKilled(t *testing.T) {
	d := needDevice(t)
	args := strings.Fields("-T b -C 1000000000")
	for _, pair := range streamPairs {
		t.Run(fmt.Sprintf("%s server %s client", pair[0].name, pair[1].name), func(t *testing.T) {
			we := pair[0].start(t, append(args, "-b", d.IPv4.String())...)
			listens(t, we)
			they := pair[1].start(t, append(args, "-s", d.IPv4.String())...)
			if !pair[0].ours {
				we, they = they, we
			}
			they.Eventually("is connected", func() bool { return strings.Count(strings.Join(resources(t, "qp"), ""), "type RC state RTS") == 2 })
			they.Kill()
			require.Equal(t, 1, we.Wait())
			require.Contains(t, we.Stderr(), "rstream: test custom of 1000 bytes: ")
			require.Contains(t, we.Stderr(), "connection reset by peer")
		})
	}
}

func TestRstreamFails(t *testing.T) {
	d := needDevice(t)
	for _, server := range []string{d.IPv4.String(), "198.51.100.77"} { // where no program listens, and no such address
		for _, p := range []program{ourRstream, theirRstream} {
			require.NotZero(t, p.run(t, "-s", server, "-p", "7484").Wait(), p.name)
		}
	}
	stranger := ourRstream.run(t, "-b", "198.51.100.77")
	require.Equal(t, 1, stranger.Wait())
	require.Contains(t, stranger.Stderr(), "rstream: listen rdma")
}
