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
		require.ErrorIs(t, err, transfer.ErrRestarted)
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
