// SPDX-License-Identifier: Apache-2.0

// Package ping is the command verbena ping. It sends messages over RDMA to a
// server that sends each of them back, and prints the round-trip times.
package ping

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// options holds the values of the flags.
type options struct {
	host              string
	listen            bool
	port, count, size int
	interval, timeout time.Duration
	quiet, asJSON     bool
}

// Program returns the program of the command.
func Program() *program.Program {
	o := &options{port: 7471, size: 64, interval: time.Second, timeout: 5 * time.Second}
	return &program.Program{
		Name: "verbena ping", Summary: "send messages to a host and back, and print the time of each",
		Flags: o.flags, Run: o.run, Misused: program.ExitMisused, Operands: []*string{&o.host},
		Usage: `
verbena ping [flags] HOST          send messages
verbena ping -l [flags] [ADDRESS]  answer them, until interrupted`,
		Text: `
Connects to HOST, where verbena ping -l must run, and sends a message each
second. The server sends each back. Prints a line for each answer: its size, and
the time from posting the message until the answer has come. It ends after -c
messages, or when it is interrupted, with a summary: how many messages were
sent and answered, and the least, mean and greatest time with the standard
deviation.

A message is lost if its answer does not come within the time of -W, or if the
connection breaks. Connections are reliable: a packet that the network loses is
sent again, which takes longer, and is no lost message. After a lost message,
verbena ping connects again for the next one.

The server listens on ADDRESS, or on all addresses of all devices, and takes any
number of clients, or ends after -c of them. It prints the clients that come and go, and
refuses clients that are not verbena ping, and does not count them.

With VERBENA_DEVICE=soft in the environment, both use the device in user space,
on which 127.0.0.1 is an address, too.

Exit status: 0 if all messages of -c were answered or, without it, any; 1 if
not, or if there is no connection at first; 2 for wrong arguments. Interrupting
the server is its end, with 0.

Example: verbena ping -l   and   verbena ping -c 3 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.BoolVarP(&o.listen, "listen", "l", false, "be the server")
	f.Port(&o.port, "`port` of the server")
	f.Number(&o.count, "count", "c", 0, math.MaxInt32, "end after this `number` of messages, with -l of clients (0: when interrupted)")
	f.Seconds(&o.interval, "interval", "i", 0, "`seconds` from one message to the next (0: at once)")
	f.Number(&o.size, "size", "s", minSize, maxSize, "`bytes` of a message")
	f.Seconds(&o.timeout, "timeout", "W", time.Millisecond, "`seconds` to wait for an answer or a connection")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print the summary only")
	f.JSONLines(&o.asJSON)
}

func (o *options) run(ctx context.Context, out program.Output) error {
	if host, port, err := net.SplitHostPort(o.host); err == nil {
		return program.Misuse("pass the port as a flag: -p %s %s", port, host)
	}
	if o.listen {
		return (&server{out: out, asJSON: o.asJSON, quiet: o.quiet, count: o.count}).run(ctx, o.address())
	}
	if o.host == "" {
		return program.Misuse("the host is missing; with -l this is the server")
	}
	return o.ping(ctx, out)
}

func (o *options) address() string { return net.JoinHostPort(o.host, strconv.Itoa(o.port)) }

// The sizes of messages, in bytes: each has its number in it.
const (
	minSize = 8
	maxSize = 1 << 20
)

// hello is the start of the private data of both ends, before the size of
// messages. It shows an end that the peer is verbena ping, too.
const hello = "verbena-ping 1\x00"

// greeting returns the private data of an end for messages of a size.
func greeting(size int) []byte { return binary.BigEndian.AppendUint32([]byte(hello), uint32(size)) }

// greeted returns the size in the peer's private data, which may end with
// zeros. ok is false if the peer is not verbena ping.
func greeted(data []byte) (size int, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(hello))
	if !ok || len(rest) < 4 {
		return 0, false
	}
	n := binary.BigEndian.Uint32(rest)
	return int(n), minSize <= n && n <= maxSize
}
