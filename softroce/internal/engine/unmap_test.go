// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engine

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// mapped registers memory that unmap takes a page of away. The pages beside it
// stay, so that the hole is too small for what other threads map.
func (e *end) mapped(n int) (m *MR, unmap func(offset int)) {
	page := os.Getpagesize()
	all, err := syscall.Mmap(-1, 0, n+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(e.t, err)
	b := all[page:][:n]
	m, err = e.pd.RegisterMR(b, uint64(uintptr(unsafe.Pointer(&b[0]))), allAccess)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, syscall.Munmap(all)) })
	return m, func(offset int) {
		_, _, errno := syscall.Syscall(syscall.SYS_MUNMAP, uintptr(unsafe.Pointer(&b[offset])), uintptr(page), 0)
		require.Zero(e.t, errno)
	}
}

// A program that unmaps memory that it has registered gets errors, and the
// process lives.
func TestUnmapped(t *testing.T) {
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		local  bool // the requester's memory is gone
		sender libibverbs.WcStatus
		recv   libibverbs.WcStatus
	}{
		"send from it":       {send, true, libibverbs.IBV_WC_RETRY_EXC_ERR, noRecv},
		"write from it":      {write, true, libibverbs.IBV_WC_RETRY_EXC_ERR, noRecv},
		"read into it":       {read, true, locProt, noRecv},
		"atomic into it":     {fetchAdd, true, locProt, noRecv},
		"receive into it":    {send, false, remOp, locProt},
		"write into it":      {write, false, remAccess, noRecv},
		"read from it":       {read, false, libibverbs.IBV_WC_RETRY_EXC_ERR, noRecv},
		"atomic on it":       {fetchAdd, false, remAccess, noRecv},
		"swap on it":         {cmpSwap, false, remAccess, noRecv},
		"long write into it": {write, false, remAccess, noRecv},
	} {
		for _, merges := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", merged: ", merges), func(t *testing.T) {
				l, a, b := newLoop(t, 1<<16) // whose packets hold the program's memory itself
				l.Device.config.Merges = func() bool { return merges }
				a.qp.attr.RetryCnt, a.qp.requester.retries = 1, 1
				size, hole := 100, 0
				switch {
				case name == "long write into it":
					size, hole = 30000, 1<<14
				case tt.opcode == fetchAdd || tt.opcode == cmpSwap:
					size = 8
				}
				from, to := a.mr, b.mr
				var unmap func(int)
				if tt.local {
					from, unmap = a.mapped(1 << 16)
				} else {
					to, unmap = b.mapped(1 << 16)
				}
				b.postRecv(7, to.sge(0, size))
				a.post(SendSlot{ID: 1, Opcode: tt.opcode, RemoteAddr: to.iova, RKey: to.key}, from.sge(0, size))
				unmap(hole)
				for now := time.Duration(0); now != Never; {
					now = l.Advance(now)
					inbox := l.inbox
					l.inbox = nil
					for _, p := range inbox {
						l.Receive(p)
					}
					if len(inbox) > 0 {
						now = l.Device.now
					}
				}
				require.Equal(t, []result{{1, tt.sender}}, results(a.send))
				got := results(b.recv)
				switch {
				case tt.recv != noRecv:
					require.Equal(t, []result{{7, tt.recv}}, got)
				case tt.sender == remAccess:
					require.Equal(t, []result{{7, flushed}}, got)
				default:
					require.Empty(t, got)
				}
			})
		}
	}
}

