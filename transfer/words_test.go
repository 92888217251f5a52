// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/transfer"
)

// Errors name the call and what it lacks.
func TestWordsOfErrors(t *testing.T) {
	needDevice(t)
	p := newPair(t, transfer.Config{})
	err := p.dialed.Send(bounded(t), make([]byte, transfer.MaxNotification+1))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "Peer.Send (")
	_, err = p.dialed.Region(cmtest.Canceled(t), "absent")
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, p.dialed.String()+` has not offered region "absent": `)
	_, err = p.dialed.Region(bounded(t), "")
	require.ErrorIs(t, err, syscall.EINVAL, "which would never come")

	remote, err := p.dialed.Region(bounded(t), "memory")
	require.NoError(t, err)
	b := p.dialed.NewBatch(1)
	require.NoError(t, b.Write(remote, 0, []byte{1}))
	require.NoError(t, p.a.Close())
	err = b.Submit(bounded(t))
	require.ErrorIs(t, err, os.ErrClosed)
	require.EqualError(t, err, "transfer: the engine is closed: file already closed")
}

// A listener at an address of another device than the engine's could have
// peers, but move nothing.
func TestListenAtOtherDevice(t *testing.T) {
	needSoft(t)
	e := newEngine(t, transfer.Config{Devices: []string{"soft0"}})
	_, err := e.Listen(bounded(t), "10.77.0.2:0", transfer.ListenConfig{})
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
	require.ErrorContains(t, err, "listen on 10.77.0.2:0: transfer: no device of the engine has the address 10.77.0.2")
	ln, err := e.Listen(bounded(t), ":0", transfer.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	other := newEngine(t, transfer.Config{Devices: []string{"soft1"}})
	peer, err := other.Dial(bounded(t), netip.AddrPortFrom(netip.MustParseAddr("10.77.0.1"), ln.Addr().Port()).String(), transfer.DialConfig{})
	require.NoError(t, err)
	require.NoError(t, peer.Close())
}

// What a batch has moved counts from its last Submit on.
func TestProgressOfNextRequests(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	b := p.dialed.NewBatch(1)
	require.NoError(t, carryOut(ctx, b, b.Write(remote, 0, make([]byte, 1000))))
	b.Reset()
	require.NoError(t, b.Write(remote, 0, make([]byte, 10)))
	moved, total := b.Progress()
	require.Equal(t, []int64{0, 10}, []int64{moved, total})
	require.NoError(t, carryOut(ctx, b, nil))
	moved, total = b.Progress()
	require.Equal(t, []int64{10, 10}, []int64{moved, total})
}
