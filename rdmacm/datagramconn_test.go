// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestDatagramExchange(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			ctx := bounded(t)
			ln := listenDatagram(t, ip)
			require.Equal(t, ip, ln.Addr().Addr())
			var question *rdmacm.Receive
			var serverMR *ibverbs.MR
			result := acceptDatagram(t, ln, &rdmacm.DatagramConfig{
				PrivateData: []byte("welcome"),
				Setup: func(c *rdmacm.DatagramConn) (err error) {
					serverMR = memory(t, c)
					question, err = c.PostRecv(serverMR.Sub(0, 2048))
					return err
				},
			})
			client, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close()) }()
			server := <-result
			require.NotNil(t, server)
			defer func() { require.NoError(t, server.Close()) }()

			require.Equal(t, padded([]byte("welcome"), maxDatagramReply), client.PeerData())
			require.Nil(t, server.PeerData())
			require.Equal(t, ln.Addr(), client.RemoteAddr())
			require.Equal(t, ln.Addr(), server.LocalAddr())
			require.Equal(t, client.LocalAddr(), server.RemoteAddr())
			require.Equal(t, server.QP().Num(), client.Peer().QPNum)
			require.EqualValues(t, cmQKey, client.Peer().QKey)
			require.Equal(t, ip, client.Peer().Path.DGID.Addr())
			require.Equal(t, rdmacm.Peer{}, server.Peer())
			require.ErrorIs(t, server.Send(ctx), syscall.EDESTADDRREQ)
			require.NoError(t, server.Err(), "that was no failure")

			clientMR := memory(t, client)
			answer, err := client.PostRecv(clientMR.Sub(0, 2048))
			require.NoError(t, err)
			_, err = answer.Sender()
			require.ErrorIs(t, err, syscall.EINVAL, "nothing has come yet")
			n := copy(clientMR.Bytes()[2048:], "question")
			require.NoError(t, client.SendImm(ctx, 0xC0FFEE, clientMR.Sub(2048, n)))

			n, err = question.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, "question", string(serverMR.Bytes()[:n]))
			imm, ok := question.Imm()
			require.True(t, ok)
			require.EqualValues(t, 0xC0FFEE, imm)
			from, err := question.Sender()
			require.NoError(t, err)
			require.Equal(t, client.QP().Num(), from.QPNum)
			require.Equal(t, ip, from.Path.DGID.Addr())
			require.EqualValues(t, cmQKey, from.QKey)

			n = copy(serverMR.Bytes()[2048:], "the answer")
			require.NoError(t, server.SendTo(ctx, from, serverMR.Sub(2048, n)))
			n, err = answer.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, "the answer", string(clientMR.Bytes()[:n]))
			_, ok = answer.Imm()
			require.False(t, ok)
			from, err = answer.Sender()
			require.NoError(t, err)
			require.Equal(t, server.QP().Num(), from.QPNum)

			// Empty datagrams, in one call each.
			require.NoError(t, client.Send(ctx))
			require.NoError(t, client.SendTo(ctx, client.Peer()))
			for range 2 {
				again, err := server.PostRecv()
				require.NoError(t, err)
				require.NoError(t, client.SendImmTo(ctx, client.Peer(), 7))
				n, err = again.Wait(ctx)
				require.NoError(t, err)
				require.Zero(t, n)
			}
		})
	}
}

func TestDatagramSizes(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	config := &rdmacm.DatagramConfig{Segments: 3, MaxInline: 64}
	client, server := datagrams(t, d.IPv4, config, config)
	mtu := client.MTU()
	require.Contains(t, []int{256, 512, 1024, 2048, 4096}, mtu)
	from, to := memory(t, client), memory(t, server)
	for i := range from.Bytes() {
		from.Bytes()[i] = byte(i * 7)
	}
	for _, size := range []int{1, 3, mtu - 1, mtu} {
		third := size / 3
		got, err := server.PostRecv(to.Sub(0, 1), to.Sub(1, 10), to.Sub(11, mtu-11))
		require.NoError(t, err)
		require.NoError(t, client.Send(ctx, from.Sub(0, third), from.Sub(third, third), from.Sub(2*third, size-2*third)))
		n, err := got.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, size, n)
		require.Equal(t, from.Bytes()[:n], to.Bytes()[:n])
	}
	err := client.Send(ctx, from.Sub(0, mtu), from.Sub(0, 1))
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	require.ErrorContains(t, err, fmt.Sprintf("datagram has %d bytes, more than the port's MTU of %d", mtu+1, mtu))
	require.Error(t, client.Send(ctx, from.Sub(0, 1), from.Sub(0, 1), from.Sub(0, 1), from.Sub(0, 1)), "4 segments")
	require.Error(t, client.Send(ctx, from.Sub(4096, 1)), "outside of the memory")
	_, err = server.PostRecv(to.Sub(0, 1), to.Sub(0, 1), to.Sub(0, 1), to.Sub(0, 1))
	require.Error(t, err, "4 segments")
	require.NoError(t, client.Err(), "nothing of this was sent")

	// Receives are counted as for Conn. The failed call above took no place.
	for range 16 {
		_, err = server.PostRecv(to.Sub(0, 1))
		require.NoError(t, err)
	}
	_, err = server.PostRecv(to.Sub(0, 1))
	require.ErrorIs(t, err, syscall.ENOBUFS)
}

