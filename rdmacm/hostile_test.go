// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// A peer that gives up during the handshake has reset the connection, at
// whatever step. The error does not blame the configuration, and other
// connections go on.
func TestPeerDiesInHandshake(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	for _, mode := range []int{0, 2} {
		for name, accept := range map[string]func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error){
			"before Accept": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				dies()
				awaitGone(t, req.Event().ID)
				return req.Accept(bounded(t), inPool(config))
			},
			"in Setup": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				config.Setup = func(c *rdmacm.Conn) error {
					dies()
					awaitGone(t, c.ID())
					return nil
				}
				return req.Accept(bounded(t), inPool(config))
			},
			"after the acceptance": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				go func() { dies() }()
				return req.Accept(bounded(t), inPool(config))
			},
		} {
			t.Run(modes[mode].name+"/"+name, func(t *testing.T) {
				ctx := bounded(t)
				bystander, other := connect(t, d.IPv4, nil, nil)
				ln := listenOn(t, d.IPv4)
				ch, ids, err := resolveMany(ln.Addr().String(), 1)
				require.NoError(t, err)
				defer func() { require.NoError(t, ch.Close()) }()
				defer func() { require.NoError(t, ids[0].Close()) }()
				require.NoError(t, ids[0].Connect(rdmacm.ConnParam{QPNum: newQP()}))
				req, err := ln.Accept(ctx)
				require.NoError(t, err)
				dies := func() {
					if name == "after the acceptance" {
						next(t, ch, rdmacm.EventConnectResponse)
					}
					require.NoError(t, ids[0].Close())
				}
				_, err = accept(req, dies, &rdmacm.Config{Queues: manual(modes[mode].manualServer)})
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NotErrorIs(t, err, syscall.EINVAL)
				t.Log(err)
				require.NoError(t, bystander.Err())
				require.NoError(t, other.Err())
			})
		}
	}
}

// awaitGone waits until the kernel knows that the peer of a request is gone.
// The kernel says nothing about that before the request is accepted.
func awaitGone(t *testing.T, id *rdmacm.ID) {
	t.Helper()
	soon(t, "the end", func() bool {
		_, _, err := id.InitQPAttr(ibverbs.QPStateInit)
		return errors.Is(err, syscall.EINVAL)
	})
}

// A peer does not go on after its request was accepted. It loses its own
// handshake, after a time that does not depend on the caller's context. The
// same holds for a peer that does not answer a request.
func TestHalfOpenHandshakes(t *testing.T) {
	const limit = 2 * time.Second // a busy machine sends a request within it
	d := needDevice(t)
	noKernelLeaks(t, d)
	ln := listenOn(t, d.IPv4)
	config := &rdmacm.Config{HandshakeTimeout: limit}
	asker := startPeer(t, "asker", ln.Addr().String())
	require.Equal(t, "ready", asker.Line())
	tell(t, asker)
	require.Equal(t, "asked", asker.Line())
	req, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	start := time.Now()
	_, err = req.Accept(bounded(t), inPool(config))
	t.Logf("the acceptor gave up after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.ErrorContains(t, err, "HandshakeTimeout")
	require.Equal(t, rdmacm.EventConnectResponse.String(), asker.Line())
	require.Equal(t, rdmacm.EventRejected.String(), asker.Line(), "it is told")

	start = time.Now()
	_, err = rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(config))
	t.Logf("the dialer gave up after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	req, err = ln.Accept(bounded(t))
	require.NoError(t, err)
	_, err = req.Accept(bounded(t), inPool(config))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	connect(t, d.IPv4, nil, nil)
}

// A Setup that closes its own connection ends the attempt. No handler of events
// is left behind.
func TestSetupCloses(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	keeps, other := connect(t, d.IPv4, nil, nil) // so that the dispatcher stays
	handlers := rdmacm.Handlers()
	closing := &rdmacm.Config{Setup: (*rdmacm.Conn).Close}
	_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(closing))
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "set up the connection")
	require.Equal(t, handlers, rdmacm.Handlers())
	result := acceptOne(bounded(t), ln, closing)
	_, err = rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, cmtest.Take(t, result, "the result").err, os.ErrClosed)
	soon(t, "handlers", func() bool { return rdmacm.Handlers() == handlers })

	require.NoError(t, errors.Join(keeps.Err(), other.Err()))
}

