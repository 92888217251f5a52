// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// testRepoll waits with repoll for an rsocket to be connected to.
func testRepoll(t *testing.T) {
	d := testdevice.Require(t)
	address := cm.SockaddrIn{SinFamily: syscall.AF_INET}
	*(*[4]byte)(unsafe.Pointer(&address.SinAddr)) = d.IPv4.As4()
	size := uint32(unsafe.Sizeof(address))
	sockaddr := (*cm.Sockaddr)(unsafe.Pointer(&address))

	listener := rsocket(t)
	require.NoError(t, cm.Rbind(listener, sockaddr, size))
	require.NoError(t, cm.Rgetsockname(listener, sockaddr, &size))
	require.NotEqual(t, verbs.Be16(0), address.SinPort)
	require.NoError(t, cm.Rlisten(listener, 1))

	n, err := cm.RepollCreate(0)
	require.NoError(t, err)
	poll := int32(n)
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: 42, Pad: 43}
	require.NoError(t, cm.RepollCtl(poll, syscall.EPOLL_CTL_ADD, listener, unsafe.Pointer(&event)))
	err = cm.RepollCtl(poll, syscall.EPOLL_CTL_ADD, listener, unsafe.Pointer(&event))
	require.EqualError(t, err, "repoll_ctl: file exists")
	require.ErrorIs(t, err, syscall.EEXIST)
	err = cm.Rclose(poll)
	require.EqualError(t, err, "rclose: device or resource busy", "it has a member")

	events := make([]syscall.EpollEvent, 4)
	n, err = cm.RepollWait(poll, unsafe.Pointer(&events[0]), int32(len(events)), 0)
	require.NoError(t, err)
	require.Zero(t, n, "no client connects yet")

	client := rsocket(t)
	connected := make(chan error, 1)
	go func() { connected <- cm.Rconnect(client, sockaddr, size) }()
	n, err = cm.RepollWait(poll, unsafe.Pointer(&events[0]), int32(len(events)), int32(patience.Milliseconds()))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, event, events[0])
	n, err = cm.Raccept(listener, nil, nil)
	require.NoError(t, err)
	server := int32(n)
	require.NoError(t, <-connected)
	require.NoError(t, cm.RepollCtl(poll, syscall.EPOLL_CTL_DEL, listener, nil))
	require.NoError(t, cm.Rclose(poll))
	require.NoError(t, cm.Rclose(server))
}

// rsocket returns a stream socket that is closed when the test ends.
func rsocket(t *testing.T) int32 {
	t.Helper()
	s, err := cm.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cm.Rclose(int32(s))) })
	return int32(s)
}
