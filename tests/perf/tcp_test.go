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

// tcp is a program whose arguments are a mode, a size, a number of messages,
// and an address. It listens there, prints where, and answers each message of
// one connection with one of the same size (echo), or all of them with one byte
// (sink); or it takes so many connections and closes each when the client has
// (connect).
func tcp(args []string, stdout, stderr io.Writer) int {
	size, _ := strconv.Atoi(args[1])
	n, _ := strconv.Atoi(args[2])
	if err := serveTCP(args[0], size, n, args[3], stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func serveTCP(mode string, size, n int, address string, stdout io.Writer) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(stdout, listener.Addr())
	for ; mode == "connect" && n > 0; n-- {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = c.Read(make([]byte, 1))
		c.Close()
	}
	if mode == "connect" {
		return nil
	}
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
		if mode == "sink" {
			continue
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
	}
	if mode == "echo" {
		return nil
	}
	_, err = c.Write([]byte{0})
	return err
}

// tcpClient is the other end of tcp, with the same arguments, of which the
// address is the one that tcp has printed. It prints microseconds for a message
// one way, MiB/s, or connections a second.
func tcpClient(args []string, stdout, stderr io.Writer) int {
	size, _ := strconv.Atoi(args[1])
	n, _ := strconv.Atoi(args[2])
	value, err := askTCP(args[0], size, n, args[3])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, value)
	return 0
}

func askTCP(mode string, size, n int, address string) (float64, error) {
	began := time.Now()
	if mode == "connect" {
		for range n {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return 0, err
			}
			c.Close()
		}
		return float64(n) / time.Since(began).Seconds(), nil
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	message := make([]byte, size)
	began = time.Now()
	for range n {
		if _, err := c.Write(message); err != nil {
			return 0, err
		}
		if mode == "echo" {
			if _, err := io.ReadFull(c, message); err != nil {
				return 0, err
			}
		}
	}
	if mode == "echo" {
		return time.Since(began).Seconds() * 1e6 / float64(n) / 2, nil
	}
	if _, err := io.ReadFull(c, message[:1]); err != nil {
		return 0, err
	}
	return float64(size) * float64(n) / (1 << 20) / time.Since(began).Seconds(), nil
}

// overTCP returns what run's Row has for two processes that use TCP over the
// loopback interface: microseconds for a message one way, or MiB/s.
func overTCP(b *testing.B, m measurement, size, n int) float64 {
	b.Helper()
	mode := map[bool]string{true: "sink", false: "echo"}[m.bandwidth]
	serving := process.Start(b, process.Command(b, "tcp", mode, strconv.Itoa(size), strconv.Itoa(n), "127.0.0.1"))
	value, err := askTCP(mode, size, n, serving.Line())
	require.NoError(b, err)
	require.Zero(b, serving.Wait())
	return value
}

// BenchmarkBesideTCP measures verbena perf and TCP over the loopback interface,
// two processes each, in turn, and prints the medians as rows of a Markdown
// table: TCP's, verbena perf's, and the smallest, the median and the largest
// ratio of a round.
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
