// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestAlloc(t *testing.T) {
	r := open(t)
	for _, size := range []int{1, 4096, 4097, 1 << 22} {
		mr := r.alloc(size, ibverbs.AccessLocalWrite)
		require.Equal(t, size, mr.Len())
		require.True(t, bytes.Equal(make([]byte, size), mr.Bytes()), "zeroed")
		require.Equal(t, ibverbs.RemoteBuffer{
			Addr: uint64(uintptr(unsafe.Pointer(&mr.Bytes()[0]))), RKey: mr.RKey(), Len: uint64(size),
		}, mr.Remote())
		require.Equal(t, mr.Raw().Lkey, mr.LKey())
		require.Equal(t, size, mr.All().Len())
	}
}

// Memory of Go's heap moves data like any other, through collections.
func TestRegister(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	heap := make([]byte, 10000)
	from, to := heap[1:4001], heap[5003:9003]
	src := must(r.pd.Register(from, 0))(t)
	r.cleanup(src)
	dst := must(r.pd.Register(to, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	r.cleanup(dst)
	require.Same(t, &from[0], &src.Bytes()[0])
	pattern(from, 7)
	runtime.GC()
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, dst.Remote(), ibverbs.SendSignaled, src.All())
	})
	collectOK(t, a.sendCQ, 1)
	runtime.GC()
	require.True(t, bytes.Equal(from, to))

	// The device knows the slice only, not the array around it.
	beyond := ibverbs.RemoteBuffer{Addr: dst.Remote().Addr - 1, RKey: dst.RKey(), Len: 1}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(2, beyond, ibverbs.SendSignaled, src.Sub(0, 1))
	})
	requireWC(t, collect(t, a.sendCQ, 1)[0], 2, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
	_ = b
}

func TestRegionsThatCannotBe(t *testing.T) {
	r := open(t)
	memory := make([]byte, 64)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no bytes":       {second(r.pd.Alloc(0, 0)), "): size is 0, less than 1"},
		"negative":       {second(r.pd.Alloc(-1, 0)), "): size is -1, less than 1"},
		"nil slice":      {second(r.pd.Register(nil, 0)), "): b is empty, and a region has at least one byte"},
		"empty slice":    {second(r.pd.Register(memory[:0], 0)), "): b is empty, and a region has at least one byte"},
		"remote write":   {second(r.pd.Register(memory, ibverbs.AccessRemoteWrite)), "AccessRemoteWrite without AccessLocalWrite"},
		"remote atomics": {second(r.pd.Alloc(64, ibverbs.AccessRemoteAtomic)), "AccessRemoteAtomic without AccessLocalWrite"},
	} {
		require.ErrorContains(t, tt.err, tt.want, name)
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		var e *ibverbs.ArgumentError
		require.ErrorAs(t, tt.err, &e, name)
		require.Equal(t, "ibv_reg_mr", e.Op)
	}
}

func TestRegionAfterClose(t *testing.T) {
	r := open(t)
	mr := must(r.pd.Alloc(64, 0))(t)
	segment := mr.Sub(0, 8)
	require.Len(t, segment.Bytes(), 8)
	require.NoError(t, mr.Close())
	require.NoError(t, mr.Close())
	require.Nil(t, mr.Bytes())
	require.Nil(t, segment.Bytes())
	require.Equal(t, 64, mr.Len())
	batch := must(ibverbs.NewSendBatch(1, 1))(t)
	require.ErrorIs(t, batch.Send(1, 0, segment), os.ErrClosed)
}

// reserveHugePages makes n huge pages of 2 MiB free until the end of the test.
// The kernel may have less, and only root can do it.
func reserveHugePages(t *testing.T, n int) (free int) {
	t.Helper()
	const folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	number := func(name string) int {
		b, err := os.ReadFile(folder + name)
		require.NoError(t, err)
		return must(strconv.Atoi(strings.TrimSpace(string(b))))(t)
	}
	before := number("nr_hugepages")
	if missing := n - number("free_hugepages"); missing > 0 && os.Getenv("RDMA_VM") == "1" {
		set := func(n int) { require.NoError(t, os.WriteFile(folder+"nr_hugepages", fmt.Append(nil, n), 0)) }
		set(before + missing)
		t.Cleanup(func() { set(before) })
	}
	return number("free_hugepages")
}

