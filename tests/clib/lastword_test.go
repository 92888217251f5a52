// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"

	_ "github.com/verbena-go/verbena/softroce" // the device of Go's ends
)

// rounds is how often each case of TestLastWord is tried.
var rounds = flag.Int("lastword.rounds", 1, "how often each operation is tried with each way to end, in TestLastWord")

// lastWord is what the ends of lastword do, and with whom as the one that ends.
type lastWord struct {
	operation string
	enders    []string
	always    bool // the other end gets an answer; else it may get an error, at once
	slow      bool // on the network of all machines, the other end waits for a time-out of some seconds
	onlyC     bool // Go's ends do not do it
}

var lastWords = []lastWord{
	{operation: "send", enders: []string{"listen", "dial"}, always: true},
	{operation: "write", enders: []string{"listen", "dial"}, always: true},
	{operation: "write_imm", enders: []string{"listen", "dial"}, always: true},
	{operation: "read", enders: []string{"listen", "dial"}, always: true},
	{operation: "atomic", enders: []string{"listen", "dial"}},
	{operation: "event", enders: []string{"listen", "dial"}, always: true, onlyC: true},
	{operation: "datagram", enders: []string{"dial"}, always: true, onlyC: true},
	{operation: "disconnect", enders: []string{"listen", "dial"}, always: true},
	{operation: "disconnected", enders: []string{"listen", "dial"}, always: true},
	{operation: "unanswered", enders: []string{"listen", "dial"}, always: true, slow: true},
	{operation: "reject", enders: []string{"listen"}, always: true},
	{operation: "gone", enders: []string{"listen", "dial"}, always: true},
}

// ways returns those of the ways to end that are tried: the first two where
// there is one round.
func (w lastWord) ways(network string, all ...string) []string {
	switch {
	case network == "udp" && w.slow:
		return []string{"_exit"}
	case *rounds == 1:
		return all[:2]
	}
	return all
}

// A process may end as soon as it sees what the other end of a connection has
// done for it, or as soon as a call returns in which it has done something. The
// other end hears of it, and of the end, and never waits for what cannot come
// any more.
func TestLastWord(t *testing.T) {
	path := compile(t, "lastword", "-L", folder, "-l:librdmacm.so.1", "-l:libibverbs.so.1")
	result := regexp.MustCompile(`(\d+) rounds, (\d+) hung, (\d+) failed\n`)
	for _, network := range []string{"soft", "udp"} {
		for _, w := range lastWords {
			for _, way := range w.ways(network, "_exit", "kill", "exec", "return", "exit") {
				for _, ender := range w.enders {
					t.Run(fmt.Sprintf("%s/C and C/%s/%s/%s", network, w.operation, way, ender), func(t *testing.T) {
						args := []string{"softroce", "run", "-l", folder, path, "rounds", strconv.Itoa(*rounds), w.operation, way, ender, network, "1000"}
						p := process.Start(t, process.Cmd(t, "verbena", args...))
						for !p.Ended() { // however many rounds there are
							time.Sleep(10 * time.Millisecond)
						}
						p.Wait()
						counts := result.FindStringSubmatch(p.Stdout())
						require.NotNil(t, counts, p.Output())
						require.Equal(t, "0", counts[2], "the other end hears nothing: %s", p.Output())
						if w.always {
							require.Equal(t, "0", counts[3], p.Output())
						}
					})
				}
			}
		}
	}
	// Go's os.Exit is _exit, and the end of main is that, too.
	for _, network := range []string{"soft", "udp"} {
		for _, pair := range []struct{ ends, stays string }{{"Go", "C"}, {"C", "Go"}, {"Go", "Go"}} {
			for _, w := range lastWords {
				if w.onlyC {
					continue
				}
				for _, way := range w.ways(network, "_exit", "kill", "exec", "return") {
					for _, ender := range w.enders {
						t.Run(fmt.Sprintf("%s/%s ends, %s stays/%s/%s/%s", network, pair.ends, pair.stays, w.operation, way, ender), func(t *testing.T) {
							t.Parallel() // ends mostly wait for each other
							for range *rounds {
								m := meeting{t: t, path: path, network: network, operation: w.operation, always: w.always}
								m.take(pair.ends, pair.stays, ender, way)
							}
						})
					}
				}
			}
		}
	}
}

