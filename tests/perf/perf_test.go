// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

const iterations = "30"

// Either end may be perftest's.
func TestPerftest(t *testing.T) {
	d := testdevice.Require(t)
	for _, m := range []measurement{
		{"send", false},
		{"write", false},
		{"read", false},
		{"fetchadd", false},
		{"cmpswap", false},
		{"send", true},
		{"write", true},
		{"read", true},
		{"fetchadd", true},
	} {
		for _, pair := range [][2]program{{ours, theirs}, {theirs, ours}} {
			t.Run(m.String()+", "+pair[0].name+" client", func(t *testing.T) {
				for _, r := range run(t, d, pair[0], pair[1], m, "-n", iterations) {
					require.Equal(t, 30, r.Iterations)
					require.Positive(t, r.Typical+r.MessageRate) // one of which is not there
				}
			})
		}
	}
	for _, args := range []string{"-c UD", "-c UC", "-c UD -e", "-e", "-s 4000"} {
		t.Run("send latency "+args, func(t *testing.T) {
			m := measurement{"send", false}
			run(t, d, ours, theirs, m, append(strings.Fields(args), "-n", iterations)...)
			run(t, d, theirs, ours, m, append(strings.Fields(args), "-n", iterations)...)
		})
	}
}

// A client that fails does not leave the test with a server that waits for it.
func TestClientFails(t *testing.T) {
	asked, served := finish(process.Start(t, exec.Command("false")), process.Start(t, exec.Command("sleep", "600")))
	require.Equal(t, 1, asked)
	require.Equal(t, -1, served)
}

// What perftest's programs of this version do not have, or do otherwise.
func TestBothEndsOurs(t *testing.T) {
	d := testdevice.Require(t)
	for _, tt := range []struct {
		m    measurement
		args string
		rows int
	}{
		{measurement{"writeimm", false}, "", 1},
		{measurement{"writeimm", true}, "-s 1000", 1},
		{measurement{"writeimm", false}, "-c UC -e", 1},
		{measurement{"send", false}, "-a -c UD", 10},
		{measurement{"write", false}, "-R", 1},
		{measurement{"send", false}, "-R -e", 1},
		{measurement{"send", false}, "-e --netpoll", 1},
		{measurement{"read", true}, "-e --netpoll", 1},
		{measurement{"read", true}, "-R -e", 1},
		{measurement{"write", true}, "-l 4 -t 16 -s 512", 1},
		{measurement{"send", true}, "-l 8 -Q 16 -t 32 -r 64 -s 100", 1},
		{measurement{"fetchadd", true}, "", 1},
		{measurement{"cmpswap", false}, "", 1},
		{measurement{"send", false}, "--conn", 1},
		{measurement{"write", false}, "--conn -s 100", 1},
		{measurement{"writeimm", false}, "--conn -e", 1},
		{measurement{"read", false}, "--conn", 1},
		{measurement{"fetchadd", false}, "--conn", 1},
		{measurement{"cmpswap", false}, "--conn -e", 1},
		{measurement{"send", true}, "--conn -s 5000 -r 4", 1},
		{measurement{"send", false}, "--conn -a", 23},
		{measurement{"write", true}, "--conn -l 4 -t 16", 1},
		{measurement{"read", true}, "--conn", 1},
		{measurement{"fetchadd", true}, "--conn", 1},
		{measurement{"writeimm", true}, "-q 3 -b -s 100", 1},
		{measurement{"send", true}, "-q 2 -b -s 5000", 1},
		{measurement{"write", true}, "-q 2 -b -s 5000", 1},
		{measurement{"send", true}, "-q 2 -e", 1},
		{measurement{"send", true}, "-b -e --netpoll", 1},
	} {
		t.Run(tt.m.String()+" "+tt.args, func(t *testing.T) {
			rows := run(t, d, ours, ours, tt.m, append(strings.Fields(tt.args), "-n", "32")...)
			require.Len(t, rows, tt.rows)
		})
	}
}

// A connection at one end, and a queue pair that rdma_cm connects at the other.
func TestConnAndQueuePair(t *testing.T) {
	d := testdevice.Require(t)
	m := measurement{"send", false}
	for _, flags := range [][2]string{{"--conn", "-R"}, {"-R", "--conn"}} {
		port := nextPort()
		args := []string{"-n", iterations, "-s", "100", "-p", strconv.Itoa(port)}
		server := start(t, ours, m, append(args, flags[0])...)
		server.Eventually("listens", func() bool { return listens(port) })
		client := start(t, ours, m, append(args, flags[1], d.IPv4.String())...)
		require.Zero(t, client.Wait())
		require.Zero(t, server.Wait())
		require.Len(t, parse(t, m, client.Stdout()), 1)
	}
}

// A sweep of sizes over all programs that have one, between which both ends
// keep in step.
func TestSweep(t *testing.T) {
	d := testdevice.Require(t)
	m := measurement{"send", false}
	for _, pair := range [][2]program{{ours, theirs}, {theirs, ours}} {
		rows := run(t, d, pair[0], pair[1], m, "-a", "-n", "5")
		require.Len(t, rows, 23)
		require.Equal(t, 8<<20, rows[22].Bytes)
	}
}