// A message may have 2^31 bytes, and no more.
func TestLongestMessage(t *testing.T) {
	const longest = 1 << 31
	b, err := syscall.Mmap(-1, 0, longest, syscall.PROT_READ, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(b)) }()
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		mtu    int
		more   uint32
		want   libibverbs.WcStatus
	}{
		"send": {send, 4096, 0, success}, "long send": {send, 4096, 1, locLen}, "write": {write, 256, 0, success},
		"long write": {write, 256, 1, locLen}, "read": {read, 512, 0, success}, "long read": {read, 4096, 1, locLen},
		// The PSNs of its answer would be more than half of all.
		"read of small packets": {read, 256, 0, locLen},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, p := n.pair(libibverbs.IBV_QPT_RC, 64)
			a.qp.mtu, p.qp.mtu = tt.mtu, tt.mtu
			m, err := a.pd.RegisterMR(b, uint64(uintptr(unsafe.Pointer(&b[0]))), libibverbs.IBV_ACCESS_LOCAL_WRITE)
			require.NoError(t, err)
			a.post(SendSlot{ID: 1, Opcode: tt.opcode}.remote(p, 0),
				libibverbs.Sge{Addr: m.iova, Length: longest, Lkey: m.key}, libibverbs.Sge{Addr: m.iova, Length: tt.more, Lkey: m.key})
			a.Advance(0)
			if tt.want != success {
				require.Equal(t, []result{{1, tt.want}}, results(a.send))
				require.Empty(t, a.sent)
				return
			}
			require.Empty(t, results(a.send))
			require.NotEmpty(t, a.sent)
			require.Equal(t, longest/tt.mtu, a.qp.requester.requests[0].packets)
		})
	}
}

// If a message is dropped, the device tells what it has written of it to a
// receive that serves the next message.
func TestOverwritten(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) (receiver *end, exchange func(), want uint32){
		"too long unreliable message": func(t *testing.T) (*end, func(), uint32) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_UC, 8192)
			b.postRecv(7, b.mr.sge(0, b.qp.mtu+100))
			a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, b.qp.mtu+101))
			return b, n.run, uint32(b.qp.mtu)
		},
		"too long datagram": func(t *testing.T) (*end, func(), uint32) {
			n := newNetwork(t, 1)
			a, b := n.datagramPair()
			b.postRecv(7, b.mr.sge(0, 100))
			a.post(SendSlot{ID: 1, Opcode: send}.to(a, b), a.mr.sge(0, 100))
			return b, n.run, 0
		},
		"unmapped message": func(t *testing.T) (*end, func(), uint32) {
			l, a, b := newLoop(t, 1<<16) // whose packets hold the program's memory itself
			from, unmap := a.mapped(1 << 16)
			b.postRecv(7, b.mr.sge(0, 100))
			a.post(SendSlot{ID: 1, Opcode: send}, from.sge(0, 100))
			unmap(0)
			return b, func() {
				l.Advance(0)
				require.Len(t, l.inbox, 1)
				l.Receive(l.inbox[0])
			}, 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, exchange, want := begin(t)
			w := b.qp.recv
			w.recv(w.Posted - 1).Ticket = 77
			var got []uint32
			b.qp.device.config.Overwritten = func(ticket, n uint32) { got = append(got, ticket, n) }
			exchange()
			require.Equal(t, []uint32{77, want}, got)
			require.Empty(t, results(b.recv))
		})
	}
}

// Memory that the program has unmapped refuses an atomic write.
func TestAtomicWriteUnmapped(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	m, unmap := b.mapped(2 * pageSize)
	unmap(0)
	s := SendSlot{ID: 1, Opcode: atomicWrite}
	s.RemoteAddr, s.RKey = m.iova, m.key
	a.post(s)
	n.run()
	require.Equal(t, []result{{1, remAccess}}, results(a.send))
}

// A WRITE to memory that is not there, or cannot be written to, is refused as
// before, also if all of it is staged.
func TestTailWithoutMemory(t *testing.T) {
	n := newNetwork(t, 1)
	a, b, g := n.gated(libibverbs.IBV_QPT_RC, 64)
	g.open = true
	mr, unmap := b.mapped(2 * pageSize)
	unmap(pageSize)
	slot := SendSlot{Opcode: libibverbs.IBV_WR_RDMA_WRITE, RemoteAddr: mr.iova + pageSize - 32, RKey: mr.key}
	a.post(slot, a.mr.sge(0, 64))
	n.run()
	b.Publish()
	require.Equal(t, []result{{0, libibverbs.IBV_WC_REM_ACCESS_ERR}}, results(a.send))
}
