package rdmacm_test

import (
	"context"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// serveDatagrams accepts requests until stop.
func serveDatagrams(t *testing.T, ln *rdmacm.DatagramListener) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			conn, err := req.Accept(ctx, nil)
			if err != nil {
				continue // the dialer has given up, which is no fault
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return func() { cancel(); serving.Wait() }
}

func TestCancelDialDatagramAtEachStage(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		ln := listenDatagram(t, ip)
		stop := serveDatagrams(t, ln)
		canceled := 0
		for n := 1; ; n++ {
			ctx := newCountdown(t, n)
			conn, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
			if err == nil {
				require.NoError(t, conn.Close())
			} else {
				require.ErrorIs(t, err, context.Canceled)
				canceled++
			}
			if !ctx.ended() {
				break
			}
		}
		stop()
		t.Logf("canceled %d times", canceled)
		require.GreaterOrEqual(t, canceled, 4)
	}
}

func TestCancelAcceptDatagramAtEachStage(t *testing.T) {
	d := needDevice(t)
	ln := listenDatagram(t, d.IPv4)
	canceled := 0
	for n := 1; ; n++ {
		dialed := make(chan error, 1)
		go func() {
			conn, err := rdmacm.DialDatagram(bounded(t), ln.Addr().String(), nil)
			if conn != nil {
				err = conn.Close()
			}
			dialed <- err
		}()
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		ctx := newCountdown(t, n)
		conn, err := req.Accept(ctx, nil)
		if err == nil {
			require.NoError(t, conn.Close())
			require.NoError(t, <-dialed)
		} else {
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED, "the peer is told")
			canceled++
		}
		if !ctx.ended() {
			break
		}
	}
	t.Logf("canceled %d times", canceled)
	require.GreaterOrEqual(t, canceled, 2)
}

func TestCancelDatagramWaits(t *testing.T) {
	d := needDevice(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	ln := listenDatagram(t, d.IPv4)
	_, err := ln.Accept(short())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	pending, err := server.PostRecv()
	require.NoError(t, err)
	_, err = pending.Wait(short())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = client.Recv(short())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, client.Send(bounded(t)))
	_, err = pending.Wait(bounded(t))
	require.NoError(t, err, "the receive was still there")
	require.NoError(t, client.Err())
}

// Nobody is there: the neighbour is known, and answers nothing.
func TestDialDatagramWithoutAnswer(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	const nobody = "192.0.2.88"
	run(t, "ip", "neigh", "replace", nobody, "lladdr", "02:00:00:00:00:88", "dev", d.NetDev)
	defer run(t, "ip", "neigh", "del", nobody, "dev", d.NetDev)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := rdmacm.DialDatagram(ctx, nobody+":7", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// The first datagram to a host looks for it, for as long as the kernel likes;
// a context does not wait for that, and Close does.
func TestSendToNobody(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	nobody := client.Peer()
	nobody.Path.DGID = ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.99"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, client.SendTo(ctx, nobody), context.DeadlineExceeded)
	err := client.SendTo(bounded(t), nobody)
	require.ErrorContains(t, err, "ibv_create_ah (PD ")
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, client.Err(), "others can be sent to")
	require.NoError(t, client.Send(bounded(t)))
	require.Equal(t, err, client.SendTo(ctx, nobody), "the failure is kept for a while, and known at once")

	nobody.Path.DGID = ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.98"))
	require.ErrorIs(t, client.SendTo(ctx, nobody), context.DeadlineExceeded)
	require.NoError(t, client.Close())
}

// Peers that are not there take a few threads, however many they are.
func TestSendToManyAbsentPeers(t *testing.T) {
	const absent = 40
	d := needDevice(t)
	needGuest(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	before := testdevice.Threads(t)
	results := make(chan error, absent)
	for i := range absent {
		to := client.Peer()
		to.Path.DGID = ibverbs.GIDFromAddr(netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}))
		go func() { results <- client.SendTo(bounded(t), to) }()
	}
	most := 0
	for done := 0; done < absent; {
		select {
		case err := <-results:
			require.ErrorIs(t, err, syscall.ETIMEDOUT)
			done++
		case <-time.After(time.Millisecond):
			most = max(most, testdevice.Threads(t)-before)
		}
	}
	t.Logf("%d threads more", most)
	require.Less(t, most, absent/2)
	got, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(bounded(t)))
	_, err = got.Wait(bounded(t))
	require.NoError(t, err)
}

// Paths that are not used any more do not pile up.
func TestManyPaths(t *testing.T) {
	d := needDevice(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	ctx := bounded(t)
	to := client.Peer()
	const limit = 10
	rdmacm.LimitPaths(client, limit)
	for i := range 5 * limit {
		to.Path.FlowLabel = uint32(i)
		require.NoError(t, client.SendTo(ctx, to))
	}
	require.Equal(t, limit, rdmacm.KnownPaths(client))
	got, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	_, err = got.Wait(ctx)
	require.NoError(t, err)

	var many sync.WaitGroup
	for i := range 8 {
		many.Go(func() {
			to := to
			for j := range 20 {
				to.Path.FlowLabel = uint32(j * (i + 1) % 30)
				if err := client.SendTo(ctx, to); err != nil {
					t.Error(err)
				}
			}
		})
	}
	many.Wait()
}