// One queue pair serves several peers.
func TestDatagramAcceptOn(t *testing.T) {
	const peers = 3
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenDatagram(t, d.IPv4)
	result := acceptDatagram(t, ln, nil)
	var clients []*rdmacm.DatagramConn
	dial := func() {
		client, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
		if err != nil {
			t.Error(err)
			return
		}
		clients = append(clients, client)
	}
	dial()
	server := <-result
	require.NotNil(t, server)
	defer func() { require.NoError(t, server.Close()) }()
	for n := 1; n < peers; n++ {
		var dialing sync.WaitGroup
		dialing.Go(dial)
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		require.NoError(t, req.AcceptOn(server, fmt.Appendf(nil, "peer %d", n)))
		dialing.Wait()
		require.Contains(t, string(clients[n].PeerData()), fmt.Sprint("peer ", n))
	}
	to := memory(t, server)
	for i, client := range clients {
		require.Equal(t, server.QP().Num(), client.Peer().QPNum)
		got, err := server.PostRecv(to.Sub(0, 100))
		require.NoError(t, err)
		reply, err := client.PostRecv()
		require.NoError(t, err)
		require.NoError(t, client.SendImm(ctx, uint32(i)))
		_, err = got.Wait(ctx)
		require.NoError(t, err)
		from, err := got.Sender()
		require.NoError(t, err)
		require.Equal(t, client.QP().Num(), from.QPNum)
		require.NoError(t, server.SendImmTo(ctx, from, uint32(i+100)))
		_, err = reply.Wait(ctx)
		require.NoError(t, err)
		imm, _ := reply.Imm()
		require.EqualValues(t, i+100, imm)
		require.NoError(t, client.Close())
	}
	// AcceptOn fails for an end that is closed.
	var dialing sync.WaitGroup
	dialing.Go(func() {
		_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	})
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.ErrorIs(t, req.AcceptOn(clients[0], nil), os.ErrClosed)
	require.ErrorIs(t, req.AcceptOn(server, nil), os.ErrClosed, "it was answered")
	dialing.Wait()
}

func TestDatagramSharedPD(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	pd, err := devices[0].AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	client, server := datagrams(t, d.IPv4, &rdmacm.DatagramConfig{PD: pd}, &rdmacm.DatagramConfig{PD: pd})
	require.Same(t, pd, client.PD())
	mr := memory(t, server)
	got, err := client.PostRecv(mr.Sub(0, 8)) // any memory of the domain
	require.NoError(t, err)
	require.NoError(t, server.SendTo(ctx, rdmacm.Peer{Path: client.Peer().Path, QPNum: client.QP().Num(), QKey: cmQKey}, mr.Sub(8, 8)))
	_, err = got.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
}

