// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// These are the address of the other of the two hosts that tests/vm makes, and
// the network interface of each host that leads to the other.
const (
	farNamespace = "ns1"
	farAddress   = "198.51.100.2"
	nearLink     = "rdma2"
	farLink      = "rdma3"
)

// farJob configures the peer on the other host.
type farJob struct {
	RetryCount int
	AckTimeout time.Duration
	Size       int // of the memory that may be read and written
}

// The far peer obeys closeMessage. It sends back all other messages.
const (
	closeMessage = "close the connection"
	farMessage   = 4096
)

// far listens, serves one connection with the job, which is in JSON, and prints
// how it ended.
func far(args []string) error {
	var j farJob
	if err := json.Unmarshal([]byte(args[0]), &j); err != nil {
		return err
	}
	ctx := context.Background()
	ln, err := rdmacm.Listen(ctx, farAddress+":0", nil)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	err = j.serve(ctx, req)
	fmt.Printf("ended: %v\n", err)
	// The process must not end before CM's messages are sent.
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (j *farJob) serve(ctx context.Context, req *rdmacm.Request) error {
	var out *ibverbs.MR
	var in *rdmacm.Receiver
	conn, err := req.Accept(ctx, inPool(&rdmacm.Config{
		RetryCount: j.RetryCount, AckTimeout: j.AckTimeout,
		Setup: func(c *rdmacm.Conn) error {
			mr, err := c.Alloc(j.Size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
			if err != nil {
				return err
			}
			if out, err = c.Alloc(farMessage, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
			if in, err = c.NewReceiver(farMessage); err != nil {
				return err
			}
			data, err := json.Marshal(mr.Remote())
			if err != nil {
				return err
			}
			return c.SetPrivateData(data)
		},
	}))
	if err != nil {
		return err
	}
	defer conn.Close()
	for {
		m, err := in.Next(ctx)
		if err != nil {
			if conn.Wait(ctx) == nil {
				return nil
			}
			return err
		}
		if string(m.Data) == closeMessage {
			return conn.Close()
		}
		if err := conn.Send(ctx, out.Sub(0, copy(out.Bytes(), m.Data))); err != nil {
			return err
		}
	}
}

// startFar starts the peer on the other host, and returns its address.
func startFar(t *testing.T, job farJob) (p *process.Process, address string) {
	t.Helper()
	text, err := json.Marshal(job)
	require.NoError(t, err)
	p = startPeer(t, "far", string(text))
	return p, p.Line()
}

// lose makes each direction between the two hosts lose this percentage of
// packets.
func lose(t *testing.T, percent float64) {
	t.Helper()
	for _, prefix := range []string{"tc qdisc replace dev " + nearLink, "ip netns exec " + farNamespace + " tc qdisc replace dev " + farLink} {
		command(t, prefix+" root netem limit 100000 loss "+strconv.FormatFloat(percent, 'f', -1, 64)+"%")
	}
}

// needTwoHosts skips a test whose packets must take a way that can lose them.
// Packets from a host to itself take no such way.
func needTwoHosts(t *testing.T) {
	t.Helper()
	needDevice(t)
	if !twoHosts() {
		t.Skip("needs tests/vm's second host")
	}
	command(t, "modprobe sch_netem")
}

// lossyEnd is the dialing end of a connection to the far peer.
type lossyEnd struct {
	*rdmacm.Conn
	mr     *ibverbs.MR
	in     *rdmacm.Receiver
	remote ibverbs.RemoteBuffer
}

func dialFar(ctx context.Context, t *testing.T, address string, config rdmacm.Config, size int) *lossyEnd {
	t.Helper()
	e := &lossyEnd{}
	config.Setup = func(c *rdmacm.Conn) (err error) {
		if e.mr, err = c.Alloc(size, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		e.in, err = c.NewReceiver(farMessage)
		return err
	}
	var err error
	e.Conn, err = rdmacm.Dial(ctx, address, inPool(&config))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	require.NoError(t, json.NewDecoder(bytes.NewReader(e.PeerData())).Decode(&e.remote))
	return e
}

// stopwatch notes the times of a test's steps.
type stopwatch struct {
	last  time.Time
	times []string
}

func (w *stopwatch) lap(step string) {
	w.times = append(w.times, fmt.Sprintf("%s %v", step, time.Since(w.last).Round(time.Millisecond)))
	w.last = time.Now()
}

// Although packets are lost, connections come up, all bytes arrive, and both
// ends are told of the end.
func TestLoss(t *testing.T) {
	needTwoHosts(t)
	for _, tt := range []struct {
		percent     float64
		size, chunk int
		retries     int
		ackTimeout  time.Duration
	}{
		{percent: 0, size: 4 << 20, chunk: 64 << 10},
		{percent: 1, size: 4 << 20, chunk: 64 << 10},
		{percent: 5, size: 4 << 20, chunk: 64 << 10, ackTimeout: 16 * time.Millisecond, retries: 7},
		{percent: 20, size: 512 << 10, chunk: 1 << 10, ackTimeout: 16 * time.Millisecond, retries: 7},
	} {
		for _, last := range []string{"near", "far"} {
			t.Run(fmt.Sprintf("%v%%/closed by the %s end", tt.percent, last), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), lossPatience)
				defer cancel()
				p, address := startFar(t, farJob{RetryCount: tt.retries, AckTimeout: tt.ackTimeout, Size: tt.size})
				lose(t, tt.percent)
				defer lose(t, 0)
				w := stopwatch{last: time.Now()}
				defer func() { t.Log(strings.Join(w.times, ", ")) }()
				e := dialFar(ctx, t, address, rdmacm.Config{RetryCount: tt.retries, AckTimeout: tt.ackTimeout}, 2*tt.size)
				w.lap("connect")
				e.throughMemory(ctx, t, tt.size, tt.chunk, &w)
				e.throughMessages(ctx, t)
				w.lap("100 messages and answers")
				if last == "near" {
					require.NoError(t, e.Close())
				} else {
					n := copy(e.mr.Bytes(), closeMessage)
					require.NoError(t, e.Send(ctx, e.mr.Sub(0, n)))
					require.NoError(t, e.Wait(ctx))
				}
				w.lap("close")
				require.Equal(t, "ended: <nil>", p.Line())
				w.lap("the peer's end")
			})
		}
	}
}

// throughMemory writes to the peer's memory and reads that back.
func (e *lossyEnd) throughMemory(ctx context.Context, t *testing.T, size, chunk int, w *stopwatch) {
	t.Helper()
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(e.mr.Bytes()[:size])
	for at := 0; at < size; at += chunk {
		require.NoError(t, e.Write(ctx, e.remote.Sub(uint64(at), uint64(chunk)), e.mr.Sub(at, chunk)))
	}
	w.lap(fmt.Sprintf("write %d KiB", size>>10))
	for at := 0; at < size; at += chunk {
		require.NoError(t, e.Read(ctx, e.mr.Sub(size+at, chunk), e.remote.Sub(uint64(at), uint64(chunk))))
	}
	w.lap(fmt.Sprintf("read %d KiB", size>>10))
	require.True(t, bytes.Equal(e.mr.Bytes()[:size], e.mr.Bytes()[size:]))
}

// throughMessages sends messages, which the peer sends back.
func (e *lossyEnd) throughMessages(ctx context.Context, t *testing.T) {
	t.Helper()
	for i := range 100 {
		part := e.mr.Sub(i*1000, 1000)
		require.NoError(t, e.Send(ctx, part))
		m, err := e.in.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, part.Bytes(), m.Data)
	}
}

