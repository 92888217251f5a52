// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"io"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// The memory of closed connections serves again, and has nothing of what its
// last connection received.
func TestMemoryServesAgain(t *testing.T) {
	ln := listen(t, rsocket.Config{})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would free the memory
	const size = 3000
	known := map[uintptr]bool{}
	served := 0
	for range 30 { // with -race, some is freed at once
		a, b := pairOn(t, ln, rsocket.Config{})
		for _, c := range []*rsocket.Conn{a, b} {
			received := rsocket.Received(c)
			require.True(t, bytes.Equal(make([]byte, len(received)), received), "bytes of another connection")
			address := uintptr(unsafe.Pointer(unsafe.SliceData(received)))
			if known[address] {
				served++
			}
			known[address] = true
		}
		for from, to := range map[*rsocket.Conn]*rsocket.Conn{a: b, b: a} {
			_, err := from.Write(bytes.Repeat([]byte{0xaa}, size))
			require.NoError(t, err)
			_, err = io.ReadFull(to, make([]byte, size))
			require.NoError(t, err)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		_, err := b.Read(make([]byte, 1))
		require.Error(t, err)
		_, err = a.Write(make([]byte, 1))
		require.Error(t, err)
	}
	require.Positive(t, served)
}

// What the program has got of the memory is not used again.
func TestMemoryIsKept(t *testing.T) {
	ln := listen(t, rsocket.Config{})
	want := []byte("what the program has seen")
	for name, look := range map[string]func(c *rsocket.Conn) []byte{
		"Peek": func(c *rsocket.Conn) []byte {
			got, err := c.Peek(len(want))
			require.NoError(t, err)
			return got
		},
		"WriteTo": func(c *rsocket.Conn) []byte {
			var k keeper
			_, err := c.WriteTo(&k)
			require.ErrorIs(t, err, io.ErrShortWrite)
			return k.got
		},
	} {
		a, b := pairOn(t, ln, rsocket.Config{})
		_, err := a.Write(want)
		require.NoError(t, err)
		got := look(b)
		require.Equal(t, want, got, name)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		for range 10 {
			a, b := pairOn(t, ln, rsocket.Config{})
			_, err := a.Write(bytes.Repeat([]byte{0xaa}, 2*len(want)))
			require.NoError(t, err)
			_, err = io.ReadFull(b, make([]byte, 2*len(want)))
			require.NoError(t, err)
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
			require.Equal(t, want, got, name)
		}
	}
}

// keeper keeps the memory of a Write, against the rules, and takes nothing.
type keeper struct{ got []byte }

func (k *keeper) Write(b []byte) (int, error) {
	k.got = b
	return 0, nil
}

// The memory is not used again if Close finds a call that uses it.
func TestMemoryInUse(t *testing.T) {
	want := []byte("what has arrived before Close")
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	_, err := a.Write(want)
	require.NoError(t, err)
	_, err = b.Read(make([]byte, 1))
	require.NoError(t, err)
	received, release := rsocket.Received(b), rsocket.HoldReader(t, b)
	defer release()
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Equal(t, want, received[:len(want)])
}