// The same is true of datagrams.
func TestDatagramSetupCloses(t *testing.T) {
	d := needDevice(t)
	ln := listenDatagram(t, d.IPv4)
	connect(t, d.IPv4, nil, nil) // so that the dispatcher stays
	handlers := rdmacm.Handlers()
	_, err := rdmacm.DialDatagram(bounded(t), ln.Addr().String(), &rdmacm.DatagramConfig{Setup: (*rdmacm.DatagramConn).Close})
	require.ErrorIs(t, err, os.ErrClosed)
	require.Equal(t, handlers, rdmacm.Handlers())
}

// Requests that are given up before Accept fill a listener's backlog. A limit
// holds for requests that are served.
func TestServeLimit(t *testing.T) {
	const limit, clients = 2, 5
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), &rdmacm.ListenConfig{MaxServed: limit})
	require.NoError(t, err)
	begun, finish := make(chan struct{}, clients), make(chan struct{})
	serving := inBackground(func() error {
		return ln.Serve(ctx, func(context.Context, *rdmacm.Request) {
			begun <- struct{}{}
			<-finish
		})
	})
	dialed := make(chan error, clients)
	for range clients {
		go func() {
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
			dialed <- err
		}()
	}
	for range limit {
		cmtest.Take(t, begun, "a request")
	}
	soon(t, "the others wait", func() bool { return rdmacm.Waiting(ln) == clients-limit })
	require.Empty(t, begun)
	finish <- struct{}{}
	cmtest.Take(t, begun, "the next one")
	require.Equal(t, clients-limit-1, rdmacm.Waiting(ln))
	require.NoError(t, ln.Close())
	close(finish)
	require.ErrorIs(t, cmtest.Take(t, serving, "the end"), os.ErrClosed)
	for range clients {
		require.ErrorIs(t, cmtest.Take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
	}
}

// A peer writes any number of bytes with immediate data. A receive counts only
// the bytes in its segments.
func TestHostileWriteImm(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Immediate)
	for _, size := range []int{0, 1, 15, 16, 17, 1000, 1 << 16} {
		client, server := connect(t, d.IPv4, nil, nil)
		here, there := alloc(t, client, 1<<16), alloc(t, server, 1<<16)
		small := alloc(t, server, 16)
		ctx := bounded(t)

		received, err := server.PostRecv(small.All())
		require.NoError(t, err)
		require.NoError(t, client.WriteImm(ctx, there.Remote(), 9, here.Sub(0, size)))
		n, err := received.Wait(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "%d bytes", size)
		written, isWrite := received.Written()
		require.True(t, isWrite)
		require.Equal(t, size, written)

		sent := make(chan error, 1)
		each(sent, func() error { return client.WriteImm(ctx, there.Remote(), 9, here.Sub(0, size)) })
		n, err = server.Recv(ctx, small.All())
		require.NoError(t, err)
		require.Empty(t, small.Bytes()[:n])
		require.NoError(t, <-sent)
	}
}

// What a peer may not do ends the connection, even at an end that only waits.
func TestHostileRequests(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		attack func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error
		want   error
	}{
		"write with a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.Write(ctx, there, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"write behind the memory": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.Addr, there.Len = there.Addr+there.Len-4, 8 // Sub would refuse it
			return client.Write(ctx, there, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"write with immediate and a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.WriteImm(ctx, there, math.MaxUint32, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"read with a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.Read(ctx, here.Sub(0, 8), there)
		}, ibverbs.WCRemoteAccess},
		"atomic without the right": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			return client.FetchAdd(ctx, there, 1, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"message longer than the receive": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, _ ibverbs.RemoteBuffer) error {
			err := client.Send(ctx, here.Sub(0, 17))
			if errors.Is(err, ibverbs.WCRemoteOperation) { // Soft-RoCE
				return ibverbs.WCRemoteInvalidRequest
			}
			return err
		}, ibverbs.WCRemoteInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "atomic") {
				d.Have(t, testdevice.Atomics)
			}
			if strings.HasPrefix(name, "write with immediate") {
				d.Have(t, testdevice.Immediate)
			}
			if name == "message longer than the receive" {
				needOwnReceives(t)
			}
			ctx := bounded(t)
			bystander, other := connect(t, d.IPv4, nil, nil)
			client, server := connect(t, d.IPv4, nil, nil)
			here, there := alloc(t, client, 64), alloc(t, server, 64)
			// The server has receives as usual, but no goroutine waits for
			// them.
			small := alloc(t, server, 16)
			received, err := server.PostRecv(small.All())
			require.NoError(t, err)

			require.ErrorIs(t, tt.attack(ctx, client, here, there.Remote()), tt.want)
			select {
			case <-server.Done():
			case <-ctx.Done():
				t.Fatal("the server does not notice")
			}
			t.Log(server.Err())
			require.Error(t, server.Wait(ctx))
			require.Equal(t, server.Err(), server.Wait(ctx))
			_, err = received.Wait(ctx)
			require.Error(t, err)
			_, err = server.PostRecv(small.All())
			require.Equal(t, server.Err(), err)
			require.Equal(t, server.Err(), server.Send(ctx))

			// Other connections go on.
			_, err = other.PostRecv()
			require.NoError(t, err)
			require.NoError(t, bystander.Send(ctx))
		})
	}
}

