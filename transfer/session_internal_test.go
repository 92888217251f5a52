// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// While this end asks the peer to destroy its end of a connection, the peer
// cannot use the number of the connection again: what it then said of one would
// be taken for the other.
func TestNumbersOfLostConnections(t *testing.T) {
	s := &session{peer: new(Peer), paths: map[uint32]*path{}, fences: map[uint32][]slice{7: {{}}}}
	s.ctx, s.cancel = t.Context(), func() {}
	_, _, err := s.reservePath(7, &device{domain: new(domain)})
	require.ErrorIs(t, err, errProtocol)
	_, _, err = s.reservePath(8, &device{domain: new(domain)})
	require.NoError(t, err)
}

// Dial learns of a data connection that is down again before it looks, and
// later requests say why they have none.
func TestBriefDataConnection(t *testing.T) {
	need(t)
	ctx, ip := limited(t), host(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	e, err := New(Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	local, err := e.deviceAt(ip)
	require.NoError(t, err)
	d := &dialer{address: ln.Addr().String()}
	d.ctx, d.stop = context.WithCancel(ctx)
	p := e.newPeer(d.address, d)
	require.NoError(t, e.admit(p))
	s := newSession(p, token{}, 1, 1)
	require.NoError(t, p.begin(s))
	accept := func() *rdmacm.Conn {
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		conn, err := req.Accept(ctx, ptr(dataConfig(greeting{kind: kindData})))
		require.NoError(t, err)
		return conn
	}

	// One that fails before it is up is not one.
	dialing := cmtest.InBackground(func() error {
		conn, err := rdmacm.Dial(ctx, d.address, ptr(dataConfig(greeting{kind: kindData})))
		if err != nil {
			return err
		}
		path, _, err := s.reservePath(d.numbers.Add(1), local)
		if err != nil {
			return err
		}
		p.mu.Lock()
		path.fail(errFenced)
		p.mu.Unlock()
		return s.runPath(path, conn, greeting{})
	})
	conn := accept()
	require.Equal(t, errFenced, cmtest.Take(t, dialing, "the end of the path"))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, p.awaitPath(cmtest.Canceled(t), s), context.Canceled)

	dialing = cmtest.InBackground(func() error {
		_, err := p.connect(s, local, addrPair{ip.String(), d.address})
		return err
	})
	conn = accept()
	require.NoError(t, awaitFirst(ctx, conn, dialTimeout))
	cmtest.Soon(t, "the path is up", func() bool { return Paths(p) == 1 })
	require.NoError(t, conn.Close())
	require.NoError(t, cmtest.Take(t, dialing, "the end of the path"))
	require.Zero(t, Paths(p))
	require.NoError(t, p.awaitPath(cmtest.Canceled(t), s))
	p.mu.Lock()
	last := p.lastErr
	p.mu.Unlock()
	require.ErrorIs(t, last, syscall.ECONNRESET)

	// The next session has connections of its own.
	s.end(errEnded)
	require.NoError(t, p.begin(newSession(p, token{}, 1, 1)))
	p.session.setLastErr(nil)
	s.setLastErr(last)
	require.NoError(t, p.lastErr)
}

// Calls of Submit that wait for room end with the peer, not with the batches
// that have the room.
func TestEndOfPeerEndsReservations(t *testing.T) {
	p := lone(t).peer
	p.pending = 1
	const calls = 3
	ended := make(chan error, calls)
	for range calls {
		go func() { ended <- p.reserve(t.Context(), p.engine.config.Pending) }()
	}
	cmtest.Soon(t, "they wait", func() bool { return Reserving(p) == calls })
	require.NoError(t, p.Close())
	for range calls {
		require.ErrorIs(t, <-ended, os.ErrClosed)
	}
	require.Equal(t, 1, p.pending)
}

// Listeners and engines close all their peers at once. These peers end when all
// are being closed.
func TestPeersAreClosedTogether(t *testing.T) {
	need(t)
	for name, listen := range map[string]bool{"by the listener": true, "by the engine": false} {
		t.Run(name, func(t *testing.T) {
			e, err := New(Config{})
			require.NoError(t, err)
			ln, err := e.Listen(limited(t), netip.AddrPortFrom(host(t), 0).String(), ListenConfig{})
			require.NoError(t, err)
			const peers = 5
			var closing sync.WaitGroup
			closing.Add(peers)
			for range peers {
				d := new(dialer)
				d.ctx, d.stop = context.WithCancel(context.Background())
				d.running.Go(func() {
					<-d.ctx.Done()
					closing.Done()
					closing.Wait()
				})
				p := e.newPeer("x", d)
				require.NoError(t, e.admit(p))
				if listen {
					ln.peers <- p
				}
			}
			if listen {
				require.NoError(t, cmtest.Take(t, cmtest.InBackground(ln.Close), "the end of the listener"))
			}
			require.NoError(t, cmtest.Take(t, cmtest.InBackground(e.Close), "the end of the engine"))
		})
	}
}
