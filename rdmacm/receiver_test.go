// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// receiving returns a connection whose server has a receiver.
func receiving(t *testing.T, ip netip.Addr, receives, size int) (client, server *rdmacm.Conn, r *rdmacm.Receiver) {
	t.Helper()
	client, server = connect(t, ip, nil, &rdmacm.Config{RecvQueue: receives, Setup: func(c *rdmacm.Conn) (err error) {
		r, err = c.NewReceiver(size)
		return err
	}})
	return client, server, r
}

// More messages than receives arrive, each whole and in order.
func TestReceiver(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Immediate)
	ctx := bounded(t)
	client, _, r := receiving(t, d.IPv4, 3, 64)
	out := alloc(t, client, 64)
	const messages = 10
	sent := make(chan error, 1)
	go func() {
		for i := range messages {
			text := strings.Repeat(fmt.Sprint(i), i)
			if err := client.SendImm(ctx, uint32(i), out.Sub(0, copy(out.Bytes(), text))); err != nil {
				sent <- err
				return
			}
		}
		sent <- client.Send(ctx)
	}()
	for i := range messages {
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, strings.Repeat(fmt.Sprint(i), i), string(m.Data))
		_, isWrite := m.Written()
		require.False(t, isWrite)
		imm, ok := m.Imm()
		require.True(t, ok)
		require.EqualValues(t, i, imm)
		_, err = m.Sender()
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	m, err := r.Next(ctx)
	require.NoError(t, err)
	_, ok := m.Imm()
	require.False(t, ok)
	require.NoError(t, <-sent)
}

// Messages that the peer has sent before it closed can be taken. This holds
// even if their receives can no longer be posted again.
func TestReceiverAfterTheEnd(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server, r := receiving(t, d.IPv4, 4, 64)
	out := alloc(t, client, 64)
	for range 3 {
		require.NoError(t, client.Send(ctx, out.Sub(0, 5)))
	}
	require.NoError(t, client.Close())
	require.NoError(t, server.Wait(ctx))
	for range 3 {
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Len(t, m.Data, 5)
	}
	for range 2 {
		_, err := r.Next(ctx)
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	require.NoError(t, server.Close())
	_, err := r.Next(ctx)
	require.Error(t, err)
}

// A message that has arrived, but was not taken before Close, is lost with the
// memory.
func TestReceiverAfterClose(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server, r := receiving(t, d.IPv4, 2, 64)
	answer, err := client.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx, alloc(t, client, 64).All()))
	require.NoError(t, server.Send(ctx), "whose wait takes the message's completion as well")
	_, err = answer.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, server.Close())
	for range 3 {
		_, err = r.Next(ctx)
		require.ErrorIs(t, err, os.ErrClosed)
	}
}

// The bytes of a write with immediate data are not in the receive's memory.
func TestReceiverOfWrites(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Immediate)
	ctx := bounded(t)
	for _, size := range []int{0, 16} {
		client, server, r := receiving(t, d.IPv4, 2, size)
		here, there := alloc(t, client, 4096), alloc(t, server, 4096)
		for i := range 3 {
			require.NoError(t, client.WriteImm(ctx, there.Remote(), uint32(i), here.Sub(0, 100+i)))
			m, err := r.Next(ctx)
			require.NoError(t, err)
			require.Empty(t, m.Data)
			written, isWrite := m.Written()
			require.True(t, isWrite)
			require.Equal(t, 100+i, written)
			imm, _ := m.Imm()
			require.EqualValues(t, i, imm)
		}
	}
}

