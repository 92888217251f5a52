// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// listen returns a listener, which is closed at the end of the test.
func listen(t *testing.T, address string) *rdmacm.Listener {
	t.Helper()
	ln, err := rdmacm.Listen(t.Context(), address, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// dialInBackground returns the error of a Dial that does not succeed.
func dialInBackground(ctx context.Context, address string) <-chan error {
	return cmtest.InBackground(func() error {
		_, err := valkeyrdma.Dial(ctx, "rdma", address)
		return err
	})
}

// requireNoHandshakes waits until no handshake with the address is under way.
func requireNoHandshakes(t *testing.T, address string) {
	t.Helper()
	cmtest.Soon(t, "all handshakes end", func() bool { return valkeyrdma.Handshakes(address) == 0 })
}

// openQPs returns how many queue pairs the process has.
func openQPs() (n int) {
	for _, object := range ibverbs.OpenObjects() {
		if strings.HasPrefix(object, "QP") {
			n++
		}
	}
	return n
}

// However many calls of Dial have ended, few handshakes with a server are under
// way, and other servers can be dialed.
func TestManyGiveUp(t *testing.T) {
	d := cmtest.NeedDevice(t)
	testdevice.NoLeaks(t)
	pairs := openQPs()
	ln := listen(t, netip.AddrPortFrom(d.IPv4, 0).String())
	address := ln.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dials []<-chan error
	var requests []*rdmacm.Request
	for range valkeyrdma.MaxHandshakes {
		dials = append(dials, dialInBackground(ctx, address))
		req, err := ln.Accept(cmtest.Bounded(t))
		require.NoError(t, err)
		requests = append(requests, req)
	}
	cancel()
	for _, dialed := range dials {
		require.ErrorIs(t, cmtest.Take(t, dialed, "a Dial"), context.Canceled)
	}

	brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, <-dialInBackground(brief, address), context.DeadlineExceeded)
	require.Equal(t, pairs+valkeyrdma.MaxHandshakes, openQPs())

	other, served := serveFake(t, func(f *fake) error { return errors.Join(f.greet(f.window()), f.waitForEnd()) })
	c, err := valkeyrdma.Dial(cmtest.Bounded(t), "rdma", other)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, cmtest.Take(t, served, "the server's end"))

	waits := dialInBackground(t.Context(), address)
	for _, req := range requests {
		require.NoError(t, req.Reject(nil))
	}
	req, err := ln.Accept(cmtest.Bounded(t))
	require.NoError(t, err)
	require.NoError(t, req.Reject(nil))
	require.ErrorIs(t, cmtest.Take(t, waits, "the Dial that waits"), syscall.ECONNREFUSED)
	requireNoHandshakes(t, address)
	require.Equal(t, pairs, openQPs())
	cmtest.Soon(t, "no address is remembered", func() bool { return valkeyrdma.Addresses() == 0 })
}

// When its context has ended, Dial sends no request to the host's other
// addresses.
func TestGiveUpBeforeNextAddress(t *testing.T) {
	cmtest.NeedDevice(t)
	testdevice.NoLeaks(t)
	ln := listen(t, ":0")
	address := ":" + strconv.Itoa(int(ln.Addr().Port()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialed := dialInBackground(ctx, address)
	req, err := ln.Accept(cmtest.Bounded(t))
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, cmtest.Take(t, dialed, "Dial"), context.Canceled)
	another := cmtest.InBackground(func() error {
		req, err := ln.Accept(context.Background())
		if err != nil {
			return nil // the listener is closed
		}
		return errors.Join(errors.New("another request"), req.Reject(nil))
	})
	require.NoError(t, req.Reject(nil))
	requireNoHandshakes(t, address)
	require.NoError(t, ln.Close())
	require.NoError(t, cmtest.Take(t, another, "the listener"))
}

// A server that says nothing ends Dial with its context. Dial does not wait as
// Close does, whose last message the server would get.
func TestSilentServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	address, served := serveFake(t, func(f *fake) error {
		for m, err := range f.messages.Messages(context.Background()) {
			if err == nil && binary.BigEndian.Uint16(m.Data) == 2 {
				err = errors.New("a message of Close")
			}
			if err != nil {
				return err
			}
			cancel()
		}
		return nil
	})
	_, err := valkeyrdma.Dial(ctx, "rdma", address)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, cmtest.Take(t, served, "the server's end"))
}
