package rdmacm_test

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// pairs are connections of this process with itself.
type pairs struct {
	ln    *rdmacm.Listener
	conns []*rdmacm.Conn
}

// connectMany makes n connections, with data exchanged on each.
func connectMany(t *testing.T, address string, n int, config *rdmacm.Config) *pairs {
	t.Helper()
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, address, nil)
	require.NoError(t, err)
	p := &pairs{ln: ln}
	for range n {
		result := acceptOne(ctx, ln, config)
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), config)
		require.NoError(t, err)
		a := <-result
		require.NoError(t, a.err)
		message, err := a.conn.PostRecv()
		require.NoError(t, err)
		require.NoError(t, client.Send(ctx))
		_, err = message.Wait(ctx)
		require.NoError(t, err)
		p.conns = append(p.conns, client, a.conn)
	}
	return p
}

// waitForRemoval waits until every connection is over, and whoever waits on one.
func (p *pairs) waitForRemoval(t *testing.T) {
	t.Helper()
	ctx := bounded(t)
	removed := 0
	for _, c := range p.conns {
		select {
		case <-c.Done():
		case <-ctx.Done():
			require.FailNow(t, "still up")
		}
		// Of two ends, the one that hears of it first tells the other.
		if err := c.Err(); !isReset(err) {
			require.ErrorIs(t, err, syscall.ENODEV)
			removed++
		}
	}
	require.GreaterOrEqual(t, removed, len(p.conns)/2)
	t.Logf("%d of %d ends heard of the removal, the others of the peer's end", removed, len(p.conns))
}

func TestDeviceIsRemoved(t *testing.T) {
	needGuest(t)
	ownInterface(t)
	for round := range 2 { // the second one in the place of the first
		address := ownDevice(t, ownNetDev)
		p := connectMany(t, address, 50, nil)
		begin := time.Now()
		removal := start(t, "rdma", "link", "delete", ownName)
		p.waitForRemoval(t)
		t.Log("round", round, time.Since(begin))
		_, err := p.ln.Accept(bounded(t))
		require.ErrorIs(t, err, syscall.ENODEV)
		for _, c := range p.conns {
			require.NoError(t, c.Close())
		}
		select {
		case <-removal:
			t.Error("removed under the listener")
		default:
		}
		require.NoError(t, p.ln.Close())
		select {
		case err := <-removal:
			require.NoError(t, err)
		case <-time.After(patience):
			require.FailNow(t, "the device is still in use")
		}
		require.Nil(t, find(t, ownName))
	}
}
var _ = ibverbs.ErrNoDevice
var _ net.Addr
var _ sync.Mutex
var _ context.Context
func isReset(err error) bool { return err != nil && err.Error() == "disconnected" }