// More messages than receives come. The messages wait, and none is lost.
func TestHostileFlood(t *testing.T) {
	d := needDevice(t)
	const messages = 100
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 32}, &rdmacm.Config{RecvQueue: 2})
	ctx := bounded(t)
	sent := make(chan error, messages)
	for range messages {
		each(sent, func() error { return client.Send(ctx) })
	}
	for range messages {
		_, err := server.Recv(ctx)
		require.NoError(t, err)
	}
	for range messages {
		require.NoError(t, <-sent)
	}
	require.NoError(t, server.Err())
}

// No goroutine waits on this end, and its requests are under way. It notices
// that the peer has gone.
func TestHostileSilence(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	require.ErrorIs(t, client.Send(short(t)), context.DeadlineExceeded, "the peer has no receive")
	require.NoError(t, server.Close())
	awaitEnd(t, client)
	require.ErrorIs(t, client.Err(), syscall.ECONNRESET)
}

// With one receive, the peer need not wait until the program asks for the next
// message.
func TestReceiverOfOne(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, _, r := receiving(t, d.IPv4, 1, 8)
	out := alloc(t, client, 8)
	for i := range 3 {
		out.Bytes()[0] = byte(i)
		require.NoError(t, client.Send(ctx, out.Sub(0, 1)), "before the message is asked for")
		m, err := r.Next(ctx)
		require.NoError(t, err)
		out.Bytes()[0] = byte(100 + i)
		require.NoError(t, client.Send(ctx, out.Sub(0, 1)), "while the program has a message")
		require.Equal(t, []byte{byte(i)}, m.Data, "which does not change")
		m, err = r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(100 + i)}, m.Data)
	}
}

// Small messages go inline. Their bytes need not be registered.
func TestInlineUpToTheLimit(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Inline(32))
	ctx := bounded(t)
	client, server, r := receiving(t, d.IPv4, 4, 64)
	_ = server
	require.ErrorIs(t, client.Send(ctx, ibverbs.InlineBytes([]byte("no"))), syscall.EINVAL)
	ln := listenOn(t, d.IPv4)
	accepted := acceptOne(ctx, ln, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		r, err = c.NewReceiver(64)
		return err
	}})
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{MaxInline: 32}))
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	a := <-accepted
	require.NoError(t, a.err)
	defer func() { require.NoError(t, a.conn.Close()) }()
	for range 20 {
		require.NoError(t, client.Send(ctx, ibverbs.InlineBytes([]byte("hello"))))
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, "hello", string(m.Data))
	}
	require.ErrorIs(t, client.Send(ctx, ibverbs.InlineBytes(make([]byte, 33))), syscall.EINVAL)
	mr := alloc(t, client, 64)
	require.NoError(t, client.Send(ctx, mr.All()), "too long, and registered")
	_, err = r.Next(ctx)
	require.NoError(t, err)
}

