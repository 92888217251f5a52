// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// victim accepts a connection at an address and reads the peer's memory until
// it is killed. With dial before the address, it connects instead.
func victim(args []string) error {
	ctx := context.Background()
	if args[0] == "dial" {
		return dialVictim(ctx, args[1])
	}
	ln, err := rdmacm.Listen(ctx, args[0], nil)
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	req, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	var mr *ibverbs.MR
	var first *rdmacm.Receive
	conn, err := req.Accept(ctx, inPool(&rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		if mr, err = c.Alloc(1<<20, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
			return err
		}
		first, err = c.PostRecv(mr.All())
		return err
	}}))
	if err != nil {
		return err
	}
	fmt.Println(mr.Remote().Addr, mr.Remote().RKey)
	if _, err := first.Wait(ctx); err != nil {
		return err
	}
	fmt.Println("received")
	<-conn.Done()
	return conn.Err()
}

func TestPeerIsKilled(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	peer := process.Start(t, process.Command(t, "victim", netip.AddrPortFrom(d.IPv4, 0).String()))
	conn, err := rdmacm.Dial(ctx, peer.Line(), inPool(nil))
	require.NoError(t, err)
	mr := alloc(t, conn, 1<<20)
	remote := ibverbs.RemoteBuffer{Len: 1 << 20}
	_, err = fmt.Sscan(peer.Line(), &remote.Addr, &remote.RKey)
	require.NoError(t, err)
	require.NoError(t, conn.Send(ctx, mr.Sub(0, 8)))
	require.Equal(t, "received", peer.Line())

	pending, err := conn.PostRecv(alloc(t, conn, 64).All())
	require.NoError(t, err)
	received, writing := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := pending.Wait(ctx)
		received <- err
	}()
	go func() { // large writes, one after the other
		for {
			if err := conn.Write(ctx, remote, mr.All()); err != nil {
				writing <- err
				return
			}
		}
	}()
	require.NoError(t, conn.Write(ctx, remote, mr.All()), "it is under way")
	start := time.Now()
	peer.Kill()
	for name, result := range map[string]chan error{"write": writing, "receive": received} {
		err := <-result
		t.Logf("%s: %v, after %v", name, err, time.Since(start))
		require.Error(t, err)
		require.NoError(t, ctx.Err(), "by itself")
	}
	require.Equal(t, -1, peer.Wait(), "by the signal")
	awaitEnd(t, conn)
	require.NoError(t, conn.Close())
}
