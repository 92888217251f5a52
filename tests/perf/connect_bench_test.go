// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// connecting is what a program of its own has measured of connections of which
// it has both ends. Times and numbers are those of one connection.
type connecting struct {
	Dial, Close   float64 // microseconds, the other end included
	CPU           float64 // processor time from the first dial to the last close, in microseconds
	Allocs, Calls float64 // allocations in Go, and calls of C
	FDs, Routines float64 // descriptors and goroutines while the connections are up
}

// connector makes connections of one kind.
type connector struct {
	dial   func(ctx context.Context) (io.Closer, error)
	accept func(ctx context.Context) (wait func(), conn io.Closer, err error) // wait returns when the peer has closed
	close  func() error
}

// connectors are the kinds, by name. address is an address of the device.
var connectors = map[string]func(ctx context.Context, address string) (connector, error){
	"tcp": func(ctx context.Context, _ string) (connector, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return connector{}, err
		}
		return streams(listener, func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}), nil
	},
	"rdmacm": func(ctx context.Context, address string) (connector, error) {
		listener, err := rdmacm.Listen(ctx, net.JoinHostPort(address, "0"), nil)
		if err != nil {
			return connector{}, err
		}
		return connector{
			dial: func(ctx context.Context) (io.Closer, error) { return rdmacm.Dial(ctx, listener.Addr().String(), nil) },
			accept: func(ctx context.Context) (func(), io.Closer, error) {
				request, err := listener.Accept(ctx)
				if err != nil {
					return nil, nil, err
				}
				conn, err := request.Accept(ctx, nil)
				return func() { <-conn.Done() }, conn, err
			},
			close: listener.Close,
		}, nil
	},
	"rsocket": func(ctx context.Context, address string) (connector, error) {
		listener, err := rsocket.Listen("rdma", net.JoinHostPort(address, "0"))
		if err != nil {
			return connector{}, err
		}
		return streams(listener, func(ctx context.Context, address string) (net.Conn, error) {
			return new(rsocket.Dialer).DialContext(ctx, "rdma", address)
		}), nil
	},
}

// streams makes connections of a net.Listener.
func streams(listener net.Listener, dial func(ctx context.Context, address string) (net.Conn, error)) connector {
	return connector{
		dial: func(ctx context.Context) (io.Closer, error) { return dial(ctx, listener.Addr().String()) },
		accept: func(context.Context) (func(), io.Closer, error) {
			conn, err := listener.Accept()
			return func() { _, _ = conn.Read(make([]byte, 1)) }, conn, err
		},
		close: listener.Close,
	}
}

// connects is a program whose arguments are a kind of connection, an address of
// the device, how many connections to make, and how often. It dials them one
// after the other, closes them one after the other, and prints the medians
// of the rounds.
func connects(args []string, stdout, stderr io.Writer) int {
	n, _ := strconv.Atoi(args[2])
	rounds, _ := strconv.Atoi(args[3])
	all, err := connectAll(args[0], args[1], n, rounds)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(all)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// connectAll returns the medians of so many rounds, of which the first is not
// counted.
func connectAll(kind, address string, n, rounds int) (connecting, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := connectors[kind](ctx, address)
	if err != nil {
		return connecting{}, err
	}
	var all [7][]float64
	for i := range rounds + 1 {
		m, err := c.round(ctx, n)
		if err != nil {
			return connecting{}, err
		}
		if i == 0 {
			continue
		}
		for j, v := range []float64{m.Dial, m.Close, m.CPU, m.Allocs, m.Calls, m.FDs, m.Routines} {
			all[j] = append(all[j], v)
		}
	}
	mid := func(j int) float64 { return median(all[j]) }
	return connecting{mid(0), mid(1), mid(2), mid(3), mid(4), mid(5), mid(6)}, c.close()
}

// round makes and closes n connections.
func (c connector) round(ctx context.Context, n int) (connecting, error) {
	var ends sync.WaitGroup
	var serving error
	conns := make([]io.Closer, n)
	accepted := make(chan struct{}, n)
	before := reading()
	ends.Go(func() {
		for range n {
			wait, conn, err := c.accept(ctx)
			if err != nil {
				serving = err
				return
			}
			accepted <- struct{}{}
			ends.Go(func() {
				wait()
				_ = conn.Close()
			})
		}
	})
	for i := range conns {
		var err error
		if conns[i], err = c.dial(ctx); err != nil {
			return connecting{}, err
		}
	}
	for range n {
		<-accepted
	}
	up := reading()
	began := time.Now()
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			return connecting{}, err
		}
	}
	ends.Wait()
	after := reading()
	each := func(value float64) float64 { return value / float64(n) }
	return connecting{
		Dial: each(micros(up.at.Sub(before.at))), Close: each(micros(after.at.Sub(began))),
		CPU:    each(micros(after.cpu - before.cpu)),
		Allocs: each(float64(after.allocs - before.allocs)), Calls: each(float64(after.calls - before.calls)),
		FDs: each(float64(up.fds - before.fds)), Routines: each(float64(up.routines - before.routines)),
	}, serving
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// usage is what this process has used so far.
type usage struct {
	at            time.Time
	cpu           time.Duration
	allocs        uint64
	calls         int64
	fds, routines int
}

