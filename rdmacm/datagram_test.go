package rdmacm_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestDatagramExchange(t *testing.T) {
	d := needDevice(t)
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

			// Empty ones, in one call each.
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
	require.ErrorContains(t, err, fmt.Sprintf("datagram of %d bytes, where the port's MTU allows %d", mtu+1, mtu))
	require.Error(t, client.Send(ctx, from.Sub(0, 1), from.Sub(0, 1), from.Sub(0, 1), from.Sub(0, 1)), "4 segments")
	require.Error(t, client.Send(ctx, from.Sub(4096, 1)), "outside of the memory")
	_, err = server.PostRecv(to.Sub(0, 1), to.Sub(0, 1), to.Sub(0, 1), to.Sub(0, 1))
	require.Error(t, err, "4 segments")
	require.NoError(t, client.Err(), "nothing of this was sent")

	// Receives are counted as for Conn, also after those that failed.
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
	// Not on one that is closed.
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
	require.NoError(t, server.SendTo(ctx, rdmacm.Peer{Path: client.Peer().Path, QPNum: client.QP().Num(), QKey: cmQKey}, mr.Sub(0, 8)))
	_, err = got.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
}

// Many goroutines send and receive through two ends at once. Nothing is lost,
// because no more is under way than receives are posted.
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
