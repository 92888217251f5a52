// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/transfer"
)

// A peer that cannot be reached any more ends what waits for it, at the end
// that has dialed as well.
func TestPeerStaysAway(t *testing.T) {
	needDevice(t)
	if !testdevice.Soft() {
		t.Skip("loses packets")
	}
	ctx := bounded(t)
	config := transfer.Config{RetryTimeout: time.Second}
	a, b := newEngine(t, config), newEngine(t, config)
	dialed, accepted := connect(t, a, b)
	mend := testdevice.LosePackets(t)
	for _, p := range []*transfer.Peer{dialed, accepted} {
		err := p.Send(ctx, []byte("lost"))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.ErrorIs(t, err, transfer.ErrSessionEnded)
	}
	<-accepted.Done()
	require.ErrorIs(t, accepted.Err(), syscall.ETIMEDOUT)
	require.Zero(t, dialed.Incarnation())
	mend()
	require.NoError(t, a.Close())
}

// What the dialer showed is known at the other end, which can tell its peers
// apart by it.
func TestCredentials(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	a, b := newEngine(t, transfer.Config{}), newEngine(t, transfer.Config{})
	ln, err := b.Listen(ctx, ":0", transfer.ListenConfig{
		Authenticate: func(_ context.Context, _ netip.AddrPort, credentials []byte) ([]byte, error) {
			if string(credentials) != "prefill 1" {
				return nil, syscall.EPERM
			}
			return []byte("welcome"), nil
		},
	})
	require.NoError(t, err)
	_, err = a.Dial(ctx, at(t, ln), transfer.DialConfig{Credentials: []byte("prefill 2")})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.ErrorContains(t, err, syscall.EPERM.Error())
	_, err = a.Dial(ctx, at(t, ln), transfer.DialConfig{
		Credentials: []byte("prefill 1"), Verify: func([]byte) error { return syscall.ESRCH },
	})
	require.ErrorIs(t, err, transfer.ErrRefused)
	require.ErrorIs(t, err, syscall.ESRCH)
	var answer []byte
	dialed, err := a.Dial(ctx, at(t, ln), transfer.DialConfig{
		Credentials: []byte("prefill 1"), Verify: func(b []byte) error { answer = b; return nil },
	})
	require.NoError(t, err)
	require.Equal(t, "welcome", string(answer))
	require.Empty(t, dialed.Credentials())
	require.NotZero(t, dialed.Incarnation())
	for {
		accepted, err := ln.Accept(ctx)
		require.NoError(t, err)
		require.Equal(t, "prefill 1", string(accepted.Credentials()))
		if accepted.Incarnation() != 0 { // the other one, that Verify refused, has ended or will
			break
		}
	}
}

// The end that has dialed learns from Receive that a session has ended, can
// send to the next one, and ends when it is refused.
func TestNextSession(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	a := newEngine(t, transfer.Config{})
	refuse := false
	listen := func(address string) (*transfer.Engine, *transfer.Listener) {
		e := newEngine(t, transfer.Config{})
		ln, err := e.Listen(ctx, address, transfer.ListenConfig{
			Authenticate: func(context.Context, netip.AddrPort, []byte) ([]byte, error) {
				if refuse {
					return nil, syscall.EPERM
				}
				return nil, nil
			},
		})
		require.NoError(t, err)
		return e, ln
	}
	b, ln := listen(":0")
	address := at(t, ln)
	dialed, err := a.Dial(ctx, address, transfer.DialConfig{})
	require.NoError(t, err)
	accepted, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, accepted.Send(ctx, []byte("last")))
	first := dialed.Incarnation()

	require.NoError(t, b.Close())
	message, err := dialed.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "last", string(message))
	_, err = dialed.Receive(ctx)
	require.ErrorIs(t, err, transfer.ErrSessionEnded)
	ended, end := context.WithCancel(ctx)
	end()
	require.ErrorIs(t, dialed.Send(ended, nil), context.Canceled)
	require.Zero(t, dialed.Stats().Pending)
	sent := make(chan error, 1)
	go func() { sent <- dialed.Send(ctx, []byte("to the next")) }() // waits for it
	c, ln := listen(address)
	accepted, err = ln.Accept(ctx)
	require.NoError(t, err)
	message, err = accepted.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "to the next", string(message))
	require.NoError(t, <-sent)
	require.NotEqual(t, first, dialed.Incarnation())

	require.NoError(t, c.Close())
	refuse = true
	_, _ = listen(address)
	<-dialed.Done()
	require.ErrorIs(t, dialed.Err(), transfer.ErrRefused)
	require.ErrorIs(t, dialed.Send(ctx, nil), transfer.ErrRefused)
	for err == nil { // the end of the session comes first
		_, err = dialed.Receive(ctx)
	}
	require.ErrorIs(t, err, transfer.ErrSessionEnded)
	_, err = dialed.Receive(ctx)
	require.ErrorIs(t, err, transfer.ErrRefused)
}