// meeting is a round of two ends.
type meeting struct {
	t                        *testing.T
	path, network, operation string
	always                   bool // the end that stays gets an answer
}

// meetings counts the meetings on the network of all machines, each of which
// has addresses of its own.
var meetings atomic.Uint32

// start starts an end at an own address. On one machine, that is the peer's as
// well.
func (m *meeting) start(language, own, role, listener, port, way string) *process.Process {
	args := []string{role, listener, port, m.operation, way, "1000"}
	device := "VERBENA_DEVICE=soft"
	if m.network == "udp" {
		device += ":udp=" + own
	}
	var cmd *exec.Cmd
	if language == "Go" {
		cmd = process.Command(m.t, "lastword", args...)
		cmd.Env = append(cmd.Env, device)
	} else {
		cmd = exec.Command(m.path, args...)
		cmd.Env = append(os.Environ(), device, "LD_LIBRARY_PATH="+folder)
	}
	return process.Start(m.t, cmd)
}

// take runs both ends.
func (m *meeting) take(ends, stays, ender, way string) {
	t := m.t
	t.Helper()
	listener, dialer := "127.0.0.1", "127.0.0.1"
	if m.network == "udp" {
		number := uint32(os.Getpid())<<8 + meetings.Add(1)&0xFF // other runs of this test have others
		addr := func(last byte) string {
			return netip.AddrFrom4([4]byte{127, 64 | byte(number>>15&0x3F), byte(number >> 7), byte(number<<1) | last}).String()
		}
		listener, dialer = addr(0), addr(1)
	}
	var one, other *process.Process
	if ender == "listen" {
		one = m.start(ends, listener, "listen", listener, "0", way)
		other = m.start(stays, dialer, "dial", listener, one.Prints(`(\d+)\n`), "stay")
	} else {
		other = m.start(stays, listener, "listen", listener, "0", "stay")
		one = m.start(ends, dialer, "dial", listener, other.Prints(`(\d+)\n`), way)
	}
	if m.operation == "gone" {
		other.Prints("x")
		if way == "kill" {
			one.Kill()
		} else {
			_, err := one.Stdin.Write([]byte("x"))
			require.NoError(t, err)
		}
	}
	status := other.Wait()
	require.NotEqual(t, syscall.SIGALRM, other.EndedBy(), "the other end hears nothing")
	require.NotEqual(t, exitHung, status, "the other end hears nothing: %s", other.Output())
	if m.always {
		require.Zero(t, status, other.Output())
	}
	one.Kill()
}

const (
	lastWordPatience = time.Minute
	exitHung         = 75
)

// runLastWord is one end in Go, with the arguments of lastword.c.
func runLastWord(args []string, stdout, stderr io.Writer) int {
	role, port, operation, way := args[0], args[2], args[3], args[4]
	size, err := strconv.Atoi(args[5])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastWordPatience)
	defer cancel()
	e := &lastWordEnd{operation: operation, way: way, size: size, stdout: stdout}
	err = e.run(ctx, role, args[1]+":"+port)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, err)
		return exitHung
	}
	if err != nil {
		fmt.Fprintln(stderr, way, err)
		return 1
	}
	e.leave()
	return 0
}

type lastWordEnd struct {
	operation, way string
	size           int
	stdout         io.Writer

	conn    *rdmacm.Conn
	mr      *ibverbs.MR
	receive *rdmacm.Receive
	peer    ibverbs.RemoteBuffer
}

