// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// A connection gives its places in a pool's queues to the next one.
func TestPoolPlacesComeBack(t *testing.T) {
	needPool(t)
	pool := &rsocket.Pool{Conns: 4}
	ln := listen(t, rsocket.Config{})
	dial := func() *rsocket.Conn {
		conn, err := (&rsocket.Dialer{Config: rsocket.Config{Pool: pool}}).DialContext(bounded(t), "rdma", ln.Addr().String())
		require.NoError(t, err)
		acceptOne(t, ln)
		return conn.(*rsocket.Conn)
	}
	closedWith(t, dial()) // holds the queues
	for range 8 {
		conn := dial()
		require.Equal(t, 1, rsocket.Parts(pool))
		require.NoError(t, conn.Close())
	}
}

// A period neither begins checks of the peer nor ends them.
func TestKeepAlivePeriodAlone(t *testing.T) {
	on, off := pair(t, rsocket.Config{}, rsocket.Config{KeepAlive: -1})
	for range 2 {
		require.NoError(t, on.SetKeepAlivePeriod(time.Minute))
		require.NoError(t, off.SetKeepAlivePeriod(time.Minute))
		require.True(t, rsocket.KeepsAlive(on))
		require.False(t, rsocket.KeepsAlive(off))
	}
}
