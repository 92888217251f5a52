package ibverbs

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/mem"
)

// The sizes of huge pages that amd64 has; other processors have other ones.
const (
	HugePage2M = 2 << 20
	HugePage1G = 1 << 30
)

// Alloc maps size bytes of fresh memory, zeroed and outside of Go's heap, and
// registers them; see ibv_reg_mr(3). Close unmaps them. With AccessZeroBased,
// work requests address the region from 0 on.
func (pd *PD) Alloc(size int, access AccessFlags) (*MR, error) {
	return pd.alloc(size, access, func() ([]byte, error) { return mem.Map(size) })
}

// AllocHuge is Alloc in huge pages of a size such as HugePage2M, of which size
// must be a multiple. They save the device and the processor much of the work
// of translating addresses. The system must have as many free ones; without,
// the error is syscall.ENOMEM and says how to reserve them.
func (pd *PD) AllocHuge(size, pageSize int, access AccessFlags) (*MR, error) {
	return pd.alloc(size, access, func() ([]byte, error) { return mem.MapHuge(size, pageSize) })
}

func (pd *PD) alloc(size int, access AccessFlags, fresh func() ([]byte, error)) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if size <= 0 {
		return nil, badMR("ibv_reg_mr", pd, "%d bytes", size)
	}
	bytes, err := fresh()
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	unmap := func() { _ = mem.Unmap(bytes) } // cannot fail for what was mapped
	return pd.register(region{bytes: bytes, start: addressOf(bytes), access: access, release: unmap})
}

// RegisterOption says how Register and RegisterImplicit differ from the usual.
type RegisterOption func(*registerOptions)

type registerOptions struct {
	iova       uint64
	withHandle bool
	handle     *DMAHandle
}

// WithIOVA makes work requests, of this program and of peers, name the first byte of
// the region by an address of the caller's; see ibv_reg_mr_iova(3). It must be at the
// same place within a page as the memory. RegisterImplicit takes no notice of it.
func WithIOVA(iova uint64) RegisterOption {
	return func(o *registerOptions) { o.iova = iova }
}

// WithDMAHandle makes the device reach the memory as the handle says; see
// ibv_reg_mr_ex(3). It needs rdma-core 59.
func WithDMAHandle(handle *DMAHandle) RegisterOption {
	return func(o *registerOptions) { o.withHandle, o.handle = true, handle }
}

func registerOptionsOf(options []RegisterOption, iova uint64) registerOptions {
	o := registerOptions{iova: iova}
	for _, set := range options {
		set(&o)
	}
	return o
}

// Register registers memory that the caller has; see ibv_reg_mr(3). Memory of Go's
// heap is pinned until Close. The device learns of whole pages, but peers reach only
// the slice. With AccessZeroBased, which takes memory that begins a page, work requests
// address the region from 0 on.
func (pd *PD) Register(b []byte, access AccessFlags, options ...RegisterOption) (*MR, error) {
	o := registerOptionsOf(options, addressOf(b))
	if o.withHandle {
		return pd.registerDMA(b, o.iova, o.handle, access)
	}
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if len(b) == 0 {
		return nil, badMR("ibv_reg_mr", pd, "no memory")
	}
	return pd.register(region{bytes: b, start: o.iova, access: access, release: pin(b)})
}

// pin keeps memory of Go's heap where it is until the function is called.
func pin(b []byte) (unpin func()) {
	p := new(runtime.Pinner)
	p.Pin(unsafe.SliceData(b))
	return p.Unpin
}

// register is called with pd in use, and releases the memory if it fails.
func (pd *PD) register(r region) (*MR, error) {
	r.pd, r.size = pd, len(r.bytes)
	raw, err := pd.registerRaw(&r)
	if err != nil {
		r.release()
		return nil, err
	}
	return newMR(raw, r), nil
}

func (pd *PD) registerRaw(r *region) (*libibverbs.Mr, error) {
	access := r.forC()
	op, addr := "ibv_reg_mr", addressOf(r.bytes)
	if r.start != addr {
		op = "ibv_reg_mr_iova"
	}
	if err := pd.checkHost(op, r, addr); err != nil {
		return nil, err
	}
	memory, n := unsafe.Pointer(unsafe.SliceData(r.bytes)), uint64(r.size)
	var raw *libibverbs.Mr
	var err error
	if r.start == addr {
		raw, err = libibverbs.RegMr(pd.raw, memory, n, int32(access))
	} else {
		raw, err = libibverbs.RegMrIova(pd.raw, memory, n, r.start, int32(access))
	}
	return raw, wrap(fmt.Sprintf("%d bytes on %s", r.size, pd.object.Name()), err)
}

// forC returns the access flags that C is given, and sets the start of a
// region from 0 on: few drivers look at AccessZeroBased, and to all of them
// that address says the same.
func (r *region) forC() AccessFlags {
	if r.access&AccessZeroBased != 0 {
		r.start = 0
	}
	return r.access &^ AccessZeroBased
}

// checkHost looks at a region over this process's memory at addr.
func (pd *PD) checkHost(op string, r *region, addr uint64) error {
	if problem := accessProblem(r.access); problem != "" {
		return badMR(op, pd, "%s", problem)
	}
	page := uint64(os.Getpagesize())
	if (r.start^addr)%page != 0 {
		return badMR(op, pd, "memory at %#x of a page for address %#x, at %#x of one", addr%page, r.start, r.start%page)
	}
	if r.start+uint64(r.size)-1 < r.start {
		return badMR(op, pd, "%d bytes at address %#x", r.size, r.start)
	}
	if r.access&AccessOnDemand != 0 {
		return pd.checkOnDemand(op, libibverbs.IBV_ODP_SUPPORT)
	}
	return nil
}