func (e *lastWordEnd) leave() {
	switch e.way {
	case "exit", "_exit":
		os.Exit(0)
	case "exec":
		_ = syscall.Exec("/bin/true", []string{"true"}, nil)
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// placeLen is the size of struct place.
const placeLen = 16

func (e *lastWordEnd) config() *rdmacm.Config {
	return &rdmacm.Config{RetryCount: 7, Setup: func(c *rdmacm.Conn) (err error) {
		access := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteAtomic
		if e.mr, err = c.Alloc(2*e.size, access); err != nil { // the receive has the second half
			return err
		}
		e.conn = c
		var own [placeLen]byte
		binary.BigEndian.PutUint64(own[:], e.mr.Remote().Addr)
		binary.BigEndian.PutUint32(own[8:], e.mr.Remote().RKey)
		if err := c.SetPrivateData(own[:]); err != nil || e.operation == "gone" {
			return err
		}
		e.receive, err = c.PostRecv(e.mr.Sub(e.size, e.size))
		return err
	}}
}

func (e *lastWordEnd) run(ctx context.Context, role, address string) (err error) {
	if role == "listen" {
		l, err := rdmacm.Listen(ctx, address, nil)
		if err != nil {
			return err
		}
		fmt.Fprintln(e.stdout, l.Addr().Port())
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if e.operation == "reject" {
			return r.Reject([]byte("no\x00"))
		}
		e.learn(r.PrivateData())
		if _, err = r.Accept(ctx, e.config()); err != nil {
			return err
		}
	} else {
		_, err := rdmacm.Dial(ctx, address, e.config())
		if e.operation == "reject" {
			var rejected *rdmacm.RejectedError
			if !errors.As(err, &rejected) || len(rejected.PrivateData) < 3 || string(rejected.PrivateData[:3]) != "no\x00" {
				return fmt.Errorf("not rejected as it was: %w", err)
			}
			return nil
		}
		if err != nil {
			return err
		}
		e.learn(e.conn.PeerData())
	}
	if e.way == "stay" {
		return e.stay(ctx)
	}
	return e.act(ctx)
}

func (e *lastWordEnd) learn(b []byte) {
	if len(b) >= placeLen {
		e.peer = ibverbs.RemoteBuffer{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: uint64(e.size)}
	}
}

// stay hears that the other end has done it.
func (e *lastWordEnd) stay(ctx context.Context) error {
	part := e.mr.Sub(0, e.size)
	for i := range e.size {
		e.mr.Bytes()[i] = 1
	}
	switch e.operation {
	case "disconnect":
		return e.conn.Wait(ctx)
	case "disconnected", "unanswered":
		return e.conn.Shutdown(ctx)
	case "write":
		return e.conn.Write(ctx, e.peer, part)
	case "write_imm":
		return e.conn.WriteImm(ctx, e.peer, 1, part)
	case "read":
		read := make(chan error, 1)
		go func() { read <- e.conn.Read(ctx, part, e.peer) }()
		return errors.Join(<-read, e.conn.Send(ctx, part))
	case "atomic":
		return e.conn.FetchAdd(ctx, e.peer.Sub(uint64(e.size)-8, 8), 1, e.mr.Sub(0, 8))
	case "gone":
		sent := make(chan error, 1)
		go func() { sent <- e.conn.Send(ctx, part) }()
		fmt.Fprintln(e.stdout, "x")
		if err := <-sent; err == nil {
			return errors.New("it was received")
		}
		return nil
	default:
		return e.conn.Send(ctx, part)
	}
}

// act sees what the other end has done, or does something for it.
func (e *lastWordEnd) act(ctx context.Context) error {
	switch e.operation {
	case "disconnect":
		return e.conn.ID().Disconnect()
	case "disconnected":
		if err := e.conn.Wait(ctx); err != nil {
			return err
		}
		return e.conn.Close()
	case "unanswered":
		return e.conn.Wait(ctx)
	case "write", "atomic":
		last := (*uint64)(unsafe.Pointer(&e.mr.Bytes()[e.size-8]))
		for atomic.LoadUint64(last) == 0 {
			if err := e.conn.Err(); err != nil {
				return err
			}
		}
		return nil
	case "gone":
		var b [1]byte
		_, err := os.Stdin.Read(b[:])
		return err
	default:
		_, err := e.receive.Wait(ctx)
		return err
	}
}