// A context that ends loses no message.
func TestReceiverCanceled(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Immediate)
	ctx := bounded(t)
	client, _, r := receiving(t, d.IPv4, 1, 16)
	for range 3 {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		_, err := r.Next(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.NoError(t, client.SendImm(ctx, 7))
	m, err := r.Next(ctx)
	require.NoError(t, err)
	imm, _ := m.Imm()
	require.EqualValues(t, 7, imm)
}

func TestDatagramReceiver(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	var r *rdmacm.Receiver
	client, server := datagrams(t, d.IPv4, nil, &rdmacm.DatagramConfig{RecvQueue: 2, Setup: func(c *rdmacm.DatagramConn) (err error) {
		r, err = c.NewReceiver()
		return err
	}})
	out, err := client.Alloc(client.MTU(), 0)
	require.NoError(t, err)
	for i := range 5 {
		text := fmt.Sprintf("datagram %d", i)
		require.NoError(t, client.Send(ctx, out.Sub(0, copy(out.Bytes(), text))))
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, text, string(m.Data))
		from, err := m.Sender()
		require.NoError(t, err)
		require.Equal(t, client.QP().Num(), from.QPNum)
	}
	require.NoError(t, client.Send(ctx, out.All()))
	m, err := r.Next(ctx)
	require.NoError(t, err)
	require.Len(t, m.Data, server.MTU())
}

func TestReceiverMistakes(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, nil)
	_, err := client.NewReceiver(-1)
	require.ErrorIs(t, err, syscall.EINVAL)
	r, err := client.NewReceiver(16)
	require.NoError(t, err)
	_, err = client.NewReceiver(16)
	require.ErrorIs(t, err, syscall.ENOBUFS, "there is room for one")
	_, err = server.PostRecv()
	require.NoError(t, err)
	_, err = server.NewReceiver(16)
	require.ErrorIs(t, err, syscall.ENOBUFS, "before it has posted anything")
	for range 15 {
		_, err = server.PostRecv()
		require.NoError(t, err, "the other receives are free")
	}
	require.NoError(t, client.Close())
	_, err = r.Next(ctx)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = client.NewReceiver(16)
	require.ErrorIs(t, err, os.ErrClosed)
	require.NoError(t, server.Close())

	for _, r := range []*rdmacm.Receiver{nil, {}} {
		_, err := r.Next(ctx)
		require.ErrorIs(t, err, os.ErrInvalid)
	}
	_, err = (*rdmacm.Conn)(nil).NewReceiver(1)
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = (*rdmacm.DatagramConn)(nil).NewReceiver()
	require.ErrorIs(t, err, os.ErrInvalid)
	for _, m := range []*rdmacm.Message{nil, {}} {
		_, ok := m.Imm()
		require.False(t, ok)
		_, err := m.Sender()
		require.ErrorIs(t, err, os.ErrInvalid)
	}
}

// In Setup a server makes memory and tells the client of it.
func TestSetPrivateData(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	var offered *ibverbs.MR
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{PrivateData: []byte("replaced"), Setup: func(c *rdmacm.Conn) (err error) {
		if offered, err = c.Alloc(64, ibverbs.AccessRemoteRead); err != nil {
			return err
		}
		offer, err := offered.Remote().MarshalBinary()
		if err != nil {
			return err
		}
		return c.SetPrivateData(offer)
	}})
	var remote ibverbs.RemoteBuffer
	require.NoError(t, remote.UnmarshalBinary(client.PeerData()))
	require.Equal(t, offered.Remote(), remote)
	copy(offered.Bytes(), "from the server")
	here := alloc(t, client, 64)
	require.NoError(t, client.Read(ctx, here.All(), remote))
	require.Equal(t, offered.Bytes(), here.Bytes())
	var late sync.WaitGroup
	for range 2 {
		late.Go(func() { assert.NoError(t, server.SetPrivateData([]byte("too late, and no harm"))) })
	}
	late.Wait()
	require.ErrorIs(t, (*rdmacm.Conn)(nil).SetPrivateData(nil), os.ErrInvalid)
}

