// SPDX-License-Identifier: Apache-2.0

//go:build linux

package rsocket

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The smallest buffer that a socket can have, which net.core.wmem_default
// cannot undercut, takes what a look shows.
func TestLookFits(t *testing.T) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	defer syscall.Close(fds[0])
	defer syscall.Close(fds[1])
	require.NoError(t, syscall.SetsockoptInt(fds[1], syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1))
	n, err := syscall.Write(fds[1], make([]byte, maxLook))
	require.NoError(t, err)
	require.Equal(t, maxLook, n)
	require.Equal(t, maxLook, unread(fds[0]))
}
