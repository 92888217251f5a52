// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const onDemand = libibverbs.IBV_ACCESS_ON_DEMAND

// addresses returns n bytes of addresses, at which memory with some permissions
// is mapped.
func addresses(t testing.TB, n, protection int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, protection, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	return b
}

const readWrite = syscall.PROT_READ | syscall.PROT_WRITE

// Memory that is registered on demand need not be mapped, and a request finds
// it once it is. A region of everything has all of it.
func TestRegisterOnDemand(t *testing.T) {
	for name, implicit := range map[string]bool{"region": false, "everything": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			cq := r.cq(4)
			qp := r.qp(libibverbs.IBV_QPT_RC, cq, 4)
			r.ready(qp, qp.QpNum)
			memory := addresses(t, 8192, syscall.PROT_NONE)
			addr, length := start(memory), uint64(len(memory))
			if implicit {
				addr, length = nil, math.MaxUint64
			}
			m, err := libibverbs.RegMr(r.pd, addr, length, onDemand|libibverbs.IBV_ACCESS_LOCAL_WRITE)
			require.NoError(t, err)
			require.Equal(t, length, m.Length)
			require.Equal(t, addr, m.Addr)
			require.NoError(t, syscall.Mprotect(memory, readWrite))
			for i := range memory {
				memory[i] = byte(i * 7)
			}
			r.postRecv(qp, r.part(0, len(memory)))
			sge := libibverbs.Sge{Addr: uint64(uintptr(start(memory))), Length: uint32(len(memory)), Lkey: m.Lkey}
			r.postSend(qp, sge, nil, 0)
			for _, wc := range r.poll(cq, 2) {
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
			}
			require.Equal(t, memory, r.memory[:len(memory)])

			code, failed := verbs.ReregMr(m, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
			require.Equal(t, syscall.EOPNOTSUPP, failed)
			require.EqualValues(t, libibverbs.IBV_REREG_MR_ERR_CMD, code)

			// What is unmapped makes the request fail, not the process.
			require.NoError(t, syscall.Mprotect(memory[4096:], syscall.PROT_NONE))
			r.postRecv(qp, r.part(0, len(memory)))
			r.postSend(qp, sge, nil, 0)
			require.Equal(t, libibverbs.IBV_WC_LOC_PROT_ERR, r.poll(cq, 2)[0].Status)
			require.NoError(t, libibverbs.DeregMr(m))
		})
	}
}

func TestRegisterOnDemandRefused(t *testing.T) {
	r := newRig(t)
	some := uintptr(start(r.memory))
	for name, tt := range map[string]struct {
		addr         uintptr
		length, iova uint64
		access       libibverbs.AccessFlags
	}{
		"nothing":                      {some, 0, uint64(some), onDemand},
		"not huge pages":               {some, 8, uint64(some), onDemand | libibverbs.IBV_ACCESS_HUGETLB},
		"huge pages, not mapped":       {4096, 8, 4096, onDemand | libibverbs.IBV_ACCESS_HUGETLB},
		"everything in huge pages":     {0, math.MaxUint64, 0, onDemand | libibverbs.IBV_ACCESS_HUGETLB},
		"everything, not on demand":    {0, math.MaxUint64, 0, libibverbs.IBV_ACCESS_LOCAL_WRITE},
		"everything, at an iova":       {0, math.MaxUint64, 4096, onDemand},
		"too long":                     {some, math.MaxUint64 - 1, uint64(some), onDemand},
		"elsewhere in its page":        {some, 8, uint64(some) + 1, onDemand},
		"persistent":                   {some, 8, uint64(some), onDemand | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT},
		"remote, but not local, write": {some, 8, uint64(some), onDemand | libibverbs.IBV_ACCESS_REMOTE_WRITE},
	} {
		m, failed := verbs.RegMrIova2(r.pd, tt.addr, tt.length, tt.iova, tt.access)
		require.Equal(t, syscall.EINVAL, failed, name)
		require.Nil(t, m, name)
	}
	// The flag says nothing of memory that is not on demand, and a device may
	// ignore optional flags.
	for _, access := range []libibverbs.AccessFlags{libibverbs.IBV_ACCESS_HUGETLB, libibverbs.IBV_ACCESS_RELAXED_ORDERING, 1 << 29} {
		_, failed := verbs.RegMr(r.pd, some, 8, access)
		require.Zero(t, failed)
	}
}

