// SPDX-License-Identifier: Apache-2.0

//go:build linux

package rsocket

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A packet for which a socket's buffer has no room is dropped, and nothing
// waits. A UDP socket of the host itself always has room, so the socket is one
// of a process.
func TestSendNow(t *testing.T) {
	folder, err := os.MkdirTemp("", "verbena")
	require.NoError(t, err)
	defer os.RemoveAll(folder)
	name := net.UnixAddr{Name: filepath.Join(folder, "socket"), Net: "unixgram"}
	receiver, err := net.ListenUnixgram("unixgram", &name)
	require.NoError(t, err)
	defer receiver.Close()
	sender, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(folder, "sender"), Net: "unixgram"})
	require.NoError(t, err)
	defer sender.Close()
	const most = 10000
	sent := make(chan error, 1)
	go func() {
		for range most {
			if err := sendNow(sender, make([]byte, 1000), &syscall.SockaddrUnix{Name: name.Name}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	select {
	case err := <-sent:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.FailNow(t, "sendNow waits for room")
	}
	received := 0
	for ; received < most; received++ {
		require.NoError(t, receiver.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		if _, err := receiver.Read(make([]byte, 1000)); err != nil {
			break
		}
	}
	require.Positive(t, received)
	require.Less(t, received, most, "the buffer was never full")
	require.NoError(t, sender.Close())
	require.ErrorIs(t, sendNow(sender, nil, &syscall.SockaddrUnix{Name: name.Name}), net.ErrClosed)
}
