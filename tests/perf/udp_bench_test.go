// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// station is one of two hosts that a network connects.
type station struct {
	namespace string // empty: the first one
	address   string
	device    string // of the kernel's; empty: the device in user space
}

// command returns one that runs at the station.
func (s station) command(cmd *exec.Cmd) *exec.Cmd {
	if s.namespace == "" {
		return cmd
	}
	there := exec.Command("ip", append([]string{"netns", "exec", s.namespace}, cmd.Args...)...)
	there.Env = append(cmd.Environ(), "VERBENA_DEVICE=soft:udp="+s.address) // C's programs do not look
	return there
}

// awaits waits until a file of /proc at the station has a text.
func (s station) awaits(b *testing.B, p *process.Process, text string, file ...string) {
	b.Helper()
	require.Eventually(b, func() bool {
		out, err := s.command(exec.Command("cat", file...)).Output()
		return p.Ended() || err == nil && strings.Contains(string(out), text)
	}, patience, 10*time.Millisecond)
}

// stations makes two hosts for the device in user space and for TCP, and
// returns them, and the two that have Soft-RoCE.
func stations(b *testing.B) (soft, kernel [2]station) {
	b.Helper()
	testdevice.Needs(b, testdevice.Guest)
	if os.Getenv("VERBENA_VM_HOSTS") != "2" {
		b.Skip("needs VERBENA_VM_HOSTS=2")
	}
	soft = [2]station{{namespace: "udp1", address: "203.0.113.1"}, {namespace: "udp2", address: "203.0.113.2"}}
	lines := []string{"ip netns add udp1", "ip netns add udp2", "ip link add udp1 netns udp1 type veth peer name udp2 netns udp2"}
	for _, s := range soft {
		lines = append(lines, "ip -n "+s.namespace+" link set lo up", "ip -n "+s.namespace+" addr add "+s.address+"/24 dev "+s.namespace,
			"ip -n "+s.namespace+" link set "+s.namespace+" up")
	}
	for _, line := range lines {
		args := strings.Fields(line)
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		require.NoError(b, err, "%s: %s", line, out)
	}
	return soft, [2]station{{address: "198.51.100.1", device: "rxe2"}, {namespace: "ns1", address: "198.51.100.2", device: "rxe1"}}
}

// BenchmarkUDP measures TCP, perftest's programs with Soft-RoCE, and rdmaperf
// on the device in user space, each between two hosts of the guest, in turn,
// and prints the medians as rows of a Markdown table: TCP's, C's, ours, and the
// least, the median and the largest ratio of a round of ours to each.
func BenchmarkUDP(b *testing.B) {
	soft, kernel := stations(b)
	rounds := rounds(b)
	row := func(name, size, unit string, tcp, c, g []float64) {
		fmt.Printf("\n| between two hosts, %s | %s | %.1f %s | %.1f %s | %.1f %s | %s %s\n",
			name, size, median(tcp), unit, median(c), unit, median(g), unit, ratios(g, c), ratios(g, tcp))
	}
	for _, tt := range []struct {
		name string
		measurement
		size, n int
	}{
		{"send latency, polling", measurement{"send", false}, 64, 500},
		{"write bandwidth, polling", measurement{"write", true}, 64 << 10, 500},
		{"write bandwidth, polling", measurement{"write", true}, 1 << 20, 50},
		{"read bandwidth, polling", measurement{"read", true}, 64 << 10, 500},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.size), func(b *testing.B) {
			var tcps, cs, gos []float64
			for b.Loop() {
				for range rounds {
					mode := map[bool]string{true: "sink", false: "echo"}[tt.bandwidth]
					tcps = append(tcps, tcpBetween(b, soft, mode, tt.size, tt.n))
					cs = append(cs, between(b, kernel, theirs, tt.measurement, tt.size, tt.n))
					gos = append(gos, between(b, soft, ours, tt.measurement, tt.size, tt.n))
				}
			}
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			row(tt.name, strconv.Itoa(tt.size), unit, tcps, cs, gos)
		})
	}
	b.Run("connections", func(b *testing.B) {
		const n = 100
		var tcps, cs, gos []float64
		for b.Loop() {
			for range rounds {
				tcps = append(tcps, tcpBetween(b, soft, "connect", 0, n))
				cs = append(cs, connectionsBetween(b, kernel, func(args ...string) *exec.Cmd { return exec.Command("cmtime", args...) }, n))
				gos = append(gos, connectionsBetween(b, soft, func(args ...string) *exec.Cmd { return process.Cmd(b, "cmtime", args...) }, n))
			}
		}
		row("connections, all steps", "", "a second", tcps, cs, gos)
	})
}

// between returns what a program measures from the first station to the second.
func between(b *testing.B, at [2]station, p program, m measurement, size, n int) float64 {
	b.Helper()
	for tries := 5; ; tries-- {
		port := nextPort()
		start := func(s station, more ...string) *process.Process {
			args := append([]string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(n), "-p", strconv.Itoa(port)}, more...)
			if s.device != "" {
				args = append(args, "-d", s.device)
			}
			return process.Start(b, s.command(p.command(b, m, args...)))
		}
		server := start(at[1])
		at[1].awaits(b, server, fmt.Sprintf(":%04X 00000000", port), "/proc/net/tcp", "/proc/net/tcp6")
		client := start(at[0], at[1].address)
		asked, served := finish(client, server)
		if tries > 1 && (uncalibrated(client) || uncalibrated(server)) {
			continue
		}
		require.Zero(b, asked+served)
		rows := parse(b, m, client.Stdout())
		require.Len(b, rows, 1)
		return rows[0].Typical + rows[0].Average // one of which is not there
	}
}

func tcpBetween(b *testing.B, at [2]station, mode string, size, n int) float64 {
	b.Helper()
	args := []string{mode, strconv.Itoa(size), strconv.Itoa(n)}
	server := process.Start(b, at[1].command(process.Command(b, "tcp", append(slices.Clone(args), at[1].address)...)))
	client := process.Start(b, at[0].command(process.Command(b, "tcpclient", append(args, server.Line())...)))
	require.Zero(b, client.Wait())
	require.Zero(b, server.Wait())
	value, err := strconv.ParseFloat(strings.TrimSpace(client.Stdout()), 64)
	require.NoError(b, err)
	return value
}

// connectionsBetween returns how many connections cmtime makes and ends in a
// second.
func connectionsBetween(b *testing.B, at [2]station, command func(args ...string) *exec.Cmd, n int) float64 {
	b.Helper()
	server := process.Start(b, at[1].command(command("-b", at[1].address)))
	if at[1].device == "" {
		at[1].awaits(b, server, "/listen/", "/proc/net/unix")
	} else {
		require.Eventually(b, func() bool {
			out, err := at[1].command(exec.Command("rdma", "resource", "show", "cm_id")).Output()
			return server.Ended() || err == nil && strings.Contains(string(out), "state LISTEN")
		}, patience, 10*time.Millisecond)
	}
	client := process.Start(b, at[0].command(command("-s", at[1].address, "-c", strconv.Itoa(n))))
	require.Zero(b, client.Wait())
	server.Kill()
	return rate(b, client.Stdout(), n)
}
