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

// A program that unmaps what it sends does not take the node along.
func TestFrameOfUnmappedMemory(t *testing.T) {
	memory, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	p := &wire.Packet{Opcode: wire.RCSendOnly, Payload: [][]byte{memory[:3], memory[7:10]}}
	copy(memory, "abc....def")
	frame := bytes.Repeat([]byte{0xFF}, p.Size())
	require.True(t, marshal(frame, p))
	require.Equal(t, p.Append(nil), frame)
	require.Contains(t, string(frame), "abcdef")
	gone := unsafe.Slice(&memory[0], len(memory))
	require.NoError(t, syscall.Munmap(memory))
	p.Payload = [][]byte{gone}
	require.False(t, marshal(make([]byte, p.Size()), p))
}

// Nor does it when packets are held back and recorded.
func TestFaultsOfUnmappedMemory(t *testing.T) {
	memory, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
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
	require.NoError(t, syscall.Munmap(memory))
	w.send(gone)
	require.Len(t, w.inbox, 2)
	require.Empty(t, recorded.Bytes())
}
