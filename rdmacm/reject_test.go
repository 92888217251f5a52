// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// A peer that has given up need not be rejected.
func TestRejectAfterPeerGaveUp(t *testing.T) {
	d := needDevice(t)
	giveUp := func(t *testing.T) *rdmacm.Request {
		t.Helper()
		ln := listenOn(t, d.IPv4)
		ctx, cancel := context.WithCancel(bounded(t))
		dialed := inBackground(func() error {
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
			return err
		})
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, <-dialed, context.Canceled)
		soon(t, "the peer's message", func() bool { // that it has given up
			_, _, err := req.Event().ID.InitQPAttr(ibverbs.QPStateRTR)
			return err != nil
		})
		return req
	}
	t.Run("Request.Reject", func(t *testing.T) {
		req := giveUp(t)
		require.NoError(t, req.Reject([]byte("no")))
		require.ErrorIs(t, req.Reject(nil), os.ErrClosed)
	})
	t.Run("ID.Reject", func(t *testing.T) {
		req := giveUp(t)
		require.ErrorIs(t, req.Event().ID.Reject(nil), syscall.ECONNRESET)
		require.NoError(t, req.Reject(nil))
	})
	t.Run("DatagramRequest.Reject", func(t *testing.T) {
		ln := listenDatagram(t, d.IPv4)
		ctx, cancel := context.WithCancel(bounded(t))
		dialed := inBackground(func() error {
			_, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
			return err
		})
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, <-dialed, context.Canceled)
		require.NoError(t, req.Reject(nil))
	})
	t.Run("twice", func(t *testing.T) {
		ln := listenOn(t, d.IPv4)
		dialed := inBackground(func() error {
			_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
			return err
		})
		req, err := ln.Accept(bounded(t))
		require.NoError(t, err)
		require.NoError(t, req.Event().ID.Reject(nil))
		require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
		require.ErrorIs(t, req.Event().ID.Reject(nil), syscall.EINVAL, "a mistake of the caller's")
		require.Error(t, req.Reject(nil), "which closes the ID nevertheless")
	})
}
