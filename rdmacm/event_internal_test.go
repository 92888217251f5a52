// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The status of an event has five encodings: 0, the kernel's -errno, a reason
// of the transport, the library's -1 with the errno lost, and the library's
// positive errno.
func TestEventErr(t *testing.T) {
	for _, tt := range []struct {
		event  EventType
		status int
		text   string
		is     error
	}{
		{EventAddrError, -int(syscall.ETIMEDOUT), "address not resolved: connection timed out", syscall.ETIMEDOUT},
		{EventRouteError, -int(syscall.EINVAL), "route not resolved: invalid argument", syscall.EINVAL},
		{EventUnreachable, -int(syscall.ETIMEDOUT), "peer unreachable: connection timed out", syscall.ETIMEDOUT},
		{EventMulticastError, -int(syscall.ENODEV), "multicast group not joined: no such device", syscall.ENODEV},

		{EventAddrError, -1, "address not resolved", syscall.EIO},
		{EventRouteError, -1, "route not resolved", syscall.EIO},
		{EventConnectError, -1, "connection failed", syscall.EIO},

		{EventConnectError, int(syscall.EINVAL), "connection failed: invalid argument", syscall.EINVAL},
		{EventAddrInfoError, int(syscall.ENOENT), "name not resolved: no such file or directory", syscall.ENOENT},

		// Only datagrams have this reason.
		{EventUnreachable, 3, "connection rejected: no queue pair available", syscall.ECONNREFUSED},
		{EventUnreachable, 99, "peer unreachable: reason 99", syscall.EHOSTUNREACH},

		{EventDisconnected, 0, "disconnected", syscall.ECONNRESET},
		{EventDeviceRemoval, 0, "device removed", syscall.ENODEV},
		{EventUnreachable, 0, "peer unreachable", syscall.EHOSTUNREACH},
		{EventAddrChange, 0, "address changed", syscall.EIO},

		{EventRejected, int(ReasonConsumer), "connection rejected: refused by the peer's program", syscall.ECONNREFUSED},
		{EventRejected, int(ReasonNoListener), "connection rejected: no program listens on the port", syscall.ECONNREFUSED},
		{EventRejected, 99, "connection rejected: reason 99", syscall.ECONNREFUSED},
		{EventRejected, -int(syscall.ECONNRESET), "connection rejected: connection reset by peer", syscall.ECONNREFUSED},
		{EventRejected, -int(syscall.ECONNRESET), "connection rejected: connection reset by peer", syscall.ECONNRESET},
	} {
		t.Run(fmt.Sprintf("%v %d", tt.event, tt.status), func(t *testing.T) {
			err := (&Event{Type: tt.event, Status: tt.status}).Err()
			require.EqualError(t, err, tt.text)
			require.ErrorIs(t, err, tt.is)
			require.NotErrorIs(t, err, os.ErrClosed)
		})
	}
}

func TestEventWithoutErr(t *testing.T) {
	for _, event := range []EventType{
		EventAddrResolved, EventRouteResolved, EventConnectRequest, EventConnectResponse, EventEstablished,
		EventMulticastJoin, EventTimewaitExit, EventAddrInfoResolved, EventUser,
	} {
		require.NoError(t, (&Event{Type: event}).Err(), event)
	}
}

func TestRejectedErrorHasWhatThePeerSaid(t *testing.T) {
	err := (&Event{Type: EventRejected, Status: int(ReasonConsumer), PrivateData: []byte("full")}).Err()
	rejected, ok := err.(*RejectedError)
	require.True(t, ok)
	require.Equal(t, &RejectedError{Reason: ReasonConsumer, PrivateData: []byte("full")}, rejected)
	require.EqualError(t, &EventError{Type: 99}, "UNKNOWN EVENT (99)")
}