// Close tells the peer even if the message of the end is lost. The system sends
// it again after Close has returned, some 4 s later. The peer does not check
// whether this end is there.
func TestCloseOverLossyLink(t *testing.T) {
	needTwoHosts(t)
	server := startPeer(t, "server", netip.AddrPortFrom(there, 0).String(), "-1s")
	address := server.Line()
	for name, tt := range map[string]struct {
		config rdmacm.Config
		end    func(*rdmacm.Conn) error
	}{
		"Close":    {rdmacm.Config{}, (*rdmacm.Conn).Close},
		"Shutdown": {rdmacm.Config{}, func(c *rdmacm.Conn) error { return c.Shutdown(context.Background()) }},
		"manual":   {rdmacm.Config{Queues: new(rdmacm.VerbsQP)}, (*rdmacm.Conn).Close},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := rdmacm.Dial(bounded(t), address, inPool(&tt.config))
			require.NoError(t, err)
			require.Equal(t, "up", server.Line())
			mend := cut(t)
			start := time.Now()
			ended := make(chan time.Duration, 1)
			go func() {
				if err := tt.end(conn); err != nil {
					t.Error(err)
				}
				ended <- time.Since(start)
			}()
			lost(t)
			mend()
			require.Equal(t, "over: <nil>", server.Line())
			t.Logf("%s took %v; the peer heard of it after %v", name, cmtest.Take(t, ended, name), time.Since(start))
		})
	}
}

// A peer whose program does not answer holds the ID no longer than Linger.
// Everything else is given back at once.
func TestLingerIsBounded(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	noKernelLeaks(t, d)
	for name, tt := range map[string]struct {
		linger time.Duration
		is     error
	}{
		"bounded": {300 * time.Millisecond, syscall.ETIMEDOUT},
		"none":    {-1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ln := newEnd(t)
			require.NoError(t, ln.id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
			require.NoError(t, ln.id.Listen(1))
			asked := inBackground(func() error {
				req := next(t, ln.ch, rdmacm.EventConnectRequest).ID
				t.Cleanup(func() { require.NoError(t, req.Close()) })
				return req.Accept(rdmacm.ConnParam{QPNum: newQP()})
			})
			conn, err := rdmacm.Dial(bounded(t), ln.id.LocalAddr().String(), inPool(&rdmacm.Config{Linger: tt.linger}))
			require.NoError(t, err)
			require.NoError(t, cmtest.Take(t, asked, "the acceptance"))
			before := kernelObjects(t, d.Name)
			require.NoError(t, conn.Close())
			after := kernelObjects(t, d.Name)
			for _, kind := range []string{"qp", "cq", "pd"} {
				require.Equal(t, before[kind]-1, after[kind], kind)
			}
			require.ErrorIs(t, conn.ID().Disconnect(), os.ErrClosed)
			err = conn.Shutdown(bounded(t))
			require.ErrorIs(t, err, tt.is)
			soon(t, "the id is given back", func() bool { return kernelObjects(t, d.Name)["cm_id"] == before["cm_id"]-1 })
		})
	}
}

// Shutdown returns when the peer has answered, or has itself ended the
// connection.
func TestShutdown(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	require.NoError(t, client.Shutdown(bounded(t)))
	require.NoError(t, server.Wait(bounded(t)))
	require.NoError(t, server.Shutdown(bounded(t)))
	require.NoError(t, server.Shutdown(bounded(t)), "again")
	require.NoError(t, server.Close())
}

// An idle end notices when its peer's queue pair stops answering, as it does
// when the peer's host is gone. It does not take a peer without receives for a
// peer that is gone.
func TestKeepAlive(t *testing.T) {
	d := needDevice(t)
	var forever error = syscall.ETIMEDOUT // so rxe understands 7
	if testdevice.Soft() {
		forever = ibverbs.WCRetryExceeded
	}
	for name, tt := range map[string]struct {
		retries int
		is      error
	}{
		"retried for ever":  {7, forever},
		"retried only once": {1, ibverbs.WCRetryExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			const often = 500 * time.Millisecond
			ln := listenOn(t, d.IPv4)
			result := acceptOne(bounded(t), ln, &rdmacm.Config{KeepAlive: -1})
			client, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(&rdmacm.Config{
				KeepAlive: often, RetryCount: tt.retries, AckTimeout: time.Millisecond, SendQueue: 1,
			}))

			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			a := cmtest.Take(t, result, "the server's end")
			require.NoError(t, a.err)
			server := a.conn
			defer func() { require.NoError(t, server.Close()) }()
			for range 5 {
				rdmacm.CheckPeer(client)
				require.NoError(t, client.Err(), "the peer is there, and has posted no receive")
			}
			start := time.Now()
			require.NoError(t, server.QP().SetError())
			cmtest.Take(t, client.Done(), "the end")
			t.Logf("after %v: %v", time.Since(start), client.Err())
			require.ErrorIs(t, client.Err(), tt.is)
			_, err = client.Recv(bounded(t))
			require.ErrorIs(t, err, tt.is, "why it is over")
		})
	}
}

