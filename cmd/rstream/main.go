// SPDX-License-Identifier: Apache-2.0

// Rstream measures streams over RDMA. It works together with rdma-core's
// rstream.
//
// The client sends a number of transfers to the server, which then sends as
// many back.
package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// options holds the values of the flags.
type options struct {
	server, bind                string
	numeric                     bool
	port, buffer, inline        int
	keepAlive                   int // interval of keep-alive checks in seconds
	size, transfers, iterations int // values of -S, -C and -I; 0 if the flag was not given
	all                         bool
	how
}

// The defaults of -S, -C and -I if at least one of them was given.
const (
	defaultSize       = 1000
	defaultTransfers  = 1000
	defaultIterations = 1
)

func main() { os.Exit((&options{}).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{port: 7471, buffer: 512 << 10, inline: 64, keepAlive: 30}
	return &program.Program{
		Name: "rstream", Flags: o.flags, Run: o.run,
		Usage: `
rstream [-b addr] [-p port] [flags]            the server
rstream -s addr [-b addr] [-p port] [flags]    the client, with the same -I, -C, -S and -T v`,
		Text: `
Measures a stream over RDMA, with the rsocket protocol. The other end may be
rdma-core's rstream. In each test the client sends a number of transfers, then the
server sends as many back.

With none of -I, -C and -S it measures the latency of several sizes over a first
connection, then the bandwidth over a second one. Each row of the table has the
test's name, the bytes of a transfer, the transfers in one direction, the iterations
of both directions, the bytes in all, the time, and what the two last make: 10^9
bits per second, and microseconds for each transfer. k, m and g are 2^10, 2^20
and 2^30 for bytes and powers of 1000 for numbers, rounded down.

-T may be repeated. These are C's words for it, and what they do here:

  s, socket       use TCP instead of RDMA
  v, verify       check each byte; both ends need it
  r, resolve      look the addresses up with rdma_getaddrinfo
  n, nonblocking  look for data for up to 5 ms, then sleep until they come (default)
  b, blocking     look for data for up to 50 us, then sleep until they come
  a, async        sleep until data come

Here, -T f is refused, as a Go program cannot fork, and so is -f gid: addresses
are those of IP.

Exit status: 0 on success; 1 if something failed or the arguments are wrong; 130
if interrupted.

Example: rstream -T v -S 4096   and   rstream -T v -S 4096 -s 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.server, "server", "s", "", "`address` of the server; without it, this is the server")
	f.StringVarP(&o.bind, "bind", "b", "", "`address` to connect from, or to listen on (default: the system's choice, or all)")
	program.Choice(f, &o.numeric, "format", "f", "name", "`kind` of addresses", map[string]bool{"name": false, "ip": true, "ipv6": true})
	f.Number(&o.buffer, "buffer", "B", 1<<10, 1<<29, "`bytes` of the buffers for sending and for receiving; like C's, rstream takes twice as many")
	f.Number(&o.inline, "inline", "i", 0, 1<<12, "largest transfer in `bytes` to send inline in tests of latency")
	f.Number(&o.iterations, "iterations", "I", 1, math.MaxInt32, fmt.Sprintf("`number` of times in both directions (default: %d)", defaultIterations))
	f.Number(&o.transfers, "transfers", "C", 1, math.MaxInt32, fmt.Sprintf("`number` of transfers in each direction (default: %d)", defaultTransfers))
	f.VarP(&sizeFlag{o}, "size", "S", fmt.Sprintf("`bytes` of a transfer, from 1 to %d (default: %d), or all: measure more sizes", maxSize, defaultSize))
	f.Port(&o.port, "`port` of the server")
	f.Number(&o.keepAlive, "keepalive", "k", 0, math.MaxInt16, "`seconds` after which to check that an idle peer is there (0: do not)")
	f.VarP(&o.how, "test", "T", "`how` to transfer: see below; may be repeated")
}

// maxSize is the largest transfer.
const maxSize = 1 << 30

// sizeFlag is the value of -S, which sets the size in o.
type sizeFlag struct{ o *options }

func (s *sizeFlag) Set(text string) error {
	if text == "all" {
		s.o.all = true
		return nil
	}
	size, err := strconv.Atoi(text)
	if err != nil || size < 1 || size > maxSize {
		return fmt.Errorf("expected all or a number from 1 to %d", maxSize)
	}
	s.o.size = size
	return nil
}

func (s *sizeFlag) String() string { return "" }

func (s *sizeFlag) Type() string { return "size" }

// custom returns the test that -I, -C and -S describe, and reports whether any
// of these flags was given.
func (o *options) custom() (r row, asked bool) {
	or := func(value, otherwise int) int {
		if value == 0 {
			return otherwise
		}
		asked = true
		return value
	}
	r = row{"custom", or(o.size, defaultSize), or(o.transfers, defaultTransfers), or(o.iterations, defaultIterations)}
	return r, asked
}

func (o *options) run(ctx context.Context, out program.Output) error {
	a, err := o.addresses(ctx)
	if err != nil {
		return err
	}
	s := &stream{options: o, connect: func(inline int) (net.Conn, error) { return o.dial(ctx, a, inline) }}
	if o.server == "" {
		ln, err := o.listen(ctx, a)
		if err != nil {
			return err
		}
		defer ln.Close()
		defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
		s.connect = func(int) (net.Conn, error) { return ln.Accept() }
	}
	out.Printf(header)
	if r, ok := o.custom(); ok {
		return s.run(ctx, out, 0, r)
	}
	var latencies, bandwidths []row
	for _, size := range sizes(o.all) {
		latencies, bandwidths = append(latencies, latency(size)), append(bandwidths, bandwidth(size))
	}
	if err := s.run(ctx, out, o.inline, latencies...); err != nil {
		return err
	}
	return s.run(ctx, out, 0, bandwidths...)
}