// Many goroutines send and receive through two ends at once. Nothing is lost,
// because no more datagrams are under way than receives are posted.
func TestDatagramConcurrency(t *testing.T) {
	const workers, rounds = 8, 50
	d := needDevice(t)
	ctx := bounded(t)
	config := &rdmacm.DatagramConfig{SendQueue: 4, RecvQueue: workers}
	client, server := datagrams(t, d.IPv4, config, config)
	from, to := memory(t, client), memory(t, server)
	var group sync.WaitGroup
	ready := make(chan struct{}, workers)
	counts := make([]int, workers*rounds)
	var mu sync.Mutex
	for w := range workers {
		group.Go(func() {
			for range rounds {
				r, err := server.PostRecv(to.Sub(w*8, 8))
				if err != nil {
					t.Error(err)
					return
				}
				ready <- struct{}{}
				if _, err := r.Wait(ctx); err != nil {
					t.Error(err)
					return
				}
				imm, _ := r.Imm()
				mu.Lock()
				counts[imm]++
				mu.Unlock()
			}
		})
		group.Go(func() {
			for i := range rounds {
				<-ready
				if err := client.SendImm(ctx, uint32(w*rounds+i), from.Sub(w*8, 8)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	for i, n := range counts {
		require.Equal(t, 1, n, i)
	}
	require.NotZero(t, testdevice.Threads(t))
}

// serveDatagrams accepts requests until stop is called.
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

// The host is absent: the kernel knows the neighbour's address, and no device
// answers.
func TestDialDatagramWithoutAnswer(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	const absent = "192.0.2.88"
	guest.Run(t, "ip", "neigh", "replace", absent, "lladdr", "02:00:00:00:00:88", "dev", d.NetDev)
	defer guest.Run(t, "ip", "neigh", "del", absent, "dev", d.NetDev)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := rdmacm.DialDatagram(ctx, absent+":7", nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// The first datagram to a host looks for it for as long as the kernel likes. A
// context does not wait for that; Close does.
func TestSendToNobody(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	absent := client.Peer()
	absent.Path.DGID = ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.99"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, client.SendTo(ctx, absent), context.DeadlineExceeded)
	err := client.SendTo(bounded(t), absent)
	require.ErrorContains(t, err, fmt.Sprintf("datagram of 0 bytes to 192.0.2.99 (queue pair %d): ibv_create_ah (PD ", absent.QPNum))
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NoError(t, client.Err(), "others can be sent to")
	require.NoError(t, client.Send(bounded(t)))

	absent.Path.DGID = ibverbs.GIDFromAddr(netip.MustParseAddr("192.0.2.98"))
	require.ErrorIs(t, client.SendTo(ctx, absent), context.DeadlineExceeded)
	require.NoError(t, client.Close())
}

// However many peers are absent, looking for them takes few threads.
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

// Paths that are no longer used do not pile up.
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

// A sender does not learn that the peer is gone.
func TestDatagramPeerGone(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	_, err := client.PostRecv()
	require.NoError(t, err)
	require.NoError(t, server.Close())
	for range 100 {
		require.NoError(t, client.Send(ctx))
	}
	require.NoError(t, client.Err())
}

// Devices differ in what they do with a datagram that is larger than its
// receive. Soft-RoCE of Linux 6.1 fails the receive; that of 7.2 drops the
// datagram.
func TestDatagramReceiveTooSmall(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	from, to := memory(t, client), memory(t, server)
	small, err := server.PostRecv(to.Sub(0, 99))
	require.NoError(t, err)
	next, err := server.PostRecv(to.Sub(0, 100))
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx, from.Sub(0, 100)))
	require.NoError(t, client.Send(ctx, from.Sub(0, 50)))
	n, err := small.Wait(ctx)
	t.Log(n, err)
	if err == nil {
		require.Equal(t, 50, n)
		require.NoError(t, server.Err())
		return
	}
	failed, ok := errors.AsType[*ibverbs.WCError](err)
	require.True(t, ok)
	require.ErrorContains(t, err, "receive into 99 bytes: ")
	_, nextErr := next.Wait(ctx)
	require.ErrorIs(t, nextErr, failed.Status, "why it was flushed")
	awaitEnd(t, server)
	require.Equal(t, err, server.Err())
	require.NoError(t, client.Err())
	require.NoError(t, server.Close())
	require.Equal(t, err, server.Err(), "the first cause stays")
}

// Memory that the end may not use ends it.
func TestDatagramSendFails(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	pending, err := client.PostRecv()
	require.NoError(t, err)
	foreign := memory(t, server)
	err = client.Send(ctx, foreign.Sub(0, 8))
	var failed *ibverbs.WCError
	require.ErrorAs(t, err, &failed)
	require.Contains(t, []ibverbs.WCStatus{ibverbs.WCLocalProtection, ibverbs.WCLocalQPOperation, ibverbs.WCFlushed}, failed.Status)
	if failed.Status != ibverbs.WCFlushed {
		require.ErrorContains(t, err, fmt.Sprintf("datagram of 8 bytes to %v (queue pair %d): %v", d.IPv4, server.QP().Num(), failed.Status))
	}
	awaitEnd(t, client)
	require.Equal(t, err, client.Err())
	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, failed.Status, "why it was flushed")
	require.ErrorIs(t, client.Send(ctx), failed.Status)
}

func TestDatagramCloseWakesReceives(t *testing.T) {
	const waiters = 8
	d := needDevice(t)
	ctx := bounded(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	mr := memory(t, client)
	results := make(chan error, waiters)
	for range waiters {
		r, err := client.PostRecv(mr.All())
		require.NoError(t, err)
		go func() {
			_, err := r.Wait(ctx)
			if _, senderErr := r.Sender(); senderErr == nil {
				t.Error("sender of nothing")
			}
			results <- err
		}()
	}
	require.NoError(t, client.Close())
	for range waiters {
		require.ErrorIs(t, <-results, os.ErrClosed)
	}
	awaitEnd(t, client)
	require.Nil(t, mr.Bytes(), "closed with the end")
	require.NoError(t, client.Close(), "again")
	for name, err := range map[string]error{
		"Send": client.Send(ctx), "SendImm": client.SendImm(ctx, 1), "Err": client.Err(),
		"SendTo": client.SendTo(ctx, client.Peer()), "SendImmTo": client.SendImmTo(ctx, client.Peer(), 1),
		"PostRecv": second(client.PostRecv()), "Alloc": second(client.Alloc(1, 0)),
		"Recv": func() error { _, _, err := client.Recv(ctx); return err }(),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
		require.ErrorContains(t, err, "datagrams: ", name)
	}
	require.True(t, client.RemoteAddr().IsValid(), "the addresses stay known")
	require.True(t, client.LocalAddr().IsValid())
}

func second[T any](_ T, err error) error { return err }

// The result of GetAddrInfo suffices for both ends.
func TestDatagramInfo(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams)
	ctx := bounded(t)
	const port = "7199"
	infos, err := rdmacm.GetAddrInfo(ctx, d.IPv4.String(), port, &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceUDP})
	require.NoError(t, err)
	ln, err := rdmacm.ListenDatagramInfo(ctx, infos[0], nil)
	require.NoError(t, err)
	require.Equal(t, infos[0].Src, ln.Addr())
	accepted := acceptDatagram(t, ln, nil)
	_, err = rdmacm.ListenDatagramInfo(ctx, infos[0], nil)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "listen for datagrams on "+ln.Addr().String()+": ")

	// The hints name no port space.
	infos, err = rdmacm.GetAddrInfo(ctx, d.IPv4.String(), port, nil)
	require.NoError(t, err)
	infos[0].PortSpace = 0
	client, err := (&rdmacm.Dialer{TOS: 8}).DialDatagramInfo(ctx, infos[0], nil)
	require.NoError(t, err)
	server := <-accepted
	require.NotNil(t, server)
	require.Equal(t, infos[0].Dst, client.RemoteAddr())
	require.Equal(t, server.QP().Num(), client.Peer().QPNum)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.NoError(t, ln.Close())
	_, err = new(rdmacm.Dialer).DialDatagramInfo(ctx, infos[0], nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "dial "+infos[0].Dst.String()+": ")
}

func TestDatagramInfoMistakes(t *testing.T) {
	d := needDevice(t)
	ctx, gone := bounded(t), canceled(t)
	var none context.Context
	forConnections := rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}
	dial := func(ctx context.Context, d *rdmacm.Dialer, info rdmacm.AddrInfo) error {
		_, err := d.DialDatagramInfo(ctx, info, nil)
		return err
	}
	listen := func(ctx context.Context, info rdmacm.AddrInfo) error {
		_, err := rdmacm.ListenDatagramInfo(ctx, info, nil)
		return err
	}
	joinIB := func(ctx context.Context, config *rdmacm.GroupConfig) error {
		_, err := rdmacm.JoinGroupIB(ctx, rdmacm.IBAddr{GID: ibverbs.GID{0: 0xff}}, config)
		return err
	}
	cases := map[string]struct {
		err, want error
		text      string
	}{
		"no dialer":          {dial(ctx, nil, rdmacm.AddrInfo{}), syscall.EINVAL, "DialDatagramInfo"},
		"no context":         {dial(none, new(rdmacm.Dialer), rdmacm.AddrInfo{}), syscall.EINVAL, "DialDatagramInfo"},
		"context over":       {dial(gone, new(rdmacm.Dialer), rdmacm.AddrInfo{}), context.Canceled, ""},
		"no destination":     {dial(ctx, new(rdmacm.Dialer), rdmacm.AddrInfo{}), syscall.EINVAL, "no destination"},
		"for connections":    {dial(ctx, new(rdmacm.Dialer), forConnections), syscall.EINVAL, "not PortSpaceUDP or PortSpaceIPoIB"},
		"listening, context": {listen(gone, rdmacm.AddrInfo{}), context.Canceled, ""},
		"listening, TCP":     {listen(ctx, forConnections), syscall.EINVAL, "not PortSpaceUDP or PortSpaceIPoIB"},
		"joining, context":   {joinIB(gone, nil), context.Canceled, ""},
		"joining, nothing":   {joinIB(ctx, nil), syscall.EINVAL, "LocalAddr is empty"},
		"joining, TCP":       {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: d.IPv4.String(), PortSpace: rdmacm.PortSpaceTCP}), syscall.EINVAL, "not PortSpaceUDP or PortSpaceIPoIB"},
		"joining, not ours":  {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: "192.0.2.99"}), syscall.EADDRNOTAVAIL, "192.0.2.99"},
		"joining on RoCE":    {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: d.IPv4.String()}), errors.ErrUnsupported, "rdma_join_multicast"},
	}
	if !d.Has(t, testdevice.Datagrams) {
		delete(cases, "joining on RoCE") // the queue pair fails
	}
	for name, tt := range cases {
		require.ErrorIs(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, tt.text, name)
	}
}