// A mapping of huge pages is found in what the kernel says or, on old kernels,
// in a list.
func TestHugePages(t *testing.T) {
	const smaps = "00001000-00003000 rw-p 00000000 00:00 0 \nSize: 8 kB\nKernelPageSize:        4 kB\n" +
		"00200000-00600000 rw-p 00000000 00:0f 123  /anon_hugepage (deleted)\nSize: 4096 kB\nKernelPageSize:     2048 kB\nMMUPageSize: 2048 kB\n"
	for addr, want := range map[uint64]uint64{0x1000: 4096, 0x200000: 2 << 20, 0x5FFFFF: 2 << 20, 0x600000: 0, 0xFFF: 0, 0x3000: 0} {
		require.Equal(t, want, pageSizeAt(bufio.NewScanner(strings.NewReader(smaps)), addr), "%#x", addr)
	}
	for name, tt := range map[string]struct {
		m    procmapQuery
		err  error
		want bool
	}{
		"huge":                            {procmapQuery{pageSize: 2 << 20}, nil, true},
		"not":                             {procmapQuery{pageSize: uint64(os.Getpagesize())}, nil, false},
		"absent":                          {procmapQuery{}, syscall.ENOENT, false},
		"an old kernel, which has a list": {procmapQuery{}, syscall.ENOTTY, false},
	} {
		require.Equal(t, tt.want, hasHugePages(func(uintptr, uint64) (procmapQuery, error) { return tt.m, tt.err }, 8), name)
	}
}

// resident reports whether the first page of b is in memory.
func resident(t *testing.T, b []byte) bool {
	t.Helper()
	var in [1]byte
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(start(b)), uintptr(os.Getpagesize()), uintptr(unsafe.Pointer(&in[0])))
	require.Zero(t, errno)
	return in[0]&1 != 0
}