// On an iWARP device that lets the accepting end send only after the peer, that
// end checks the peer only after the peer's first message.
func TestKeepAliveClientFirst(t *testing.T) {
	if !testdevice.LimitedTo(t, "iwarp") {
		return
	}
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{KeepAlive: 500 * time.Millisecond, AckTimeout: time.Millisecond, RetryCount: 1})
	rdmacm.CheckPeer(server)
	require.NoError(t, server.Err(), "nothing has come")
	received := inBackground(func() error { _, err := server.Recv(ctx); return err })
	require.NoError(t, client.Send(ctx))
	require.NoError(t, <-received)
	rdmacm.CheckPeer(server)
	require.NoError(t, server.Err(), "the peer is there")
	require.NoError(t, client.QP().SetError())
	cmtest.Take(t, server.Done(), "the end")
	require.ErrorIs(t, server.Err(), ibverbs.WCRetryExceeded)
}

// A peer that is a C program answers, too, and does not notice the check.
func TestKeepAliveOfCPeer(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	server := exec.Command("rping", "-s", "-a", d.IPv4.String(), "-p", "7998")
	require.NoError(t, server.Start())
	defer func() { _ = server.Wait() }() // it fails, as the client says nothing
	defer func() { _ = server.Process.Kill() }()
	var client *rdmacm.Conn
	soon(t, "rping listens", func() (ok bool) {
		var err error
		client, err = rdmacm.Dial(bounded(t), netip.AddrPortFrom(d.IPv4, 7998).String(), inPool(nil))
		return err == nil
	})
	for range 5 {
		rdmacm.CheckPeer(client)
		require.NoError(t, client.Err())
	}
	require.NoError(t, client.Shutdown(bounded(t)))
}

// A send that waits for the peer's receive says nothing about whether the peer
// is there.
func TestKeepAliveBehindSend(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{KeepAlive: 5 * time.Second}, nil)
	ctx := bounded(t)
	sent := inBackground(func() error { return client.Send(ctx) })
	soon(t, "the send", func() bool { return rdmacm.Sending(client) > 0 })
	for range 10 {
		rdmacm.CheckPeer(client)
		require.NoError(t, client.Err())
	}
	_, err := server.Recv(ctx)
	require.NoError(t, err)
	require.NoError(t, cmtest.Take(t, sent, "the send's end"))
	require.NoError(t, client.Err())
}

// When the way to the peer is cut, both idle ends notice, each without the
// other.
func TestIdleEndsNoticeThatPeerVanished(t *testing.T) {
	const often = time.Second
	needTwoHosts(t)
	ctx := bounded(t)
	server := startPeer(t, "server", netip.AddrPortFrom(there, 0).String(), often.String())
	conn, err := rdmacm.Dial(ctx, server.Line(), inPool(&rdmacm.Config{KeepAlive: often}))
	require.NoError(t, err)
	require.Equal(t, "up", server.Line())
	mend := cut(t)
	start := time.Now()
	cmtest.Take(t, conn.Done(), "the end here")
	t.Logf("noticed here after %v: %v", time.Since(start), conn.Err())
	require.ErrorIs(t, conn.Err(), syscall.ETIMEDOUT)
	require.Equal(t, "over: peer unreachable: connection timed out", server.Line())
	t.Logf("and there after %v", time.Since(start))
	mend()
	require.NoError(t, conn.Shutdown(bounded(t)))
}