func TestAllocHuge(t *testing.T) {
	r := open(t)
	free := reserveHugePages(t, 2)
	if os.Getenv("RDMA_VM") == "1" {
		require.GreaterOrEqual(t, free, 2)
	}
	if free >= 2 {
		a, _ := r.pair(nil)
		mr := must(r.pd.AllocHuge(2*ibverbs.HugePage2M, ibverbs.HugePage2M, anyAccess))(t)
		r.cleanup(mr)
		require.Equal(t, 2*ibverbs.HugePage2M, mr.Len())
		require.Zero(t, mr.Remote().Addr%ibverbs.HugePage2M)
		want := pattern(a.mr.Bytes(), 5)
		a.postSend(t, func(s *ibverbs.SendBatch) error { // over the border of two pages
			return s.Write(1, mr.Remote().Sub(ibverbs.HugePage2M-100, mrSize), ibverbs.SendSignaled, a.mr.All())
		})
		collectOK(t, a.sendCQ, 1)
		require.True(t, bytes.Equal(want, mr.Sub(ibverbs.HugePage2M-100, mrSize).Bytes()))
	}

	_, err := r.pd.AllocHuge((free+1)*ibverbs.HugePage2M, ibverbs.HugePage2M, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "sysctl vm.nr_hugepages or /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	for _, size := range []int{ibverbs.HugePage2M + 4096, 4096, 0, -ibverbs.HugePage2M} {
		_, err := r.pd.AllocHuge(size, ibverbs.HugePage2M, 0)
		require.ErrorIs(t, err, syscall.EINVAL, size)
	}
	for _, page := range []int{0, -1, 3 << 20} {
		_, err := r.pd.AllocHuge(6<<20, page, 0)
		require.ErrorIs(t, err, syscall.EINVAL, page)
	}
}

// onDemand returns what the device says that it can page.
func (r *rig) onDemand() libibverbs.OdpGeneralCaps {
	r.t.Helper()
	var attr libibverbs.DeviceAttrEx
	require.NoError(r.t, libibverbs.QueryDeviceEx(r.c.Raw(), nil, &attr))
	return libibverbs.OdpGeneralCaps(attr.OdpCaps.GeneralCaps)
}

func TestOnDemand(t *testing.T) {
	r := open(t)
	const access = anyAccess | ibverbs.AccessOnDemand
	if r.onDemand()&libibverbs.IBV_ODP_SUPPORT == 0 {
		t.Log("the device cannot page on demand")
		for _, err := range []error{second(r.pd.Alloc(64, access)), second(r.pd.Register(make([]byte, 64), access))} {
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, "): the device does not support AccessOnDemand")
		}
		return
	}
	a, _ := r.pair(nil)
	mr := r.alloc(1<<22, access)
	err := r.pd.Advise(ibverbs.AdvicePrefetchWrite, true, mr.Sub(0, 1<<16))
	t.Log("advice:", err)
	if !errors.Is(err, errors.ErrUnsupported) { // rdma-core has it for Soft-RoCE since 59
		require.NoError(t, err)
		require.NoError(t, r.pd.Advise(ibverbs.AdvicePrefetch, false, mr.Sub(1<<20, 10), mr.Sub(1<<21, 4096)))
		require.NoError(t, r.pd.Advise(ibverbs.AdvicePrefetchNoFault, false, mr.All()))
	}
	// One packet to where a page begins: Linux 7.2's Soft-RoCE puts all that
	// arrives at the beginning of a page.
	const n = 256 // the least MTU
	want := pattern(a.mr.Sub(0, n).Bytes(), 7)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, mr.Remote().Sub(3<<20, n), ibverbs.SendSignaled, a.mr.Sub(0, n))
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, want, mr.Sub(3<<20, n).Bytes())
}

func TestImplicit(t *testing.T) {
	r := open(t)
	if r.onDemand()&libibverbs.IBV_ODP_SUPPORT_IMPLICIT == 0 {
		_, err := r.pd.RegisterImplicit(ibverbs.AccessLocalWrite)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "): the device does not support AccessOnDemand for the whole address space")
		return
	}
	a, b := r.pair(nil)
	whole := must(r.pd.RegisterImplicit(anyAccess))(t)
	r.cleanup(whole)
	memory := r.alloc(4096, 0).Bytes()
	want := pattern(memory, 3)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, b.mr.Remote(), ibverbs.SendSignaled, whole.Sub(int(uintptr(unsafe.Pointer(&memory[0]))), 4096))
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, want, b.mr.Sub(0, 4096).Bytes())
}

