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

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// The private data that requests and answers about datagrams have room for.
const (
	maxDatagramRequest = 180
	maxDatagramReply   = 136
)

func listenDatagram(t testing.TB, ip netip.Addr) *rdmacm.DatagramListener {
	t.Helper()
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// acceptDatagram accepts the next request in the background.
func acceptDatagram(t testing.TB, ln *rdmacm.DatagramListener, config *rdmacm.DatagramConfig) <-chan *rdmacm.DatagramConn {
	ctx, result := bounded(t), make(chan *rdmacm.DatagramConn, 1)
	go func() {
		defer close(result)
		req, err := ln.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := req.Accept(ctx, config)
		if err != nil {
			t.Error(err)
			return
		}
		result <- conn
	}()
	return result
}

// datagrams returns two ends, closed with the test.
func datagrams(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.DatagramConfig) (client, server *rdmacm.DatagramConn) {
	t.Helper()
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	result := acceptDatagram(t, ln, serverConfig)
	client, err = rdmacm.DialDatagram(bounded(t), ln.Addr().String(), clientConfig)
	require.NoError(t, err)
	server = <-result
	require.NotNil(t, server)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return client, server
}

// memory returns 4 KiB of an end's own.
func memory(t testing.TB, c *rdmacm.DatagramConn) *ibverbs.MR {
	t.Helper()
	mr, err := c.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	return mr
}

func TestDatagramExchange(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			ctx := bounded(t)
			ln := listenDatagram(t, ip)
			require.Equal(t, ip, ln.Addr().Addr())
			var question *rdmacm.DatagramReceive
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

func TestDatagramRejected(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenDatagram(t, d.IPv4)
	dial := func() <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &rdmacm.DatagramConfig{PrivateData: []byte("may I?")})
			result <- err
		}()
		return result
	}
	check := func(err error, reason int, text string) *rdmacm.RejectedError {
		t.Helper()
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, reason, rejected.Reason)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.ErrorContains(t, err, text)
		return rejected
	}

	refused := dial()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, padded([]byte("may I?"), maxDatagramRequest), req.PrivateData())
	require.Equal(t, ln.Addr(), req.LocalAddr())
	require.Equal(t, d.IPv4, req.RemoteAddr().Addr())
	require.Equal(t, rdmacm.EventConnectRequest, req.Event().Type)
	require.NoError(t, req.Reject([]byte("no")))
	rejected := check(<-refused, rdmacm.ReasonConsumer, "dial "+ln.Addr().String()+": connection rejected: refused by the peer's program")
	require.Equal(t, padded([]byte("no"), maxDatagramReply), rejected.PrivateData)
	require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	_, err = req.Accept(ctx, nil)
	require.ErrorIs(t, err, os.ErrClosed)

	// A listener that closes refuses who is waiting; then there is nobody.
	refused = dial()
	require.Eventually(t, func() bool { return rdmacm.WaitingDatagrams(ln) == 1 }, patience, 1)
	require.NoError(t, ln.Close())
	check(<-refused, rdmacm.ReasonConsumer, "refused by the peer's program")
	check(<-dial(), rdmacm.ReasonNoListener, "nobody listens on the port")
	_, err = ln.Accept(ctx)
	require.ErrorIs(t, err, os.ErrClosed)

	// A listener for connections is not one for datagrams.
	tcp := listenOn(t, d.IPv4)
	_, err = rdmacm.DialDatagram(ctx, tcp.Addr().String(), nil)
	check(err, rdmacm.ReasonNoListener, "nobody listens on the port")
}

func TestDatagramPrivateDataLimits(t *testing.T) {
	d := needDevice(t)
	ln := listenDatagram(t, d.IPv4)
	data := make([]byte, maxDatagramRequest+1)
	for i := range data {
		data[i] = byte(i + 1)
	}
	_, on := datagrams(t, d.IPv4, nil, nil)
	ask := func(n int) (<-chan error, *[]byte) {
		result, got := make(chan error, 1), new([]byte)
		ctx := bounded(t)
		go func() {
			conn, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &rdmacm.DatagramConfig{PrivateData: data[:n]})
			if conn != nil {
				*got = conn.PeerData()
				err = conn.Close()
			}
			result <- err
		}()
		return result, got
	}
	for n := range maxDatagramRequest + 1 {
		dialed, got := ask(n)
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		require.Equal(t, padded(data[:n], maxDatagramRequest), req.PrivateData())
		reply := data[:min(n, maxDatagramReply)]
		if n%2 == 0 {
			require.NoError(t, req.AcceptOn(on, reply))
			require.NoError(t, <-dialed)
			require.Equal(t, padded(reply, maxDatagramReply), *got)
			continue
		}
		require.NoError(t, req.Reject(reply))
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, <-dialed, &rejected)
		require.Equal(t, padded(reply, maxDatagramReply), rejected.PrivateData)
	}

	dialed, _ := ask(maxDatagramRequest + 1)
	err := <-dialed
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "private data of 181 bytes, where this device's connection request carries up to 180")
	for name, answer := range map[string]func(*rdmacm.DatagramRequest, *rdmacm.DatagramConn) error{
		"acceptance carries up to 136": func(r *rdmacm.DatagramRequest, _ *rdmacm.DatagramConn) error {
			_, err := r.Accept(bounded(t), &rdmacm.DatagramConfig{PrivateData: data[:maxDatagramReply+1]})
			return err
		},
		"private data of 137 bytes, where this device's acceptance": func(r *rdmacm.DatagramRequest, on *rdmacm.DatagramConn) error {
			return r.AcceptOn(on, data[:maxDatagramReply+1])
		},
		"rejection carries up to 136": func(r *rdmacm.DatagramRequest, _ *rdmacm.DatagramConn) error {
			return r.Reject(data[:maxDatagramReply+1])
		},
	} {
		dialed, _ := ask(0)
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		err = answer(req, on)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, name)
		require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED, "the peer is told")
	}
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