// One protection domain, made before any client has connected, serves all
// connections.
func TestListenerDevice(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	device, err := ln.Device()
	require.NoError(t, err)
	require.Equal(t, d.Name, device.Name())
	devices, err := rdmacm.Devices()
	require.NoError(t, err)
	require.True(t, slices.Contains(devices, device))
	pd, err := device.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	mr, err := pd.Alloc(64, ibverbs.AccessRemoteRead)
	require.NoError(t, err)
	defer func() { require.NoError(t, mr.Close()) }()
	copy(mr.Bytes(), "for all")
	for range 2 {
		server := acceptOne(ctx, ln, &rdmacm.Config{PD: pd})
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		require.NoError(t, err)
		a := <-server
		require.NoError(t, a.err)
		here := alloc(t, client, 64)
		require.NoError(t, client.Read(ctx, here.All(), mr.Remote()))
		require.Equal(t, mr.Bytes(), here.Bytes())
		require.NoError(t, client.Close())
		require.NoError(t, a.conn.Close())
	}

	everywhere, err := rdmacm.Listen(ctx, ":0", nil)
	require.NoError(t, err)
	_, err = everywhere.Device()
	require.ErrorContains(t, err, "is not bound to a single device; listen on a device's address")
	require.NoError(t, everywhere.Close())
	_, err = everywhere.Device()
	require.ErrorIs(t, err, os.ErrClosed)
}

// A connection with a MessageSize receives from the start. A message that is
// sent at once finds a receive without Setup, on the connection's own queues
// and on a pool's.
func TestReceiveFromTheStart(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	for name, queues := range map[string]rdmacm.Queues{"own": nil, "verbs": new(rdmacm.VerbsQP), "pool": newPool(t, &rdmacm.Pool{})} {
		t.Run(name, func(t *testing.T) {
			const messages = 50
			ctx := bounded(t)
			// No message may wait for a receive.
			config := &rdmacm.Config{Queues: queues, MessageSize: 8, RecvQueue: messages, PeerRNRRetryCount: -1}
			client, server := connect(t, d.IPv4, nil, config)
			sent := inBackground(func() error {
				mr, err := client.Alloc(8, 0)
				if err != nil {
					return err
				}
				for i := range messages {
					mr.Bytes()[0] = byte(i)
					if err := client.Send(ctx, mr.All()); err != nil {
						return err
					}
				}
				return client.Shutdown(ctx)
			})
			m, err := server.Receive(ctx)
			require.NoError(t, err)
			require.Equal(t, make([]byte, 8), m.Data)
			next := byte(1)
			for m, err := range server.Messages(ctx) {
				require.NoError(t, err)
				require.Equal(t, next, m.Data[0])
				next++
			}
			require.EqualValues(t, messages, next)
			require.NoError(t, <-sent)
			_, err = server.Receive(ctx)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = server.NewReceiver(8)
			require.Error(t, err, "its receives are the Receiver's that the connection has")
		})
	}
}

// Receive serves one goroutine at a time, and only connections with a
// MessageSize.
func TestReceiveMistakes(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{MessageSize: 8})
	_, err := client.Receive(ctx)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Config.MessageSize is 0")
	waits := inBackground(func() error {
		for {
			if _, err := server.Receive(ctx); !errors.Is(err, syscall.EBUSY) { // as while the test's call below is in progress
				return err
			}
		}
	})
	brief, cancel := context.WithCancel(ctx)
	cancel()
	soon(t, "the other one waits", func() bool { _, err := server.Receive(brief); return errors.Is(err, syscall.EBUSY) })
	require.NoError(t, client.Send(ctx))
	require.NoError(t, <-waits)
	_, err = server.Receive(brief)
	require.ErrorIs(t, err, context.Canceled)
	for m, err := range server.Messages(brief) {
		require.Nil(t, m)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, client.Send(ctx))
	require.NoError(t, client.Send(ctx))
	for _, err := range server.Messages(ctx) {
		require.NoError(t, err)
		break
	}
	_, err = server.Receive(ctx)
	require.NoError(t, err, "an iterator that ends leaves the later messages")
}