// A flood of refused requests holds up no other connection. Connections of
// other listeners come and go meanwhile, and their ends hear of that.
func TestFloodedListener(t *testing.T) {
	requests, backlog := 1000, 128
	d := needDevice(t)
	needGuest(t)
	if twoHosts() {
		d = testdevice.Device{Name: "rxe2", IPv4: netip.MustParseAddr("198.51.100.1")}
		// librdmacm keeps what it opens for this listener.
		require.NoError(t, listenOn(t, d.IPv4).Close())
	} else if testdevice.LinuxSince(t, 6, 17) {
		// A device that waits for 128 answers sends no more requests and no
		// ends of connections. Here the flood and all others share one device.
		requests, backlog = 100, 64
	}
	noKernelLeaks(t, d)
	setMaxBacklog(t, "4096") // of requests that wait to be read
	flooded, err := rdmacm.Listen(t.Context(), d.IPv4.String()+":0", &rdmacm.ListenConfig{Backlog: backlog})
	require.NoError(t, err)
	defer func() { require.NoError(t, flooded.Close()) }()
	flood := startPeer(t, "flood", flooded.Addr().String(), strconv.Itoa(requests))
	require.Equal(t, "ready", flood.Line())
	quiet := listenOn(t, d.IPv4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	tell(t, flood)
	soon(t, "the flood", func() bool { return rdmacm.Waiting(flooded) == backlog })
	patient := &rdmacm.Config{HandshakeTimeout: patience} // on a busy machine, an emulated guest is slow
	var ups, ends []time.Duration
	for !strings.Contains(flood.Stdout(), "refused") {
		start := time.Now()
		result := acceptOne(ctx, quiet, patient)
		client, err := rdmacm.Dial(bounded(t), quiet.Addr().String(), inPool(patient))
		require.NoError(t, err)
		server := cmtest.Take(t, result, "the server's end")
		require.NoError(t, server.err)
		ups = append(ups, time.Since(start))
		start = time.Now()
		require.NoError(t, client.Close())
		cmtest.Take(t, server.conn.Done(), "the end")
		ends = append(ends, time.Since(start))
		require.NoError(t, server.conn.Close())
		if rdmacm.Refusing(flooded) == 0 && len(ups) > 10 {
			require.NoError(t, flooded.Close()) // refuses those that wait for Accept
		}
	}
	t.Log(flood.Line())
	slices.Sort(ups)
	slices.Sort(ends)
	last := len(ups) - 1
	t.Logf("meanwhile %d connections were made in %v, at most %v, and their ends heard of after %v, at most %v",
		len(ups), ups[last/2], ups[last], ends[last/2], ends[last])
}

// Every listener has a channel of its own. Work on its requests delays neither
// other connections nor its own earlier ones.
func TestListenersHoldUpNobody(t *testing.T) {
	d := needDevice(t)
	ip := netip.AddrPortFrom(d.IPv4, 0)
	b := cmtest.NewBench(t, d)
	for name, listen := range map[string]func(t *testing.T) (ln any, pair func() (client, server func() error, ended func())){
		"Listener": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln := listenOn(t, d.IPv4)
			return ln, func() (client, server func() error, ended func()) {
				result := acceptOne(bounded(t), ln, nil)
				conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
				require.NoError(t, err)
				a := cmtest.Take(t, result, "the server's end")
				require.NoError(t, a.err)
				return conn.Close, a.conn.Close, func() { cmtest.Take(t, a.conn.Done(), "the end") }
			}
		},
		"HandledID": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			up, ended := make(chan *handled.ID, 1), make(chan struct{})
			ln := b.Listen(1, b.Accepting(func(id *handled.ID, ev *rdmacm.Event) error {
				switch ev.Type {
				case rdmacm.EventEstablished:
					up <- id
				case rdmacm.EventDisconnected:
					close(ended)
				}
				return nil
			}))
			return ln.ID(), func() (client, server func() error, end func()) {
				conn, err := rdmacm.Dial(bounded(t), ln.ID().LocalAddr().String(), inPool(nil))
				require.NoError(t, err)
				server = func(id *handled.ID) func() error {
					return func() error { return id.Shutdown(bounded(t)) }
				}(cmtest.Take(t, up, "the server's end"))
				return conn.Close, server, func() { cmtest.Take(t, ended, "the end") }
			}
		},
		"Endpoint": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
			return ln.ID(), func() (client, server func() error, ended func()) {
				var request *endpoint.Endpoint
				accepted := inBackground(func() (err error) {
					if request, err = ln.GetRequest(bounded(t)); err != nil {
						return err
					}
					return request.Accept(bounded(t), rdmacm.ConnParam{})
				})
				conn, err := rdmacm.Dial(bounded(t), ln.ID().LocalAddr().String(), inPool(nil))
				require.NoError(t, err)
				require.NoError(t, cmtest.Take(t, accepted, "the server's end"))
				return conn.Close, request.Close, func() {
					ev, err := request.Next(bounded(t))
					require.NoError(t, err)
					require.Equal(t, rdmacm.EventDisconnected, ev.Type)
				}
			}
		},
		"DatagramListener": func(t *testing.T) (any, func() (client, server func() error, ended func())) {
			ln, err := rdmacm.ListenDatagram(bounded(t), ip.String(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ln.Close()) })
			return ln, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ln, pair := listen(t)
			client, server, ended := func() error { return nil }, func() error { return nil }, func() {}
			if pair != nil {
				client, server, ended = pair()
			}
			release := rdmacm.HoldEvents(ln)
			held := true
			defer func() {
				if held {
					release()
				}
			}()
			one, other := connect(t, d.IPv4, nil, nil)
			require.NoError(t, one.Close())
			cmtest.Take(t, other.Done(), "the end of another connection")
			require.NoError(t, client())
			ended()
			require.NoError(t, server())
			release()
			held = false
		})
	}
}