// listeningUD returns an id that listens for requests about datagrams.
func listeningUD(t testing.TB, ip netip.Addr) *udEnd {
	t.Helper()
	e := newIdleUDEnd(t)
	require.NoError(t, e.id.BindAddr(netip.AddrPortFrom(ip, 0)))
	require.NoError(t, e.id.Listen(4))
	return e
}

// requestOf returns the next request of a listener.
func (e *udEnd) requestOf() (*rdmacm.Event, *udEnd) {
	e.t.Helper()
	ev := next(e.t, e.ch, rdmacm.EventConnectRequest)
	require.Same(e.t, e.id, ev.ListenID)
	e.t.Cleanup(func() { require.NoError(e.t, ev.ID.Close()) })
	return ev, &udEnd{end: &end{t: e.t, ch: e.ch, id: ev.ID}}
}

func TestDatagramEvents(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			ln, client := listeningUD(t, ip), newIdleUDEnd(t)
			require.Equal(t, rdmacm.PortSpaceUDP, ln.id.PortSpace())
			client.resolve(ln.id.LocalAddr())
			client.makeQP()
			require.NoError(t, client.id.Connect(rdmacm.ConnParam{PrivateData: []byte("is a server there?")}))

			request, server := ln.requestOf()
			require.Equal(t, padded([]byte("is a server there?"), maxDatagramRequest), request.PrivateData)
			require.Zero(t, request.QPNum, "a request does not say")
			require.Zero(t, request.QKey)
			require.Equal(t, client.id.LocalAddr(), request.ID.RemoteAddr())
			require.Equal(t, ln.id.LocalAddr(), request.ID.LocalAddr())
			require.ErrorContains(t, request.ID.Accept(rdmacm.ConnParam{}), "create a queue pair first")
			server.makeQP()
			require.NoError(t, server.id.Accept(rdmacm.ConnParam{PrivateData: []byte("it's me")}))

			established := next(t, client.ch, rdmacm.EventEstablished)
			require.NoError(t, established.Err())
			require.Equal(t, padded([]byte("it's me"), maxDatagramReply), established.PrivateData)
			require.Equal(t, server.qp.Num(), established.QPNum)
			require.EqualValues(t, cmQKey, established.QKey)
			require.Equal(t, ip, established.Path.DGID.Addr())
			require.Equal(t, d.Port, established.Path.Port)
			require.Zero(t, established.ResponderResources)
			require.Nil(t, established.Value)
			client.sendTo(established, "there you are")
			require.Equal(t, "there you are", server.received())

			_, ok, err := ln.ch.Poll()
			require.NoError(t, err)
			require.False(t, ok, "the accepting end hears no more")
			require.ErrorIs(t, server.id.Accept(rdmacm.ConnParam{}), syscall.EINVAL, "once is enough")
			require.ErrorIs(t, client.id.Connect(rdmacm.ConnParam{}), syscall.EINVAL)
			require.ErrorIs(t, client.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "too late")
		})
	}
}