// Soft-RoCE has none of these; other devices may have some.
func TestMemoryThatMayBeUnsupported(t *testing.T) {
	r := open(t)
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	dmabuf := func(fd int) error {
		return second(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: fd, Length: 4096}, ibverbs.AccessLocalWrite))
	}
	for name, err := range map[string]error{
		"ibv_alloc_null_mr":       closing(r.pd.AllocNullMR()),
		"ibv_alloc_td":            closing(r.c.AllocTD()),
		"ibv_alloc_parent_domain": closing(r.pd.AllocParentDomain(nil)),
		"ibv_reg_dmabuf_mr":       dmabuf(int(null.Fd())), // which is none
	} {
		t.Log(name, err)
		if r.device.SoftRoCE() {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
			require.ErrorContains(t, err, name+" (", name)
		}
	}
	require.Error(t, dmabuf(int(null.Fd())))
	for name, tt := range map[string]struct {
		b    ibverbs.DMABuf
		want string
	}{
		"descriptor": {ibverbs.DMABuf{FD: -1, Length: 1}, "FD is -1, not from 0 to 2147483647"},
		"empty":      {ibverbs.DMABuf{FD: 3}, "Length is 0, less than 1"},
		"negative":   {ibverbs.DMABuf{FD: 3, Length: -1}, "Length is -1, less than 1"},
		"offset": {
			ibverbs.DMABuf{FD: 3, Length: 4096, Offset: 1<<64 - 4096},
			"4096 bytes at 18446744073709547520 of descriptor 3 with address 0x0 end beyond",
		},
		"iova": {
			ibverbs.DMABuf{FD: 3, Length: 8192, IOVA: 1<<64 - 4096},
			"8192 bytes at 0 of descriptor 3 with address 0xfffffffffffff000 end beyond",
		},
		"page": {
			ibverbs.DMABuf{FD: 3, Length: 4096, Offset: 1, IOVA: 4096},
			"the buffer is at offset 0x1 of a page, but the address 0x1000 is at offset 0x0 of one",
		},
	} {
		_, err := r.pd.RegisterDMABuf(tt.b, 0)
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "): "+tt.want, name)
	}
	for _, access := range []ibverbs.AccessFlags{ibverbs.AccessOnDemand, ibverbs.AccessWindowBind, ibverbs.AccessRemoteWrite} {
		_, err := r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: 3, Length: 1}, access)
		require.ErrorIs(t, err, syscall.EINVAL, access)
	}
}

// closing returns the error of making an object, which is closed at once.
func closing[T interface{ Close() error }](o T, err error) error {
	if err == nil {
		err = o.Close()
	}
	return err
}

// What a device cannot change stays as it was, and of use.
func TestRereg(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	mr := r.alloc(4096, ibverbs.AccessLocalWrite)
	access := anyAccess
	err := mr.Rereg(ibverbs.ReregConfig{Access: &access})
	t.Log(err)
	if r.device.SoftRoCE() { // the kernel could, rdma-core does not ask it
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_rereg_mr (MR ")
		require.Equal(t, ibverbs.AccessLocalWrite, mr.Access())
	} else if err == nil {
		require.Equal(t, access, mr.Access())
	}
	want := pattern(mr.Bytes(), 11)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, b.mr.Remote(), ibverbs.SendSignaled, mr.All())
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, want, b.mr.Sub(0, 4096).Bytes())

	other := must(ibverbs.Open(r.device.Name))(t)
	pd := must(other.AllocPD())(t)
	err = mr.Rereg(ibverbs.ReregConfig{PD: pd})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "belongs to another open device")
	require.NoError(t, pd.Close())
	require.ErrorIs(t, mr.Rereg(ibverbs.ReregConfig{PD: pd}), os.ErrClosed)
	require.NoError(t, other.Close())
}