// there is the address of the other one of the guest's two hosts.
var there = netip.MustParseAddr(farAddress)

// playServer accepts connections at an address, with a KeepAlive, and prints
// how each ends.
func playServer(args []string) error {
	ctx := context.Background()
	often, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	ln, err := rdmacm.Listen(ctx, args[0], nil)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			conn, err := req.Accept(ctx, inPool(&rdmacm.Config{KeepAlive: often}))
			if err == nil {
				fmt.Println("up")
				err = errors.Join(conn.Wait(ctx), conn.Close())
			}
			fmt.Println("over:", err)
		}()
	}
}

// playAsker asks for a connection and does not go on with the handshake.
func playAsker(args []string) error {
	in := bufio.NewScanner(os.Stdin)
	ch, ids, err := resolveMany(args[0], 1)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in.Scan()
	if err := ids[0].Connect(rdmacm.ConnParam{QPNum: newQP()}); err != nil {
		return err
	}
	fmt.Println("asked")
	for {
		ev, err := ch.Next(context.Background())
		if err != nil {
			return err
		}
		fmt.Println(ev.Type)
	}
}

// playFlood asks for many connections at once and prints when all were refused.
func playFlood(args []string) error {
	in := bufio.NewScanner(os.Stdin)
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ch, ids, err := resolveMany(args[0], n)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in.Scan()
	start := time.Now()
	go func() {
		for _, id := range ids {
			if err := id.Connect(rdmacm.ConnParam{QPNum: newQP()}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	for refused := range n {
		if ev, err := ch.Next(context.Background()); err != nil || ev.Type != rdmacm.EventRejected {
			return fmt.Errorf("%d: %v, %w", refused, ev, err)
		}
	}
	fmt.Println("refused", time.Since(start))
	in.Scan()
	return nil
}

// resolveMany returns ids that have resolved an address.
func resolveMany(address string, n int) (*rdmacm.EventChannel, []*rdmacm.ID, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, nil, err
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, nil, err
	}
	ids := make([]*rdmacm.ID, n)
	for i := range ids {
		if ids[i], err = ch.NewID(rdmacm.PortSpaceTCP); err != nil {
			return nil, nil, err
		}
		if err := ids[i].ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
			return nil, nil, err
		}
		if _, err := ch.Next(context.Background()); err != nil {
			return nil, nil, err
		}
		if err := ids[i].ResolveRoute(time.Second); err != nil {
			return nil, nil, err
		}
		if ev, err := ch.Next(context.Background()); err != nil || ev.Type != rdmacm.EventRouteResolved {
			return nil, nil, fmt.Errorf("%v, %w", ev, err)
		}
	}
	return ch, ids, nil
}

// cut drops all packets from this host to the other one until mend is called.
func cut(t testing.TB) (mend func()) {
	t.Helper()
	guest.Run(t, "tc", "qdisc", "replace", "dev", "rdma2", "root", "netem", "loss", "100%")
	mended := false
	mend = func() {
		if !mended {
			mended = true
			guest.Run(t, "tc", "qdisc", "del", "dev", "rdma2", "root")
		}
	}
	t.Cleanup(mend)
	return mend
}

// lost waits until cut has dropped a packet.
func lost(t testing.TB) {
	t.Helper()
	soon(t, "a packet is lost", func() bool {
		_, after, _ := strings.Cut(command(t, "tc -s qdisc show dev rdma2"), "dropped ")
		return after != "" && !strings.HasPrefix(after, "0,")
	})
}
