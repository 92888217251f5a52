package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// A peer that gives up while it is being accepted has reset the connection,
// whenever it does: nothing is wrong with the configuration. Others go on.
func TestPeerDiesInHandshake(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	for _, mode := range []int{0, 2} {
		for name, accept := range map[string]func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error){
			"before Accept": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				dies()
				awaitGone(t, req.Event().ID)
				return req.Accept(bounded(t), config)
			},
			"in Setup": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				config.Setup = func(c *rdmacm.Conn) error {
					dies()
					awaitGone(t, c.ID())
					return nil
				}
				return req.Accept(bounded(t), config)
			},
			"after the acceptance": func(req *rdmacm.Request, dies func(), config *rdmacm.Config) (*rdmacm.Conn, error) {
				go func() { dies() }()
				return req.Accept(bounded(t), config)
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
				_, err = accept(req, dies, &rdmacm.Config{ManualQP: modes[mode].manualServer})
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NotErrorIs(t, err, syscall.EINVAL)
				t.Log(err)
				require.NoError(t, bystander.Err())
				require.NoError(t, other.Err())
			})
		}
	}
}

// awaitGone waits until the kernel knows that the peer of a request is gone,
// which it says nothing of before the request is accepted.
func awaitGone(t *testing.T, id *rdmacm.ID) {
	t.Helper()
	soon(t, "the end", func() bool {
		_, _, err := id.InitQPAttr(ibverbs.QPStateInit)
		return errors.Is(err, syscall.EINVAL)
	})
}

// A peer whose request was accepted, and which does not go on, costs its own
// handshake, after a time that does not depend on the caller. So does one that
// does not answer a request.
func TestHalfOpenHandshakes(t *testing.T) {
	const limit = 500 * time.Millisecond
	d := needDevice(t)
	noKernelLeaks(t, d)
	ln := listenOn(t, d.IPv4)
	config := &rdmacm.Config{HandshakeTimeout: limit}
	asker := startPeer(t, "asker", ln.Addr().String())
	require.Equal(t, "ready", asker.hear(patience))
	asker.tell()
	require.Equal(t, "asked", asker.hear(patience))
	req, err := ln.Accept(t.Context())
	require.NoError(t, err)
	start := time.Now()
	_, err = req.Accept(t.Context(), config)
	t.Logf("the acceptor gave up after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.ErrorContains(t, err, "HandshakeTimeout")
	require.Equal(t, rdmacm.EventConnectResponse.String(), asker.hear(patience))
	require.Equal(t, rdmacm.EventRejected.String(), asker.hear(patience), "it is told")

	start = time.Now()
	_, err = rdmacm.Dial(t.Context(), ln.Addr().String(), config)
	t.Logf("the dialer gave up after %v: %v", time.Since(start), err)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	req, err = ln.Accept(t.Context())
	require.NoError(t, err)
	_, err = req.Accept(t.Context(), config)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	connect(t, d.IPv4, nil, nil)
}

// A Setup that closes its own connection ends the attempt, and leaves nothing
// behind that events would go to.
func TestSetupCloses(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	keeps, other := connect(t, d.IPv4, nil, nil) // so that the dispatcher stays
	handlers := rdmacm.Handlers()
	closing := &rdmacm.Config{Setup: (*rdmacm.Conn).Close}
	_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), closing)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "set up the connection")
	require.Equal(t, handlers, rdmacm.Handlers())
	result := acceptOne(bounded(t), ln, closing)
	_, err = rdmacm.Dial(bounded(t), ln.Addr().String(), nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, take(t, result, "the result").err, os.ErrClosed)
	soon(t, "handlers", func() bool { return rdmacm.Handlers() == handlers })

	datagrams, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(d.IPv4, 0).String(), nil)
	require.NoError(t, err)
	_, err = rdmacm.DialDatagram(bounded(t), datagrams.Addr().String(), &rdmacm.DatagramConfig{Setup: (*rdmacm.DatagramConn).Close})
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, datagrams.Close())
	require.Equal(t, handlers, rdmacm.Handlers())
	require.NoError(t, errors.Join(keeps.Err(), other.Err()))
}

// Requests that nobody accepts, and that are given up, fill a listener's
// backlog; a limit holds for those that are served.
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
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
			dialed <- err
		}()
	}
	for range limit {
		take(t, begun, "a request")
	}
	soon(t, "the others wait", func() bool { return rdmacm.Waiting(ln) == clients-limit })
	require.Empty(t, begun)
	finish <- struct{}{}
	take(t, begun, "the next one")
	require.Equal(t, clients-limit-1, rdmacm.Waiting(ln))
	require.NoError(t, ln.Close())
	close(finish)
	require.ErrorIs(t, take(t, serving, "the end"), os.ErrClosed)
	for range clients {
		require.ErrorIs(t, take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
	}
}