// Peers and this program name a region by the address that it was given.
func TestRegisterIOVA(t *testing.T) {
	r := open(t)
	const page = 4096
	memory := r.alloc(3*page, 0).Bytes() // that begins a page
	for name, tt := range map[string]struct {
		memory []byte
		start  uint64 // that is asked for
		access ibverbs.AccessFlags
		want   uint64
	}{
		"iova":          {memory, 16 * page, anyAccess, 16 * page},
		"high iova":     {memory[:page], math.MaxUint64 - page + 1, anyAccess, math.MaxUint64 - page + 1},
		"inside a page": {memory[100:], 5*page + 100, anyAccess, 5*page + 100},
		"zero":          {memory, 0, anyAccess, 0},
		"zero based":    {memory, 5 * page, anyAccess | ibverbs.AccessZeroBased, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.pair(nil)
			mr := must(r.pd.RegisterIOVA(tt.memory, tt.start, tt.access))(t)
			r.cleanup(mr)
			n := uint64(len(tt.memory))
			require.Equal(t, ibverbs.RemoteBuffer{Addr: tt.want, RKey: mr.RKey(), Len: n}, mr.Remote())
			require.Equal(t, tt.access, mr.Access())
			require.Same(t, &tt.memory[0], &mr.Bytes()[0])

			want := bytes.Clone(pattern(a.mr.Sub(0, int(n)).Bytes(), 3))
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(1, mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, int(n)))
			})
			wc := collect(t, a.sendCQ, 1)[0]
			if tt.start+n == 0 && wc.Err() != nil && r.device.SoftRoCESince(t, 6, 3) && !r.device.SoftRoCESince(t, 7, 2) {
				// Soft-RoCE adds up address and length, and so finds no end of the
				// region: it refuses all of it.
				requireWC(t, wc, 1, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
				return
			}
			require.NoError(t, wc.Err())
			require.True(t, bytes.Equal(want, tt.memory), "from the peer")

			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(2, b.mr.Remote(), ibverbs.SendSignaled|ibverbs.SendInline, mr.Sub(8, inline))
			})
			collectOK(t, a.sendCQ, 1)
			require.Equal(t, want[8:8+inline], b.mr.Sub(0, inline).Bytes(), "inline")

			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(3, b.mr.Remote(), ibverbs.SendSignaled, mr.Sub(8, int(n)-8))
			})
			collectOK(t, a.sendCQ, 1)
			require.Equal(t, want[8:], b.mr.Sub(0, int(n)-8).Bytes(), "to the peer")

			a.postSend(t, func(s *ibverbs.SendBatch) error { // around the end
				return s.Write(4, beyond(mr.Remote(), n-4, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
			requireWC(t, collect(t, a.sendCQ, 1)[0], 4, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
		})
	}
}

func TestRegisterIOVARefused(t *testing.T) {
	r := open(t)
	two := r.alloc(2*4096, 0).Bytes()
	memory := two[:4096]
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"elsewhere in a page":     {second(r.pd.RegisterIOVA(memory, 8, 0)), "the memory is at offset 0x0 of a page, but the address 0x8 is at offset 0x8 of one"},
		"zero based, no page":     {second(r.pd.Register(memory[1:], ibverbs.AccessZeroBased)), "the memory is at offset 0x1 of a page, but the address 0x0"},
		"beyond the last address": {second(r.pd.RegisterIOVA(two, math.MaxUint64-4095, 0)), "8192 bytes at address 0xfffffffffffff000 end beyond the last address"},
		"huge pages, not paged":   {second(r.pd.Register(memory, ibverbs.AccessHugeTLB)), "): AccessHugeTLB without AccessOnDemand"},
		"unknown flags":           {second(r.pd.Alloc(64, 1<<31)), "): unknown access flags 0x80000000"},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
	}
}

// What a region does not allow, and what its queue pair does not.
func TestMissingPermissions(t *testing.T) {
	const (
		local  = ibverbs.AccessLocalWrite
		write  = ibverbs.AccessRemoteWrite
		read   = ibverbs.AccessRemoteRead
		atomic = ibverbs.AccessRemoteAtomic
		all    = local | write | read | atomic
	)
	invalid := verdict{spec: ibverbs.WCRemoteInvalidRequest}
	noRecv := verdict{spec: ibverbs.WCRemoteOperation}
	r := open(t)
	for name, tt := range map[string]struct {
		requests []string
		a, b, qp ibverbs.AccessFlags // of both regions, and of the peer's queue pair
		want     verdict
	}{
		"from a region without local write":      {requests: []string{"send", "send imm", "write", "write imm"}, b: all, qp: all, want: good},
		"into a region without local write":      {requests: []string{"read", "fetch and add", "compare and swap"}, a: 0, b: all, qp: all, want: localProtection},
		"receive without local write":            {requests: []string{"send", "send imm"}, a: all, b: read, qp: all, want: noRecv},
		"region without remote write":            {requests: []string{"write", "write imm"}, a: all, b: all &^ write, qp: all, want: remoteAccess},
		"region without remote read":             {requests: []string{"read"}, a: all, b: all &^ read, qp: all, want: remoteAccess},
		"region without remote atomic":           {requests: []string{"fetch and add", "compare and swap"}, a: all, b: all &^ atomic, qp: all, want: remoteAccess},
		"atomics alone":                          {requests: []string{"fetch and add", "compare and swap"}, a: local, b: local | atomic, qp: atomic, want: good},
		"remote flags do not matter to messages": {requests: []string{"send", "send imm"}, a: 0, b: local, qp: 0, want: good},
		"queue pair without remote write":        {requests: []string{"write", "write imm"}, a: all, b: all, qp: all &^ write, want: invalid},
		"queue pair without remote read":         {requests: []string{"read"}, a: all, b: all, qp: all &^ read, want: invalid},
		"queue pair without remote atomic":       {requests: []string{"fetch and add", "compare and swap"}, a: all, b: all, qp: all &^ atomic, want: invalid},
	} {
		for _, kind := range tt.requests {
			t.Run(name+"/"+kind, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opEnd(0, tt.a), r.opEnd(0, tt.b)
				r.connect(a, linkTo(b.qp))
				r.connect(b, linkTo(a.qp))
				require.NoError(t, b.qp.Modify(ibverbs.QPAttr{Access: tt.qp}, ibverbs.QPAttrAccess))
				k := requests[kind]
				// The batch refuses a region that the device may not write to, unless it
				// knows the key only.
				raw := func(mr *ibverbs.MR) ibverbs.Segment {
					return ibverbs.RawSegment(mr.Remote().Addr, mr.Len(), mr.LKey())
				}
				if k.receive {
					b.postRecv(t, 2, raw(b.mr).Sub(1024, 8))
				}
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := k.add(s, b.mr.Remote().Sub(64, 8), raw(a.mr).Sub(64, 8))
					ibverbs.RawSends(s)[0].SendFlags |= ibverbs.SendSignaled
					return err
				})
				requireVerdict(t, a.sendCQ, 1, a.qp, tt.want, r)
			})
		}
	}
}

