// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// losses are the ways in which a program may lose memory that it has
// registered: a page that is mapped from the offset in the file on.
var losses = map[string]struct {
	readable bool // whether the page can be read then
	lose     func(t testing.TB, page []byte, f *os.File, offset int)
}{
	"unmapped": {false, func(t testing.TB, page []byte, _ *os.File, _ int) {
		_, _, errno := syscall.Syscall(syscall.SYS_MUNMAP, uintptr(start(page)), uintptr(len(page)), 0)
		require.Zero(t, errno)
	}},
	"unreadable": {false, func(t testing.TB, page []byte, _ *os.File, _ int) {
		require.NoError(t, syscall.Mprotect(page, syscall.PROT_NONE))
	}},
	"read-only": {true, func(t testing.TB, page []byte, _ *os.File, _ int) {
		require.NoError(t, syscall.Mprotect(page, syscall.PROT_READ))
	}},
	"truncated": {false, func(t testing.TB, _ []byte, f *os.File, offset int) {
		require.NoError(t, f.Truncate(int64(offset)))
	}},
}

// A program that takes away memory that it has registered gets errors, as its
// peers do, and the process lives.
func TestLostMemory(t *testing.T) {
	const (
		protection = libibverbs.IBV_WC_LOC_PROT_ERR
		access     = libibverbs.IBV_WC_REM_ACCESS_ERR
		operation  = libibverbs.IBV_WC_REM_OP_ERR
		unsent     = libibverbs.IBV_WC_RETRY_EXC_ERR // the device cannot read what it is to send
	)
	page := os.Getpagesize()
	long := 3 * page
	requests := map[string]struct {
		opcode libibverbs.WrOpcode
		length int
		lost   int  // number of the page that is lost; the request accesses it, or memory from the first page on
		local  bool // whether the memory is the requester's, not the peer's
		reads  bool // whether the device reads the memory
		want   libibverbs.WcStatus
	}{
		"send from it":          {libibverbs.IBV_WR_SEND, 64, 0, true, true, unsent},
		"receive into it":       {libibverbs.IBV_WR_SEND, 64, 0, false, false, operation},
		"long receive into it":  {libibverbs.IBV_WR_SEND, long, 1, false, false, operation},
		"end of a receive":      {libibverbs.IBV_WR_SEND, long, 2, false, false, operation},
		"write from it":         {libibverbs.IBV_WR_RDMA_WRITE, 64, 0, true, true, unsent},
		"long write from it":    {libibverbs.IBV_WR_RDMA_WRITE, long, 1, true, true, unsent},
		"write into it":         {libibverbs.IBV_WR_RDMA_WRITE, 64, 0, false, false, access},
		"write of a byte":       {libibverbs.IBV_WR_RDMA_WRITE, 1, 0, false, false, access},
		"write of a word":       {libibverbs.IBV_WR_RDMA_WRITE, 8, 0, false, false, access},
		"long write into it":    {libibverbs.IBV_WR_RDMA_WRITE, long, 1, false, false, access},
		"end of a write":        {libibverbs.IBV_WR_RDMA_WRITE, long, 2, false, false, access},
		"immediate data":        {libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, 64, 0, false, false, access},
		"read into it":          {libibverbs.IBV_WR_RDMA_READ, 64, 0, true, false, protection},
		"long read into it":     {libibverbs.IBV_WR_RDMA_READ, long, 1, true, false, protection},
		"read from it":          {libibverbs.IBV_WR_RDMA_READ, 64, 0, false, true, unsent},
		"long read from it":     {libibverbs.IBV_WR_RDMA_READ, long, 1, false, true, unsent},
		"old value into it":     {libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, true, false, protection},
		"addition to it":        {libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, false, false, access},
		"comparison with it":    {libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, 8, 0, false, false, access},
		"compared, and into it": {libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, 8, 0, true, false, protection},
	}
	for loss, how := range losses {
		t.Run(loss, func(t *testing.T) {
			r := newRig(t)
			all := map[string]*loser{}
			for name, tt := range requests {
				all[name] = r.loser(4 * page)
				all[name].local = tt.local
			}
			for name, tt := range requests {
				how.lose(t, all[name].memory[tt.lost*page:][:page], all[name].file, (1+tt.lost)*page)
			}
			for name, tt := range requests {
				all[name].request(tt.opcode, tt.length)
			}
			for name, tt := range requests {
				want := tt.want
				if tt.reads && how.readable {
					want = libibverbs.IBV_WC_SUCCESS
				}
				require.Equal(t, want, r.poll(all[name].sent, 1)[0].Status, name)
				if tt.want == operation {
					require.Equal(t, protection, r.poll(all[name].received, 1)[0].Status, name)
				}
			}
		})
	}
}

