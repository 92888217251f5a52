// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
)

// become makes the next event of C's one of another type and status.
func become(c *fakelib.Provider, event rdmacm.EventType, status int) {
	words := struct{ event, status int32 }{int32(event), int32(status)}
	c.Next("event", fakelib.Writes(0, unsafe.Offsetof(librdmacm.CmEvent{}.Event), fakelib.Bytes(&words)))
}

// keep makes the next event of C's what it is.
func keep(c *fakelib.Provider) { c.Next("event") }

// Soft-RoCE has no subnet to ask for a route, and its errors of other kinds
// are few. So each step of a connection ends here in each event that says that
// it failed, with each kind of status.
func TestStepsEndInEvents(t *testing.T) {
	c := open(t)
	const route, request = 1, 2 // events before
	for _, tt := range []struct {
		name    string
		connect func(context.Context) error
		events  int // that come before
		event   rdmacm.EventType
		status  int
		is      error
		text    string
	}{
		{"no address", dial, 0, rdmacm.EventAddrError, -int(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH, "address not resolved: no route to host"},
		{"no address, errno lost", dial, 0, rdmacm.EventAddrError, -1, syscall.EIO, "address not resolved"},
		{"no route", dial, route, rdmacm.EventRouteError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, "route not resolved: connection timed out"},
		{"no route, errno lost", dial, route, rdmacm.EventRouteError, -1, syscall.EIO, "route not resolved"},
		{"device removed", dial, route, rdmacm.EventDeviceRemoval, 0, syscall.ENODEV, "device removed"},
		{"unreachable", dial, request, rdmacm.EventUnreachable, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, "peer unreachable: connection timed out"},
		{"connect error, errno lost", dial, request, rdmacm.EventConnectError, -1, syscall.EIO, "connection failed"},
		{"connect error", dial, request, rdmacm.EventConnectError, int(syscall.EOPNOTSUPP), syscall.EOPNOTSUPP, "connection failed: operation not supported"},
		{"rejected on iWARP", dial, request, rdmacm.EventRejected, -int(syscall.ECONNRESET), syscall.ECONNRESET, "connection rejected: connection reset by peer"},
		{"stale", dial, request, rdmacm.EventRejected, int(rdmacm.ReasonStale), syscall.ECONNREFUSED, "connection rejected: stale connection"},
		{"gone at once", dial, request, rdmacm.EventDisconnected, 0, syscall.ECONNRESET, "disconnected"},
		{"dialer gone", accept, 1, rdmacm.EventRejected, int(rdmacm.ReasonConsumer), syscall.ECONNREFUSED, "connection rejected: refused by the peer's program"},
		{"dialer silent", accept, 1, rdmacm.EventUnreachable, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT, "peer unreachable: connection timed out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range tt.events {
				keep(c)
			}
			become(c, tt.event, tt.status)
			err := tt.connect(bounded(t))
			require.ErrorIs(t, err, tt.is)
			require.ErrorContains(t, err, tt.text)
		})
	}
}

// Every type of event with everything that C's struct can have, field by field.
func TestFieldsOfEvents(t *testing.T) {
	c := open(t)
	ids := openIDs(t)
	data := []byte("private")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&data[0])
	raw := func(event rdmacm.EventType, status int32) *librdmacm.CmEvent {
		ev := &librdmacm.CmEvent{Id: ids.client.Raw(), Event: event, Status: status}
		*ev.Param.Conn() = librdmacm.ConnParam{
			PrivateData: unsafe.Pointer(&data[0]), PrivateDataLen: uint8(len(data)),
			ResponderResources: 1, InitiatorDepth: 2, FlowControl: 3, RetryCount: 4, RnrRetryCount: 5, Srq: 6, QpNum: 7,
		}
		return ev
	}
	connection := rdmacm.Event{
		PrivateData: data, ResponderResources: 1, InitiatorDepth: 2,
		FlowControl: true, RetryCount: 4, RNRRetryCount: 5, SRQ: true, QPNum: 7,
	}
	for event := rdmacm.EventAddrResolved; event <= rdmacm.EventUser; event++ {
		t.Run(event.String(), func(t *testing.T) {
			const status = -int(syscall.EXDEV)
			want := rdmacm.Event{}
			ev := raw(event, int32(status))
			switch event {
			case rdmacm.EventConnectRequest:
				return // TestIDsOverLibraries has some; this one would be a new id
			case rdmacm.EventConnectResponse, rdmacm.EventEstablished, rdmacm.EventRejected, rdmacm.EventUnreachable,
				rdmacm.EventDisconnected:
				want = connection
			case rdmacm.EventMulticastJoin, rdmacm.EventMulticastError:
				*ev.Param.Ud() = librdmacm.UdParam{QpNum: 7, Qkey: 8}
				ev.Param.Ud().AhAttr.Dlid = 9
				ev.Param.Ud().AhAttr.PortNum = 1
				want = rdmacm.Event{QPNum: 7, QKey: 8}
				want.Path.DLID, want.Path.Port = 9, 1
			case rdmacm.EventUser:
				*ev.Param.Arg() = 1 << 40
				want = rdmacm.Event{Arg: 1 << 40}
			}
			want.Type, want.Status = event, status
			c.Next("event", fakelib.Writes(0, 0, fakelib.Bytes(ev)))
			require.NoError(t, ids.client.WriteUserEvent(0, 0))
			got, err := ids.channel.Next(bounded(t))
			require.NoError(t, err)
			require.Same(t, ids.client, got.ID)
			rest := *got
			rest.ID = nil
			require.Equal(t, want, rest)
			if err := got.Err(); err != nil {
				require.ErrorIs(t, err, syscall.EXDEV)
			}
		})
	}
}

// What comes after the end of a connection, or has no meaning for it, changes
// nothing.
func TestLateEvents(t *testing.T) {
	c := open(t)
	conn, err := rdmacm.Dial(bounded(t), address, nil)
	require.NoError(t, err)
	for _, event := range []rdmacm.EventType{
		rdmacm.EventTimewaitExit, rdmacm.EventAddrChange, rdmacm.EventUnreachable, rdmacm.EventUser, rdmacm.EventAddrInfoResolved,
	} {
		become(c, event, 0)
		require.NoError(t, conn.ID().WriteUserEvent(0, 0))
	}
	become(c, rdmacm.EventDisconnected, 0)
	require.NoError(t, conn.ID().WriteUserEvent(0, 0))
	require.NoError(t, conn.Wait(bounded(t)))
	require.ErrorIs(t, conn.Err(), syscall.ECONNRESET)
	become(c, rdmacm.EventDeviceRemoval, 0)
	require.NoError(t, conn.ID().WriteUserEvent(0, 0))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, conn.Err(), syscall.ECONNRESET, "the first cause stays")
}
