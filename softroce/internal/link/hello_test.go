// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// connected returns the two ends of a connection between processes.
func connected(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	dialed, err := net.Dial("unix", listener.Addr().String())
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = dialed.Close()
		_ = accepted.Close()
	})
	return dialed.(*net.UnixConn), accepted.(*net.UnixConn)
}

// A process is believed to be a node if it says so as this version does, with a
// slot that there is.
func TestHello(t *testing.T) {
	changed := "X" + magic[1:]
	for name, tt := range map[string]struct {
		hello string
		slot  int
		want  error
	}{
		"first slot":      {magic + "\x01", 1, nil},
		"no slot":         {magic + "\x00", 0, syscall.ECONNREFUSED},
		"another version": {changed + "\x01", 0, syscall.ECONNREFUSED},
		"too short":       {magic, 0, io.ErrUnexpectedEOF},
		"nothing":         {"", 0, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connected(t)
			_, err := a.Write([]byte(tt.hello))
			require.NoError(t, err)
			require.NoError(t, a.CloseWrite())
			slot, err := readSlot(b)
			require.ErrorIs(t, err, tt.want)
			require.Equal(t, tt.slot, slot)
		})
	}
}

// A process that has stood still until its time was over believes a node that
// has answered meanwhile.
func TestHelloAfterStandstill(t *testing.T) {
	a, b := connected(t)
	_, err := a.Write([]byte(magic + "\x07"))
	require.NoError(t, err)
	slot, err := (&Link{slot: 8}).exchangeSlots(b, -1)
	require.NoError(t, err)
	require.Equal(t, 7, slot)
	slot, err = readSlot(a)
	require.NoError(t, err)
	require.Equal(t, 8, slot)
}