// Advice fetches pages, and what is wrong with it is refused.
func TestAdvise(t *testing.T) {
	const prefetch, prefetchWrite, noFault = libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
		libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE, libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
	const flush = libibverbs.IB_UVERBS_ADVISE_MR_FLAG_FLUSH
	r := newRig(t)
	page := os.Getpagesize()
	other, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	register := func(pd *libibverbs.Pd, b []byte, access libibverbs.AccessFlags) *libibverbs.Mr {
		m, err := libibverbs.RegMr(pd, start(b), uint64(len(b)), access)
		require.NoError(t, err)
		return m
	}
	memory, readOnly := addresses(t, 4*page, readWrite), addresses(t, 2*page, syscall.PROT_READ)
	missing := addresses(t, 2*page, syscall.PROT_NONE)
	const access = onDemand | libibverbs.IBV_ACCESS_LOCAL_WRITE
	of := map[string]*libibverbs.Mr{
		"memory": register(r.pd, memory, access), "read-only": register(r.pd, readOnly, access), "missing": register(r.pd, missing, access),
		"not to be written": register(r.pd, memory, onDemand), "not on demand": r.mr, "foreign": register(other, memory, access),
	}
	for name, tt := range map[string]struct {
		advice libibverbs.IbUverbsAdviseMrAdvice
		flags  libibverbs.IbUverbsAdviseMrFlag
		mr     string
		more   int // how much more than the region
		want   error
	}{
		"to read":                     {prefetch, flush, "memory", 0, nil},
		"to write":                    {prefetchWrite, flush, "memory", 0, nil},
		"without waiting":             {prefetchWrite, 0, "memory", 0, nil},
		"without a fault":             {noFault, flush, "memory", 0, nil},
		"without either":              {noFault, 0, "memory", 0, nil},
		"read-only, to read":          {prefetch, flush, "read-only", 0, nil},
		"read-only, to write":         {prefetchWrite, flush, "read-only", 0, syscall.EFAULT},
		"read-only, best effort":      {prefetchWrite, 0, "read-only", 0, nil},
		"not mapped":                  {prefetch, flush, "missing", 0, syscall.EFAULT},
		"not mapped, best effort":     {prefetch, 0, "missing", 0, nil},
		"not mapped, without a fault": {noFault, flush, "missing", 0, nil},
		"beyond the region":           {prefetch, flush, "memory", 1, syscall.EFAULT},
		"beyond it, best effort":      {prefetch, 0, "memory", 1, syscall.EFAULT},
		"not to be written":           {prefetchWrite, flush, "not to be written", 0, syscall.EFAULT},
		"not on demand":               {prefetch, flush, "not on demand", 0, syscall.EFAULT},
		"foreign":                     {prefetch, flush, "foreign", 0, syscall.EFAULT},
		"foreign, best effort":        {prefetch, 0, "foreign", 0, syscall.EFAULT},
		"unknown flag":                {prefetch, 2, "memory", 0, syscall.EINVAL},
		"unknown advice":              {3, flush, "memory", 0, syscall.EOPNOTSUPP},
	} {
		m := of[tt.mr]
		sge := libibverbs.Sge{Addr: uint64(uintptr(m.Addr)), Length: uint32(m.Length) + uint32(tt.more), Lkey: m.Lkey}
		err := libibverbs.AdviseMr(r.pd, tt.advice, tt.flags, &sge, 1)
		require.ErrorIs(t, err, tt.want, name)
	}
	all, err := libibverbs.RegMr(r.pd, nil, math.MaxUint64, access)
	require.NoError(t, err)
	fresh := addresses(t, page, readWrite)
	sges := []libibverbs.Sge{
		{Lkey: all.Lkey, Addr: uint64(uintptr(start(memory)))}, // nothing
		{Addr: uint64(uintptr(start(fresh))) + 5, Length: 1, Lkey: all.Lkey},
	}
	require.False(t, resident(t, fresh))
	require.NoError(t, libibverbs.AdviseMr(r.pd, prefetchWrite, flush, &sges[0], 2))
	if !resident(t, fresh) {
		t.Log("the kernel has no MADV_POPULATE_WRITE")
	}
	for name, addr := range map[string]uint64{"the first page": 8, "the kernel's": math.MaxUint64 - 8, "not mapped": uint64(uintptr(start(missing)))} {
		sge := libibverbs.Sge{Addr: addr, Length: 1, Lkey: all.Lkey}
		require.ErrorIs(t, libibverbs.AdviseMr(r.pd, prefetch, flush, &sge, 1), syscall.EFAULT, name)
	}
	require.Equal(t, syscall.EINVAL, verbs.AdviseMr(r.pd, prefetch, 0, nil, 1))
	require.Equal(t, syscall.EINVAL, verbs.AdviseMr(r.pd, prefetch, 0, &sges[0], 0))
	require.Equal(t, syscall.EINVAL, verbs.AdviseMr(r.pd, prefetch, 0, &sges[0], math.MaxUint32))
	require.Equal(t, syscall.EINVAL, verbs.AdviseMr(nil, prefetch, 0, &sges[0], 1))
	runtime.KeepAlive(memory)
}

// A null region has the maximum length, and no key for peers.
func TestNullMR(t *testing.T) {
	r := newRig(t)
	m, err := libibverbs.AllocNullMr(r.pd)
	require.NoError(t, err)
	require.Nil(t, m.Addr)
	require.EqualValues(t, uint64(math.MaxUint64), m.Length)
	require.Zero(t, m.Rkey)
	code, failed := verbs.ReregMr(m, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
	require.Equal(t, syscall.EINVAL, failed)
	require.EqualValues(t, libibverbs.IBV_REREG_MR_ERR_INPUT, code)

	cq := r.cq(4)
	qp := r.qp(libibverbs.IBV_QPT_RC, cq, 4)
	r.ready(qp, qp.QpNum)
	r.memory[0] = 1
	r.postRecv(qp, r.part(0, 8))
	r.postSend(qp, libibverbs.Sge{Addr: 12345, Length: 8, Lkey: m.Lkey}, nil, 0)
	for _, wc := range r.poll(cq, 2) {
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	}
	require.Zero(t, r.memory[0])
}

// The device does not promise that data arrives in order.
func TestDataInOrder(t *testing.T) {
	r := newRig(t)
	qp := r.qp(libibverbs.IBV_QPT_RC, r.cq(4), 4)
	in, err := libibverbs.QueryQpDataInOrder(qp, libibverbs.IBV_WR_RDMA_WRITE, 0)
	require.NoError(t, err)
	require.Zero(t, in)
}
