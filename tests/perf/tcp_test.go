// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// tcp is a program whose arguments are a size and a number of messages. It listens at a loopback address,
// which it prints, and answers each message of one connection with one of the same size; or, if the
// third argument is "sink", all of them with one byte.
func tcp(args []string, stdout, stderr io.Writer) int {
	size, _ := strconv.Atoi(args[0])
	n, _ := strconv.Atoi(args[1])
	if err := serveTCP(size, n, args[2] == "sink", stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func serveTCP(size, n int, sink bool, stdout io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(stdout, listener.Addr())
	c, err := listener.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	message := make([]byte, size)
	for range n {
		if _, err := io.ReadFull(c, message); err != nil {
			return err
		}
		if sink {
			continue
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
	}
	if !sink {
		return nil
	}
	_, err = c.Write([]byte{0})
	return err
}

// overTCP returns what run's Row has for two processes that use TCP over the loopback
// interface: microseconds for a message one way, or MiB/s.
func overTCP(b *testing.B, m measurement, size, n int) float64 {
	b.Helper()
	mode := map[bool]string{true: "sink", false: "echo"}[m.bandwidth]
	serving := process.Start(b, process.Command(b, "tcp", strconv.Itoa(size), strconv.Itoa(n), mode))
	c, err := net.Dial("tcp", serving.Line())
	require.NoError(b, err)
	defer c.Close()
	message := make([]byte, size)
	began := time.Now()
	for range n {
		_, err := c.Write(message)
		require.NoError(b, err)
		if !m.bandwidth {
			_, err := io.ReadFull(c, message)
			require.NoError(b, err)
		}
	}
	if m.bandwidth {
		_, err := io.ReadFull(c, message[:1])
		require.NoError(b, err)
	}
	took := time.Since(began)
	require.Zero(b, serving.Wait())
	if m.bandwidth {
		return float64(size) * float64(n) / (1 << 20) / took.Seconds()
	}
	return took.Seconds() * 1e6 / float64(n) / 2
}

// BenchmarkBesideTCP measures verbena perf and TCP over the loopback interface, two processes each, in
// turn, and prints the medians as rows of a Markdown table: TCP's, verbena perf's, and the smallest, the
// median and the largest ratio of a round.
func BenchmarkBesideTCP(b *testing.B) {
	d, rounds := testdevice.Require(b), rounds(b)
	for _, tt := range []struct {
		name string
		measurement
		size, n int
		flags   []string
	}{
		{"send latency, polling", measurement{"send", false}, 64, 20000, nil},
		{"send latency, events", measurement{"send", false}, 64, 10000, []string{"-e", "--netpoll"}},
		{"send latency, polling", measurement{"send", false}, 64 << 10, 3000, nil},
		{"write bandwidth, polling", measurement{"write", true}, 64 << 10, 20000, nil},
		{"write bandwidth, events", measurement{"write", true}, 64 << 10, 20000, []string{"-e", "--netpoll"}},
		{"write bandwidth, polling", measurement{"write", true}, 1 << 20, 2000, nil},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.size), func(b *testing.B) {
			args := append([]string{"-s", strconv.Itoa(tt.size), "-n", strconv.Itoa(tt.n)}, tt.flags...)
			var tcps, rdmas, ratios []float64
			for b.Loop() {
				for range rounds {
					t := overTCP(b, tt.measurement, tt.size, tt.n)
					r := run(b, d, ours, ours, tt.measurement, args...)[0]
					o := r.Typical + r.Average // one of which is not there
					tcps, rdmas, ratios = append(tcps, t), append(rdmas, o), append(ratios, o/t)
				}
			}
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			fmt.Printf("\n| %s, between two processes, %s | %d | %.1f %s | %.1f %s | %.2f, %.2f, %.2f |\n",
				d.Name, tt.name, tt.size, median(tcps), unit, median(rdmas), unit, slices.Min(ratios), median(ratios), slices.Max(ratios))
		})
	}
}
