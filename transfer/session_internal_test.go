// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
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