// The peer, or its system, refuses with a status for each reason.
func TestDatagramRefusals(t *testing.T) {
	d := needDevice(t)
	ln := listeningUD(t, d.IPv4)
	ask := func() *udEnd {
		client := newIdleUDEnd(t)
		client.resolve(ln.id.LocalAddr())
		require.NoError(t, client.id.Connect(rdmacm.ConnParam{}), "without a queue pair of its own, too")
		return client
	}
	check := func(client *udEnd, status int, reason rdmacm.Reason, data string) {
		t.Helper()
		ev := next(t, client.ch, rdmacm.EventUnreachable)
		require.Equal(t, status, ev.Status)
		require.Equal(t, padded([]byte(data), maxDatagramReply), ev.PrivateData)
		require.Equal(t, &rdmacm.RejectedError{Reason: reason, PrivateData: ev.PrivateData}, ev.Err())
	}
	client := ask()
	request, _ := ln.requestOf()
	require.NoError(t, request.ID.Reject([]byte("not today")))
	check(client, 2, rdmacm.ReasonConsumer, "not today")

	client = ask()
	request, _ = ln.requestOf()
	require.NoError(t, request.ID.Close())
	check(client, 2, rdmacm.ReasonConsumer, "")

	client = newIdleUDEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, ln.id.Close())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	check(client, 1, rdmacm.ReasonNoListener, "")
}