// Whoever sends to a peer that is gone does not hear of it.
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

// What a device does with a datagram that is larger than its receive differs:
// Soft-RoCE of Linux 6.1 fails the receive, that of 7.2 drops the datagram.
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
	require.ErrorAs(t, err, new(*ibverbs.WCError))
	_, nextErr := next.Wait(ctx)
	require.ErrorIs(t, nextErr, err.(*ibverbs.WCError).Status, "why it was flushed")
	<-server.Done()
	require.Equal(t, err, server.Err())
	require.NoError(t, client.Err())
	require.NoError(t, server.Close())
	require.Equal(t, err, server.Err(), "the first cause stays")
}

// Memory that the end cannot use ends it.
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
	<-client.Done()
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
	<-client.Done()
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

func TestDatagramNilAndZero(t *testing.T) {
	needDevice(t)
	ctx := t.Context()
	for name, c := range map[string]*rdmacm.DatagramConn{"nil": nil, "zero": {}} {
		for method, err := range map[string]error{
			"Send": c.Send(ctx), "SendImm": c.SendImm(ctx, 1), "SendTo": c.SendTo(ctx, rdmacm.Peer{}),
			"SendImmTo": c.SendImmTo(ctx, rdmacm.Peer{}, 1), "PostRecv": second(c.PostRecv()),
			"Alloc": second(c.Alloc(1, 0)), "Err": c.Err(), "Close": c.Close(),
			"Recv": func() error { _, _, err := c.Recv(ctx); return err }(),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, "%s %s", name, method)
		}
	}
	for name, c := range map[string]*rdmacm.Conn{"nil": nil, "zero": {}} {
		for method, err := range map[string]error{
			"Send": c.Send(ctx), "Write": c.Write(ctx, ibverbs.RemoteBuffer{}), "PostRecv": second(c.PostRecv()),
			"Recv": second(c.Recv(ctx)), "Alloc": second(c.Alloc(1, 0)), "Err": c.Err(), "Close": c.Close(),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, "%s %s", name, method)
		}
	}
	for name, r := range map[string]*rdmacm.DatagramReceive{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Wait(ctx)), os.ErrInvalid, name)
		require.ErrorIs(t, second(r.Sender()), syscall.EINVAL, name)
		_, ok := r.Imm()
		require.False(t, ok)
	}
	for name, r := range map[string]*rdmacm.Receive{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Wait(ctx)), os.ErrInvalid, name)
		_, ok := r.Imm()
		require.False(t, ok)
	}
	for name, ln := range map[string]*rdmacm.DatagramListener{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(ln.Accept(ctx)), os.ErrInvalid, name)
		require.ErrorIs(t, ln.Close(), os.ErrInvalid, name)
	}
	for name, r := range map[string]*rdmacm.DatagramRequest{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Accept(ctx, nil)), os.ErrInvalid, name)
		require.ErrorIs(t, r.AcceptOn(nil, nil), os.ErrInvalid, name)
		require.ErrorIs(t, r.Reject(nil), os.ErrInvalid, name)
	}
	var nobody context.Context
	for name, err := range map[string]error{
		"dial": second(rdmacm.DialDatagram(nobody, "192.0.2.1:7", nil)), "listen": second(rdmacm.ListenDatagram(nobody, ":7", nil)),
		"join":       second(rdmacm.JoinGroup(nobody, groupIPv4, nil)),
		"nil dialer": second((*rdmacm.Dialer)(nil).DialDatagram(ctx, "192.0.2.1:7", nil)),
	} {
		require.ErrorContains(t, err, " is nil", name)
	}
}

func TestDatagramBadConfig(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenDatagram(t, d.IPv4)
	setupErr := errors.New("no memory left")
	other, err := ibverbs.Open(d.Name)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	pd, err := other.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	for name, tt := range map[string]struct {
		config rdmacm.DatagramConfig
		want   error
	}{
		"negative queue":    {rdmacm.DatagramConfig{SendQueue: -1}, syscall.EINVAL},
		"negative receives": {rdmacm.DatagramConfig{RecvQueue: -1}, syscall.EINVAL},
		"negative segments": {rdmacm.DatagramConfig{Segments: -1}, syscall.EINVAL},
		"huge queue":        {rdmacm.DatagramConfig{RecvQueue: 1 << 30}, syscall.EINVAL},
		"Setup":             {rdmacm.DatagramConfig{Setup: func(*rdmacm.DatagramConn) error { return setupErr }}, setupErr},
		"other device's PD": {rdmacm.DatagramConfig{PD: pd}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), &tt.config)
			require.ErrorIs(t, err, tt.want)
			dialed := make(chan error, 1)
			go func() {
				_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
				dialed <- err
			}()
			req, err := ln.Accept(ctx)
			require.NoError(t, err)
			_, err = req.Accept(ctx, &tt.config)
			require.ErrorIs(t, err, tt.want)
			require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
		})
	}
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