// lossPatience bounds steps that take longer when packets are lost.
const lossPatience = 3 * time.Minute

// A peer that vanishes in the middle of transfers ends the connection, within
// the default limits of Config.
func TestTransferToVanishedPeer(t *testing.T) {
	needTwoHosts(t)
	const size = 64 << 10
	far := "ip netns exec " + farNamespace + " "
	for _, way := range []struct {
		name, cut, mend string
		want            []ibverbs.WCStatus
	}{
		// The queue of the link may have refused a packet. Then Soft-RoCE fails
		// its own queue pair.
		{
			"packets are lost",
			"tc qdisc replace dev " + nearLink + " root netem loss 100%", "tc qdisc del dev " + nearLink + " root",
			[]ibverbs.WCStatus{ibverbs.WCRetryExceeded, ibverbs.WCFlushed},
		},
		{
			"answers are lost",
			far + "tc qdisc replace dev " + farLink + " root netem loss 100%", far + "tc qdisc del dev " + farLink + " root",
			[]ibverbs.WCStatus{ibverbs.WCRetryExceeded},
		},
		{ // which the kernel notices, and tells the queue pair
			"this link is down",
			"ip link set " + nearLink + " down", "ip link set " + nearLink + " up",
			[]ibverbs.WCStatus{ibverbs.WCFlushed},
		},
	} {
		for kind, transfer := range map[string]func(context.Context, *lossyEnd) error{
			"send":  func(ctx context.Context, e *lossyEnd) error { return e.Send(ctx, e.mr.Sub(0, 100)) },
			"write": func(ctx context.Context, e *lossyEnd) error { return e.Write(ctx, e.remote, e.mr.All()) },
			"read":  func(ctx context.Context, e *lossyEnd) error { return e.Read(ctx, e.mr.All(), e.remote) },
		} {
			t.Run(way.name+"/"+kind, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), lossPatience)
				defer cancel()
				_, address := startFar(t, farJob{Size: size})
				e := dialFar(ctx, t, address, rdmacm.Config{}, size)
				under := make(chan struct{}, 1)
				ended := inBackground(func() error {
					for {
						if err := transfer(ctx, e); err != nil {
							return err
						}
						select {
						case under <- struct{}{}:
						default:
						}
					}
				})
				// The test does not check what the peer sends back.
				if kind == "send" {
					go func() {
						for {
							if _, err := e.in.Next(ctx); err != nil {
								return
							}
						}
					}()
				}
				<-under
				start := time.Now()
				command(t, way.cut)
				defer command(t, way.mend)
				err := <-ended
				t.Logf("after %v: %v", time.Since(start).Round(time.Millisecond), err)
				failed, ok := errors.AsType[*ibverbs.WCError](err)
				require.True(t, ok, "%v", err)
				require.Contains(t, way.want, failed.Status)
				if failed.Status == ibverbs.WCRetryExceeded {
					<-e.Done()
					require.Equal(t, failed, e.Err())
				}
			})
		}
	}
}