// loser is a queue pair and its peer, of which one uses memory that is lost.
type loser struct {
	*rig
	sent, received *libibverbs.Cq
	from, to       *libibverbs.Qp
	file           *os.File
	memory         []byte
	mr             *libibverbs.Mr
	local          bool // whether the memory is from's, not to's
}

// loser returns a loser with n bytes of memory, of which it loses a page, but
// not the last. The pages beside that stay mapped, so that the hole is too
// small for what other threads map: there is a page before the memory.
func (r *rig) loser(n int) *loser {
	r.t.Helper()
	page := os.Getpagesize()
	l := &loser{rig: r, sent: r.cq(4), received: r.cq(4)}
	l.from, l.to = r.qp(libibverbs.IBV_QPT_RC, l.sent, 4), r.qp(libibverbs.IBV_QPT_RC, l.received, 4)
	r.ready(l.from, l.to.QpNum)
	r.ready(l.to, l.from.QpNum)
	var err error
	l.file, err = os.CreateTemp(r.t.TempDir(), "")
	require.NoError(r.t, err)
	r.t.Cleanup(func() { l.file.Close() })
	require.NoError(r.t, l.file.Truncate(int64(page+n)))
	all, err := syscall.Mmap(int(l.file.Fd()), 0, page+n, readWrite, syscall.MAP_SHARED)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, syscall.Munmap(all)) })
	l.memory = all[page:]
	l.mr, err = libibverbs.RegMr(r.pd, start(l.memory), uint64(n), libibverbs.IBV_ACCESS_LOCAL_WRITE|
		libibverbs.IBV_ACCESS_REMOTE_WRITE|libibverbs.IBV_ACCESS_REMOTE_READ|libibverbs.IBV_ACCESS_REMOTE_ATOMIC)
	require.NoError(r.t, err)
	return l
}

// request posts a request for the first bytes of the memory, and a receive for
// it.
func (l *loser) request(opcode libibverbs.WrOpcode, length int) {
	l.t.Helper()
	lost := libibverbs.Sge{Addr: uint64(uintptr(start(l.memory))), Length: uint32(length), Lkey: l.mr.Lkey}
	own, peer, key := l.part(0, length), lost, l.mr.Rkey
	if l.local {
		own, peer, key = lost, own, l.rig.mr.Rkey
	}
	l.postRecv(l.to, peer)
	*l.sge = own
	*l.send = libibverbs.SendWr{SgList: l.sge, NumSge: 1, Opcode: opcode, SendFlags: libibverbs.IBV_SEND_SIGNALED}
	switch opcode {
	case libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP:
		atomic := l.send.Wr.Atomic()
		atomic.RemoteAddr, atomic.Rkey = peer.Addr, key
	case libibverbs.IBV_WR_RDMA_READ, libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
		rdma := l.send.Wr.Rdma()
		rdma.RemoteAddr, rdma.Rkey = peer.Addr, key
	}
	var bad *libibverbs.SendWr
	require.NoError(l.t, libibverbs.PostSend(l.from, l.send, &bad))
}
