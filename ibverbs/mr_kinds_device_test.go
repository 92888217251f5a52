package ibverbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

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
			require.ErrorContains(t, err, "): the device has no AccessOnDemand")
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
		require.ErrorContains(t, err, "): the device has no AccessOnDemand for the whole address space")
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
		"ibv_alloc_dm":            closing(r.c.AllocDM(4096, 0)),
		"ibv_reg_dmabuf_mr":       dmabuf(int(null.Fd())), // which is none
	} {
		t.Log(name, err)
		if strings.HasPrefix(r.device.Name, "rxe") {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
			require.ErrorContains(t, err, name+" (", name)
		}
	}
	require.Error(t, dmabuf(int(null.Fd())))
	for name, b := range map[string]ibverbs.DMABuf{
		"descriptor": {FD: -1, Length: 1},
		"empty":      {FD: 3},
		"negative":   {FD: 3, Length: -1},
		"offset":     {FD: 3, Length: 4096, Offset: 1<<64 - 4096},
		"iova":       {FD: 3, Length: 8192, IOVA: 1<<64 - 4096},
		"page":       {FD: 3, Length: 4096, Offset: 1, IOVA: 4096},
	} {
		_, err := r.pd.RegisterDMABuf(b, 0)
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, fmt.Sprintf("ibv_reg_dmabuf_mr (%d bytes at %d of descriptor %d", b.Length, b.Offset, b.FD), name)
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
	if strings.HasPrefix(r.device.Name, "rxe") { // the kernel could, rdma-core does not ask it
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
	require.ErrorContains(t, err, "not of the same open device")
	require.NoError(t, pd.Close())
	require.ErrorIs(t, mr.Rereg(ibverbs.ReregConfig{PD: pd}), os.ErrClosed)
	require.NoError(t, other.Close())
}