// The peer's answer names a queue pair that is not the ID's.
func TestDatagramAcceptForAnother(t *testing.T) {
	d := needDevice(t)
	ln, client, service := listeningUD(t, d.IPv4), newIdleUDEnd(t), newUDEnd(t, d.IPv4)
	client.resolve(ln.id.LocalAddr())
	client.makeQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	request, _ := ln.requestOf()
	require.NoError(t, request.ID.Accept(rdmacm.ConnParam{QPNum: service.qp.Num()}))
	require.NoError(t, request.ID.Close(), "it has no more to do")
	established := next(t, client.ch, rdmacm.EventEstablished)
	require.Equal(t, service.qp.Num(), established.QPNum)
	client.sendTo(established, "hello, service")
	require.Equal(t, "hello, service", service.received())
}

// The guest cannot cause these failures, or only within a minute.
func TestDatagramEventErrors(t *testing.T) {
	timeout := &rdmacm.Event{Type: rdmacm.EventUnreachable, Status: -int(syscall.ETIMEDOUT)}
	require.EqualError(t, timeout.Err(), "peer unreachable: connection timed out")
	require.ErrorIs(t, timeout.Err(), syscall.ETIMEDOUT)
	for status, want := range map[int]string{
		1: "connection rejected: no program listens on the port", 2: "connection rejected: refused by the peer's program",
		3: "connection rejected: no queue pair available", 4: "connection rejected: redirected to another port",
		5: "connection rejected: unsupported class version",
	} {
		err := (&rdmacm.Event{Type: rdmacm.EventUnreachable, Status: status, PrivateData: []byte("why")}).Err()
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, "why", string(err.(*rdmacm.RejectedError).PrivateData))
	}
	unknown := (&rdmacm.Event{Type: rdmacm.EventUnreachable, Status: 77}).Err()
	require.EqualError(t, unknown, "peer unreachable: reason 77")
	require.ErrorIs(t, unknown, syscall.EHOSTUNREACH)

	d := needDevice(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	for _, later := range []rdmacm.EventType{rdmacm.EventUnreachable, rdmacm.EventAddrChange, rdmacm.EventEstablished} {
		rdmacm.InjectDatagram(client, &rdmacm.Event{Type: later, Status: -int(syscall.ETIMEDOUT)})
	}
	require.NoError(t, client.Err(), "these end nothing")
	pending, err := client.PostRecv()
	require.NoError(t, err)
	rdmacm.InjectDatagram(client, &rdmacm.Event{Type: rdmacm.EventDeviceRemoval})
	awaitEnd(t, client)
	_, err = pending.Wait(bounded(t))
	require.ErrorIs(t, err, syscall.ENODEV, "why it was flushed")
	require.ErrorIs(t, client.Send(bounded(t)), syscall.ENODEV)
}