func reading() usage {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	fds, _ := os.ReadDir("/proc/self/fd")
	return usage{
		at: time.Now(), cpu: time.Duration(used.Utime.Nano() + used.Stime.Nano()),
		allocs: memory.Mallocs, calls: runtime.NumCgoCall(), fds: len(fds), routines: runtime.NumGoroutine(),
	}
}

// BenchmarkConnecting makes 200 connections one after the other and closes them
// one after the other, over TCP's loopback, with rdmacm and with rsocket, in
// turn. A process has both ends. It prints rows of a Markdown table: times of
// one connection, and the smallest, the median and the largest ratio to TCP's
// in a round; then what one connection takes: processor time, calls of C,
// allocations, descriptors and goroutines while it is up, system calls, and
// context switches.
func BenchmarkConnecting(b *testing.B) {
	const n = 200
	d, rounds := testdevice.Require(b), rounds(b)
	kinds := []string{"tcp", "rdmacm", "rsocket"}
	command := func(kind string, times int) *exec.Cmd {
		return process.Command(b, "connects", kind, d.IPv4.String(), strconv.Itoa(n), strconv.Itoa(times))
	}
	got := map[string][]connecting{}
	for b.Loop() {
		for range rounds {
			for _, kind := range kinds {
				p := process.Start(b, command(kind, 5))
				require.Zero(b, p.Wait())
				var m connecting
				require.NoError(b, json.Unmarshal([]byte(p.Stdout()), &m))
				got[kind] = append(got[kind], m)
			}
		}
	}
	of := func(kind string, value func(connecting) float64) (values []float64) {
		for _, m := range got[kind] {
			values = append(values, value(m))
		}
		return values
	}
	for _, kind := range kinds {
		var columns []any
		for _, value := range []func(connecting) float64{
			func(m connecting) float64 { return m.Dial },
			func(m connecting) float64 { return m.Close },
		} {
			ours, tcp := of(kind, value), of("tcp", value)
			ratios := make([]float64, len(ours))
			for i := range ours {
				ratios[i] = ours[i] / tcp[i]
			}
			columns = append(columns, median(ours), slices.Min(ratios), median(ratios), slices.Max(ratios))
		}
		for _, value := range []func(connecting) float64{
			func(m connecting) float64 { return m.CPU },
			func(m connecting) float64 { return m.Calls },
			func(m connecting) float64 { return m.Allocs },
			func(m connecting) float64 { return m.FDs },
			func(m connecting) float64 { return m.Routines },
		} {
			columns = append(columns, median(of(kind, value)))
		}
		var counts [2]map[string]float64
		for i := range counts { // what the start takes is in both
			file := filepath.Join(b.TempDir(), "counts")
			require.Zero(b, process.Run(b, underPerf(command(kind, 5*(i+1)), file)).Wait())
			counts[i] = readCounts(b, file)
		}
		for _, what := range []string{calls, switches} {
			columns = append(columns, (counts[1][what]-counts[0][what])/(5*n))
		}
		fmt.Printf("\n| "+kind+" | %.0f us | %.1f, %.1f, %.1f | %.0f us | %.1f, %.1f, %.1f | %.0f us | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f |\n", columns...)
	}
}
