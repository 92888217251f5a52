// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// mapped returns a mapped page, which unmap takes away. The pages beside it
// stay, so that the hole is too small for what other threads map.
func mapped(t *testing.T) (memory []byte, unmap func()) {
	n := os.Getpagesize()
	all, err := syscall.Mmap(-1, 0, 3*n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	memory = all[n : 2*n]
	return memory, func() {
		_, _, errno := syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(&memory[0])), uintptr(n), 0)
		require.Zero(t, errno)
	}
}

// A program that unmaps what it sends does not take the node along.
func TestFrameOfUnmappedMemory(t *testing.T) {
	memory, unmap := mapped(t)
	p := &wire.Packet{Opcode: wire.RCSendOnly, Payload: [][]byte{memory[:3], memory[7:10]}}
	copy(memory, "abc....def")
	frame := bytes.Repeat([]byte{0xFF}, p.Size())
	require.True(t, marshal(frame, p))
	require.Equal(t, p.Append(nil), frame)
	require.Contains(t, string(frame), "abcdef")
	unmap()
	p.Payload = [][]byte{memory}
	require.False(t, marshal(make([]byte, p.Size()), p))
}

// Nor does it when packets are held back and recorded.
func TestFaultsOfUnmappedMemory(t *testing.T) {
	memory, unmap := mapped(t)
	n := newNode(&program{}, newDoorbell())
	n.slot = 1
	n.network = newMachine(n) // without neighbours
	w := &n.path
	var recorded bytes.Buffer
	w.captures = []*capture{{w: &recorded}}
	w.faults = func(*wire.Packet) Fault { return Fault{Duplicate: 1} }
	packet := func() *wire.Packet {
		p := w.packets.Get()
		p.SGID, p.DGID = wire.GIDOf(loopback), wire.GIDOf(loopback)
		p.Opcode, p.DestQP = wire.RCSendOnly, 1<<qpnBits
		p.Payload = append(p.Payload, memory[:3], memory[7:10])
		return p
	}
	copy(memory, "abc....def")
	w.send(packet())
	memory[0] = 'x' // later than it was sent
	require.Len(t, w.inbox, 2)
	for _, p := range w.inbox {
		require.Equal(t, "abcdef", string(bytes.Join(p.Payload, nil)))
	}
	require.Contains(t, recorded.String(), "abcdef")
	recorded.Reset()
	gone := packet()
	unmap()
	w.send(gone)
	require.Len(t, w.inbox, 2)
	require.Empty(t, recorded.Bytes())
}
