package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// When the connection is over, Recv says why, whatever an earlier one has left.
func TestRecvAfterEnd(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		end func(client, server *rdmacm.Conn) error
		is  error
	}{
		"peer": {func(_, server *rdmacm.Conn) error { return server.Close() }, syscall.ECONNRESET},
		"own":  {func(client, _ *rdmacm.Conn) error { return client.Close() }, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, d.IPv4, nil, nil)
			first, second := alloc(t, client, 8).All(), alloc(t, client, 8).All()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, err := client.Recv(ctx, first)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, tt.end(client, server))
			<-client.Done()
			soon(t, "the receive that was left ends", func() bool {
				_, err = client.Recv(bounded(t), second)
				return !errors.Is(err, syscall.EBUSY)
			})
			require.ErrorIs(t, err, tt.is)
		})
	}
}

// Who has got a connection from Setup may ask for its addresses at any time.
func TestAddrsWhileDialing(t *testing.T) {
	d := needDevice(t)
	var all sync.WaitGroup
	look := func(c *rdmacm.Conn) error {
		all.Go(func() {
			for c.RemoteAddr().String() == (netip.AddrPort{}).String() && c.PeerData() == nil && c.Err() == nil {
				runtime.Gosched()
			}
		})
		return nil
	}
	connect(t, d.IPv4, &rdmacm.Config{Setup: look}, &rdmacm.Config{Setup: look})
	all.Wait()
}

// Everything at once on tiny queues, and then the end from everywhere.
func TestStorm(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	for round := range 12 {
		config := &rdmacm.Config{SendQueue: 1, RecvQueue: 2, KeepAlive: 3 * time.Second, ManualQP: round%3 == 2, MaxInline: 16}
		ctx := bounded(t)
		ln, err := rdmacm.Listen(ctx, d.IPv4.String()+":0", nil)
		require.NoError(t, err)
		result := acceptOne(ctx, ln, config)
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), config)
		require.NoError(t, err)
		a := <-result
		require.NoError(t, a.err)
		require.NoError(t, ln.Close())
		conns := []*rdmacm.Conn{client, a.conn}
		memory := []*ibverbs.MR{alloc(t, client, 64), alloc(t, a.conn, 64)}
		var all sync.WaitGroup
		start := time.Now()
		for i := range 24 {
			all.Go(func() {
				me, mine, theirs := conns[i%2], memory[i%2], memory[1-i%2]
				for me.Err() == nil {
					c, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(8000))*time.Microsecond)
					switch rand.IntN(7) {
					case 0:
						_ = me.Write(c, theirs.Remote(), mine.Sub(0, 8))
					case 1:
						_ = me.Read(c, mine.Sub(8, 8), theirs.Remote())
					case 2:
						_ = me.Send(c, mine.Sub(0, 32))
					case 3:
						if r, err := me.PostRecv(mine.Sub(32, 32)); err == nil {
							_, _ = r.Wait(c)
						}
					case 4:
						_, _ = me.Recv(c, mine.Sub(32, 32))
					case 5:
						_ = refused(c, me, mine.Sub(16, 8))
					case 6:
						if mr, err := me.Alloc(100, 0); err == nil {
							_ = mr.Close()
						}
					}
					cancel()
				}
			})
		}
		pause := time.Duration(rand.IntN(400)) * time.Millisecond
		time.Sleep(pause)
		for i := range 8 {
			all.Go(func() {
				time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
				if i < 4 {
					if err := conns[i%2].Close(); err != nil {
						t.Error(err)
					}
				} else if err := conns[i%2].Shutdown(bounded(t)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		t.Logf("round %d: %v after %v: %v, %v", round, time.Since(start), pause, client.Err(), a.conn.Err())
	}
}