// An end that is killed or interrupted ends, and so does the other one, in the
// middle of whatever they measure.
func TestEndGoes(t *testing.T) {
	d := testdevice.Require(t)
	const killed, failed, interrupted = -1, 1, 130
	for _, m := range []measurement{{"write", false}, {"send", false}, {"read", false}, {"send", true}, {"write", true}, {"read", true}} {
		for _, tt := range []struct {
			name           string
			toServer       bool
			signal         os.Signal
			client, server int
		}{
			{"server is killed", true, os.Kill, failed, killed},
			{"server is interrupted", true, os.Interrupt, failed, interrupted},
			{"client is interrupted", false, os.Interrupt, interrupted, failed},
		} {
			t.Run(m.String()+"/"+tt.name, func(t *testing.T) {
				port := nextPort()
				args := []string{"-n", "10000000", "-p", strconv.Itoa(port)}
				server := start(t, ours, m, args...)
				server.Eventually("listens", func() bool { return listens(port) })
				client := start(t, ours, m, append(args, d.IPv4.String())...)
				require.Eventually(t, func() bool { return connected(t) || client.Ended() }, patience, tick)
				target := client
				if tt.toServer {
					target = server
				}
				target.Signal(tt.signal)
				require.Equal(t, tt.client, client.Wait())
				require.Equal(t, tt.server, server.Wait())
				for status, p := range map[int]*process.Process{tt.client: client, tt.server: server} {
					if status == interrupted {
						require.Contains(t, p.Output(), "verbena perf: interrupted")
					}
				}
			})
		}
	}
}

// Ends that are not started alike are told so, instead of waiting for each
// other.
func TestEndsDiffer(t *testing.T) {
	d := testdevice.Require(t)
	ends := func(t *testing.T, server, client program, of, to measurement, serverArgs, clientArgs string) (said, out string) {
		for tries := 5; ; tries-- {
			port := nextPort()
			common := []string{"-p", strconv.Itoa(port)}
			s := start(t, server, of, append(strings.Fields(serverArgs), common...)...)
			s.Eventually("listens", func() bool { return listens(port) })
			c := start(t, client, to, append(append(strings.Fields(clientArgs), common...), d.IPv4.String())...)
			served, asked := s.Wait(), c.Wait()
			if tries > 1 && (uncalibrated(s) || uncalibrated(c)) {
				continue
			}
			if server.name == ours.name {
				require.Equal(t, 1, served)
			}
			if client.name == ours.name {
				require.Equal(t, 1, asked)
			}
			return s.Output(), c.Output()
		}
	}
	send, sendBandwidth, writeBandwidth := measurement{"send", false}, measurement{"send", true}, measurement{"write", true}
	for name, tt := range map[string]struct {
		of, to         measurement
		server, client string
	}{
		"operation":      {sendBandwidth, writeBandwidth, "-n 100", "-n 100"},
		"latency or not": {send, sendBandwidth, "-s 64 -n 100", "-s 64 -n 100"},
		"more":           {sendBandwidth, sendBandwidth, "-n 100", "-n 101"},
		"fewer":          {sendBandwidth, sendBandwidth, "-n 101", "-n 100"},
		"rdma_cm":        {send, send, "-R", ""},
	} {
		t.Run(name, func(t *testing.T) {
			said, out := ends(t, ours, ours, tt.of, tt.to, tt.server, tt.client)
			require.Contains(t, said, "verbena perf: the ends differ: ")
			require.Contains(t, out, "verbena perf: the ends differ: ")
		})
	}
	t.Run("several queue pairs", func(t *testing.T) {
		said, _ := ends(t, ours, theirs, writeBandwidth, writeBandwidth, "-n 100", "-n 100 -q 2")
		require.Contains(t, said, "give both ends the same -q")
		_, out := ends(t, theirs, ours, writeBandwidth, writeBandwidth, "-n 100 -q 2", "-n 100")
		require.Contains(t, out, "give both ends the same -q")
	})
	t.Run("perftest sends fewer", func(t *testing.T) {
		said, _ := ends(t, ours, theirs, sendBandwidth, sendBandwidth, "-n 101", "-n 100")
		require.Contains(t, said, "the peer is done, but messages are missing here")
	})
}

// Both ends' JSON can be read, also where a receiver finds all messages at
// once.
func TestJSON(t *testing.T) {
	d := testdevice.Require(t)
	for _, m := range []measurement{{"send", true}, {"write", true}, {"send", false}} {
		port := nextPort()
		args := []string{"-j", "-n", "5", "-s", "2", "-p", strconv.Itoa(port)}
		server := start(t, ours, m, args...)
		server.Eventually("listens", func() bool { return listens(port) })
		client := start(t, ours, m, append(args, d.IPv4.String())...)
		for _, p := range []*process.Process{client, server} {
			require.Zero(t, p.Wait())
			var r struct{ Rows []row }
			require.NoError(t, json.Unmarshal([]byte(p.Output()), &r))
			require.Len(t, r.Rows, 1)
			require.Equal(t, 5, r.Rows[0].Iterations)
		}
	}
}