// Keys that do not name a region of the queue pair's domain.
func TestWrongKeys(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	closedAddr, closedLKey, closedRKey := r.closedKeys()
	theirs := r.foreign()
	badLocal := map[string]func(*libibverbs.Sge){
		"wrong local key":              func(s *libibverbs.Sge) { s.Lkey ^= 0x5A },
		"local key of a closed region": func(s *libibverbs.Sge) { s.Lkey, s.Addr = closedLKey, closedAddr },
		"local key of another domain":  func(s *libibverbs.Sge) { s.Lkey, s.Addr = theirs.LKey(), theirs.Remote().Addr },
		"local key 0":                  func(s *libibverbs.Sge) { s.Lkey = 0 },
	}
	badRemote := map[string]func(addr *uint64, rkey *uint32){
		"wrong remote key":              func(_ *uint64, rkey *uint32) { *rkey ^= 0x5A },
		"remote key of a closed region": func(addr *uint64, rkey *uint32) { *addr, *rkey = closedAddr, closedRKey },
		"remote key of another domain":  func(addr *uint64, rkey *uint32) { *addr, *rkey = theirs.Remote().Addr, theirs.RKey() },
		"remote key 0":                  func(_ *uint64, rkey *uint32) { *rkey = 0 },
	}
	untouched := make([]byte, 2048)
	check := func(t *testing.T, k request, v verdict, spoil func(*libibverbs.SendWr)) {
		r := r.sub(t)
		a, b := r.opPair(0, fullAccess)
		k.spoiled(t, a, b, spoil)
		requireVerdict(t, a.sendCQ, 1, a.qp, v, r)
		require.Equal(t, ibverbs.QPStateError, must(a.qp.State())(t))
		require.NoError(t, b.qp.Close()) // its receive may have the memory until then
		require.Equal(t, untouched, a.mr.Bytes()[:len(untouched)])
		if !k.atomic || v.spec == ibverbs.WCRemoteAccess { // an atomic's result has no place here, but the peer has done it
			require.Equal(t, untouched, b.mr.Bytes()[:len(untouched)])
		}
	}
	for name, k := range requests {
		local := unsendable
		if k.result {
			local = localProtection
		}
		for what, bad := range badLocal {
			t.Run(name+"/"+what, func(t *testing.T) {
				check(t, k, local, func(wr *libibverbs.SendWr) { bad(sge(wr)) })
			})
		}
		if !k.remote {
			continue
		}
		for what, bad := range badRemote {
			t.Run(name+"/"+what, func(t *testing.T) {
				check(t, k, remoteAccess, func(wr *libibverbs.SendWr) { bad(k.remoteOf(wr)) })
			})
		}
		both := local // this side looks first when it sends
		if k.result {
			both = remoteAccess
		}
		t.Run(name+"/both keys wrong", func(t *testing.T) {
			check(t, k, both, func(wr *libibverbs.SendWr) {
				_, rkey := k.remoteOf(wr)
				sge(wr).Lkey, *rkey = sge(wr).Lkey^0x5A, *rkey^0x5A
			})
		})
	}
}
