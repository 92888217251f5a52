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

// Values that are nil or not made by this package, and a nil context, get an
// error, with or without a device.
func TestNilAndZero(t *testing.T) {
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
			"Wait": c.Wait(ctx),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, "%s %s", name, method)
		}
	}
	for name, r := range map[string]*rdmacm.Receive{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Wait(ctx)), os.ErrInvalid, name)
		require.ErrorIs(t, second(r.Sender()), syscall.EINVAL, name)
		_, ok := r.Imm()
		require.False(t, ok)
	}
	for name, ln := range map[string]*rdmacm.Listener{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(ln.Accept(ctx)), os.ErrInvalid, name)
		require.ErrorIs(t, ln.Close(), os.ErrInvalid, name)
		require.False(t, ln.Addr().IsValid(), name)
	}
	for name, r := range map[string]*rdmacm.Request{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Accept(ctx, inPool(nil))), os.ErrInvalid, name)
		require.ErrorIs(t, r.Reject(nil), os.ErrInvalid, name)
		require.Nil(t, r.PrivateData(), name)
	}
	for name, ln := range map[string]*rdmacm.DatagramListener{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(ln.Accept(ctx)), os.ErrInvalid, name)
		require.ErrorIs(t, ln.Close(), os.ErrInvalid, name)
		require.False(t, ln.Addr().IsValid(), name)
	}
	for name, r := range map[string]*rdmacm.DatagramRequest{"nil": nil, "zero": {}} {
		require.ErrorIs(t, second(r.Accept(ctx, nil)), os.ErrInvalid, name)
		require.ErrorIs(t, r.AcceptOn(nil, nil), os.ErrInvalid, name)
		require.ErrorIs(t, r.Reject(nil), os.ErrInvalid, name)
	}
	var none context.Context
	for name, err := range map[string]error{
		"Dial":                second(rdmacm.Dial(none, "192.0.2.1:7", inPool(nil))),
		"Listen":              second(rdmacm.Listen(none, "192.0.2.1:7", nil)),
		"DialDatagram":        second(rdmacm.DialDatagram(none, "192.0.2.1:7", nil)),
		"ListenDatagram":      second(rdmacm.ListenDatagram(none, ":7", nil)),
		"JoinGroup":           second(rdmacm.JoinGroup(none, groupIPv4, nil)),
		"dialer":              second((*rdmacm.Dialer)(nil).Dial(ctx, "192.0.2.1:7")),
		"dialer of datagrams": second((*rdmacm.Dialer)(nil).DialDatagram(ctx, "192.0.2.1:7", nil)),
	} {
		require.ErrorContains(t, err, " is nil", name)
	}
}
