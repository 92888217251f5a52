// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// A handshake hangs in the middle because the dialer does not confirm the
// answer. Events of other connections do not disturb it meanwhile.
func TestAcceptIsNotDisturbed(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	dial := func() (client, server *rdmacm.Conn) {
		result := acceptOne(ctx, ln, nil)
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		require.NoError(t, err)
		a := <-result
		require.NoError(t, a.err)
		return client, a.conn
	}
	endedByClient, server1 := dial()
	client2, endedByServer := dial()
	stays, server3 := dial()

	slow := newEnd(t)
	slow.resolve(netip.MustParseAddrPort(ln.Addr().String()))
	require.NoError(t, slow.id.Connect(rdmacm.ConnParam{QPNum: newQP(), PrivateData: []byte("slow")}))
	accepting := acceptOne(ctx, ln, &rdmacm.Config{PrivateData: []byte("welcome"), HandshakeTimeout: -1})
	answer := next(t, slow.ch, rdmacm.EventConnectResponse)
	require.Equal(t, padded([]byte("welcome"), maxReplyData), answer.PrivateData)

	// Either side closes older connections.
	require.NoError(t, endedByClient.Close())
	require.NoError(t, server1.Wait(ctx))
	require.NoError(t, endedByServer.Close())
	require.NoError(t, client2.Wait(ctx))
	// Another dialer is refused, and one dials a port without a listener.
	refused := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		refused <- err
	}()
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, req.Reject([]byte("full")))
	rejected, ok := errors.AsType[*rdmacm.RejectedError](<-refused)
	require.True(t, ok)
	require.Equal(t, padded([]byte("full"), maxRejectData), rejected.PrivateData)
	_, err = rdmacm.Dial(ctx, netip.AddrPortFrom(d.IPv4, 7).String(), inPool(nil))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	// Another dialer connects.
	late, server4 := dial()

	select {
	case a := <-accepting:
		require.Fail(t, "accepted too early", "%v", a.err)
	default:
	}
	require.NoError(t, slow.id.Establish())
	a := <-accepting
	require.NoError(t, a.err)
	require.Equal(t, padded([]byte("slow"), maxRequestData), a.req.PrivateData())
	for _, conn := range []*rdmacm.Conn{stays, server3, late, server4, a.conn} {
		require.NoError(t, conn.Err())
	}
	require.NoError(t, slow.id.Disconnect())
	require.NoError(t, a.conn.Wait(ctx))
	for _, conn := range []*rdmacm.Conn{server1, client2, stays, server3, late, server4, a.conn} {
		require.NoError(t, conn.Close())
	}
}

// Requests that come at once get their own answers. Each dialer hears what was
// said to it, whichever others are accepted or refused.
func TestRequestsAtOnce(t *testing.T) {
	const dialers = 16
	d := needDevice(t)
	noKernelLeaks(t, d)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	start := make(chan struct{})
	var all sync.WaitGroup
	for n := range dialers {
		all.Go(func() {
			<-start
			if err := dialAndCompare(ctx, ln.Addr().String(), n); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	require.Eventually(t, func() bool { return rdmacm.Waiting(ln) == dialers }, patience, time.Millisecond)
	for range dialers {
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		all.Go(func() {
			if err := answerInKind(ctx, req); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// dialAndCompare expects a refusal if n is odd. Either way it hears its own
// number.
func dialAndCompare(ctx context.Context, address string, n int) error {
	name := fmt.Sprintf("number %04d", n)
	conn, err := rdmacm.Dial(ctx, address, inPool(&rdmacm.Config{PrivateData: []byte(name)}))
	var heard []byte
	if n%2 == 1 {
		rejected, ok := errors.AsType[*rdmacm.RejectedError](err)
		if !ok {
			return fmt.Errorf("%s: %w", name, err)
		}
		heard = rejected.PrivateData
	} else {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		heard = conn.PeerData()
		err = errors.Join(conn.Wait(ctx), conn.Close())
	}
	if got := string(heard[:len(name)]); got != name {
		return fmt.Errorf("%s heard %s", name, got)
	}
	if n%2 == 1 {
		return nil
	}
	return err
}

func answerInKind(ctx context.Context, req *rdmacm.Request) error {
	name := req.PrivateData()[:len("number 0000")]
	if (name[len(name)-1]-'0')%2 == 1 {
		return req.Reject(name)
	}
	conn, err := req.Accept(ctx, inPool(&rdmacm.Config{PrivateData: name}))
	if err != nil {
		return err
	}
	return conn.Close()
}
