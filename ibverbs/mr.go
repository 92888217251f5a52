// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
	"github.com/verbena-go/verbena/internal/object"
)

// MR is a memory region: memory that the device can access. Its methods may be
// called concurrently, but during Rereg only Close may be called. Go's memory
// model does not cover the device: read what a peer wrote only after a
// completion says that it has arrived.
type MR struct {
	object   object.Object
	raw      *libibverbs.Mr
	itself   *MR // this MR; Segment.owner says why it is stored
	region       // Rereg replaces this part
	unusable atomic.Bool

	mu      sync.Mutex // held during Rereg; guards the fields below
	windows map[*MW]struct{}
}

// region holds the parts of a memory region that Rereg can change.
type region struct {
	pd         *PD
	access     AccessFlags
	bytes      []byte // nil if Go cannot access the memory
	start      uint64 // address of the first byte in work requests
	size       int
	release    func() // releases the memory
	lkey, rkey uint32
	keyOnly    bool // whether RawSegment made the region, of which only the key is known
	readOnly   bool // whether the device may only read the memory, as far as is known
	noSink     bool // whether no RDMA read may go into the memory although the device may write it
}

// newMR returns the MR of a C region. The caller has called Use on the domain
// and the other parents.
func newMR(raw *libibverbs.Mr, r region, parents ...*object.Object) *MR {
	r.lkey, r.rkey = raw.Lkey, raw.Rkey
	r.readOnly, r.noSink = r.access&AccessLocalWrite == 0, r.pd.device.isIWARP() && r.access&AccessRemoteWrite == 0
	if r.release == nil {
		r.release = func() {}
	}
	mr := &MR{raw: raw, region: r}
	mr.itself = mr
	mr.object.Init(fmt.Sprintf("MR %#x of %s", raw.Lkey, r.pd.device.Name()), append(parents, &r.pd.object)...)
	return mr
}

// PD returns the protection domain that the region belongs to.
func (mr *MR) PD() *PD { return mr.pd }

// Access returns the region's access flags.
func (mr *MR) Access() AccessFlags { return mr.access }

// Bytes returns the memory, or nil after Close or if only the device can access
// the memory. Do not use the slice after Close, which unmaps memory from Alloc.
func (mr *MR) Bytes() []byte {
	if mr.object.Closed() {
		return nil
	}
	return mr.bytes
}

// Len returns the size of the region in bytes.
func (mr *MR) Len() int { return mr.size }

// LKey returns the key that local work requests use for the region.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key that peers use to access the region.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Remote describes the whole region to a peer. The region's access flags limit
// what the peer may do.
func (mr *MR) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: mr.start, RKey: mr.rkey, Len: uint64(mr.size)}
}

// Raw returns the C object, which is valid until Close.
func (mr *MR) Raw() *libibverbs.Mr { return mr.raw }

// usable returns an error if the region can no longer be used.
func (mr *MR) usable() error {
	if err := mr.object.Err(); err != nil || !mr.unusable.Load() {
		return err
	}
	return cerr.Invalid("%s can only be closed, because ibv_rereg_mr has failed", mr.object.Name())
}

// Close deregisters the memory; see ibv_dereg_mr(3). Work requests that still
// use it fail. While memory windows are bound to the region, Close does nothing
// and returns a *BusyError that names them: close or invalidate them first, or
// bind them to another region.
func (mr *MR) Close() error {
	return mr.self().Close(nil, func() error {
		if err := mr.pd.device.unlessRemoved(libibverbs.DeregMr(mr.raw)); err != nil {
			if windows := mr.boundWindows(); len(windows) > 0 && refusesBound(err) {
				return &BusyError{Object: mr.object.Name(), Children: windows}
			}
			return wrap(mr.object.Name(), err)
		}
		mr.release()
		return nil
	})
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// knownAccess holds the flags that some device may know. If a device does not
// know a flag of the optional range, it ignores that flag.
const knownAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessWindowBind |
	AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersistent |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// accessNames lists this package's names of the flags, for messages.
var accessNames = []struct {
	flag AccessFlags
	name string
}{
	{AccessLocalWrite, "AccessLocalWrite"},
	{AccessRemoteWrite, "AccessRemoteWrite"},
	{AccessRemoteAtomic, "AccessRemoteAtomic"},
	{AccessRemoteRead, "AccessRemoteRead"},
	{AccessWindowBind, "AccessWindowBind"},
	{AccessZeroBased, "AccessZeroBased"},
	{AccessOnDemand, "AccessOnDemand"},
	{AccessHugeTLB, "AccessHugeTLB"},
	{AccessFlushGlobal, "AccessFlushGlobal"},
	{AccessFlushPersistent, "AccessFlushPersistent"},
	{AccessRelaxedOrdering, "AccessRelaxedOrdering"},
}

// accessName returns this package's name of the first of the flags.
func accessName(a AccessFlags) string {
	for _, n := range accessNames {
		if a&n.flag != 0 {
			return n.name
		}
	}
	return a.String()
}

// accessProblem returns the reason why no region can have the flags, or "" if
// one can.
func accessProblem(a AccessFlags) string {
	if unknown := a &^ knownAccess; unknown != 0 {
		return fmt.Sprintf("unknown access flags %#x", uint32(unknown))
	}
	if writing := a & (AccessRemoteWrite | AccessRemoteAtomic); writing != 0 && a&AccessLocalWrite == 0 {
		return accessName(writing) + " without AccessLocalWrite"
	}
	if a&AccessHugeTLB != 0 && a&AccessOnDemand == 0 {
		return "AccessHugeTLB without AccessOnDemand"
	}
	return ""
}

// badMR returns the error for a region that the C function op cannot make.
func badMR(op string, pd *PD, format string, args ...any) error {
	return cerr.Refuse(op, pd.object.Name(), format, args...)
}

// checkOnDemand asks the device whether it supports on-demand paging, because
// the kernel would only report an invalid argument. It returns nil if the
// device does not answer.
func (pd *PD) checkOnDemand(op string, need libibverbs.OdpGeneralCaps) error {
	var attr libibverbs.DeviceAttrEx
	if err := libibverbs.QueryDeviceEx(pd.device.raw, nil, &attr); err != nil {
		return nil
	}
	if libibverbs.OdpGeneralCaps(attr.OdpCaps.GeneralCaps)&need == need {
		return nil
	}
	what := "AccessOnDemand"
	if need&libibverbs.IBV_ODP_SUPPORT_IMPLICIT != 0 {
		what += " for the whole address space"
	}
	return cerr.Argument(op, pd.object.Name(), cerr.InvalidAs(syscall.EOPNOTSUPP, "the device does not support %s", what))
}

// The sizes of huge pages on amd64. Other processors have other sizes.
const (
	HugePage2M = 2 << 20
	HugePage1G = 1 << 30
)

// Alloc maps size bytes of zeroed memory outside Go's heap and registers them;
// see ibv_reg_mr(3). Close unmaps them. With AccessZeroBased, work requests
// address the region from 0. In programs built with -race, up to 64 MiB come
// from Go's heap, so that the race detector knows the memory. It then reports
// accesses after Close, which other programs would not survive.
func (pd *PD) Alloc(size int, access AccessFlags) (*MR, error) {
	return pd.alloc(size, access, func() ([]byte, func(), error) { return mem.Region(size) })
}

// AllocHuge maps and registers memory like Alloc, but in huge pages of pageSize
// bytes, such as HugePage2M; size must be a multiple of pageSize. Huge pages
// save the device and the processor much address translation. If the system has
// too few free huge pages, AllocHuge fails with an error matching
// syscall.ENOMEM, and the error says how to reserve them.
func (pd *PD) AllocHuge(size, pageSize int, access AccessFlags) (*MR, error) {
	return pd.alloc(size, access, func() ([]byte, func(), error) {
		b, err := mem.MapHuge(size, pageSize)
		return b, func() { _ = mem.Unmap(b) }, err // Unmap cannot fail for mapped memory
	})
}

// alloc registers memory from fresh, which returns a function that frees it.
func (pd *PD) alloc(size int, access AccessFlags, fresh func() ([]byte, func(), error)) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if size <= 0 {
		return nil, badMR("ibv_reg_mr", pd, "size is %d, less than 1", size)
	}
	bytes, free, err := fresh()
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return pd.register(region{bytes: bytes, start: addressOf(bytes), access: access, release: free})
}

// Register registers the memory of b; see ibv_reg_mr(3). It pins memory of Go's
// heap until Close. The device maps whole pages, but peers can access only b.
// With AccessZeroBased, work requests address the region from 0, and b must
// begin at a page boundary.
func (pd *PD) Register(b []byte, access AccessFlags) (*MR, error) {
	return pd.RegisterIOVA(b, addressOf(b), access)
}

// RegisterIOVA registers the memory of b as Register does, but work requests of
// this program and of peers address its first byte by iova; see
// ibv_reg_mr_iova(3). iova must have the same offset within a page as the
// memory.
func (pd *PD) RegisterIOVA(b []byte, iova uint64, access AccessFlags) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if len(b) == 0 {
		return nil, badMR("ibv_reg_mr", pd, "b is empty, and a region has at least one byte")
	}
	return pd.register(region{bytes: b, start: iova, access: access, release: pin(b)})
}

// pin pins memory of Go's heap until unpin is called.
func pin(b []byte) (unpin func()) {
	p := new(runtime.Pinner)
	p.Pin(unsafe.SliceData(b))
	return p.Unpin
}

// register registers r, and releases the memory if that fails. pd is in use.
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
		raw, err = libibverbs.RegMr(pd.raw, memory, n, access)
	} else {
		raw, err = libibverbs.RegMrIova(pd.raw, memory, n, r.start, access)
	}
	err = pd.explainMemory(err, addr, r.size, access)
	return raw, wrap(fmt.Sprintf("%d bytes on %s", r.size, pd.object.Name()), err)
}

// forC returns the access flags for C, without AccessZeroBased. It sets the
// start of a zero-based region to 0, which has the same effect with every
// driver, whereas few drivers look at AccessZeroBased.
func (r *region) forC() AccessFlags {
	if r.access&AccessZeroBased != 0 {
		r.start = 0
	}
	return r.access &^ AccessZeroBased
}

// checkHost checks a region over memory of this process at addr.
func (pd *PD) checkHost(op string, r *region, addr uint64) error {
	if problem := accessProblem(r.access); problem != "" {
		return badMR(op, pd, "%s", problem)
	}
	page := uint64(os.Getpagesize())
	if (r.start^addr)%page != 0 {
		return badMR(op, pd, "the memory is at offset %#x of a page, but the address %#x is at offset %#x of one", addr%page, r.start, r.start%page)
	}
	if r.start+uint64(r.size)-1 < r.start {
		return badMR(op, pd, "%d bytes at address %#x end beyond the last address", r.size, r.start)
	}
	if r.access&AccessOnDemand != 0 {
		return pd.checkOnDemand(op, libibverbs.IBV_ODP_SUPPORT)
	}
	return nil
}

// AllocNullMR allocates a region without memory; see ibv_alloc_null_mr(3). At
// any offset and size, the device discards what a request writes to the region
// and reads zeros from it. Peers cannot use it. AllocNullMR fails with an error
// matching errors.ErrUnsupported if the device has no such regions.
func (pd *PD) AllocNullMR() (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	raw, err := libibverbs.AllocNullMr(pd.raw)
	if err != nil {
		return nil, wrap(pd.object.Name(), pd.device.explain(err, memoryRegions, 0))
	}
	return newMR(raw, region{pd: pd, access: AccessLocalWrite, size: math.MaxInt}), nil
}

// RegisterImplicit registers the whole address space of this process for
// on-demand paging; see ibv_reg_mr(3). It adds AccessOnDemand to access. In the
// region's segments and remote buffers, offsets are addresses. Memory of Go's
// heap must be pinned (runtime.Pinner) while a request uses it. Bytes returns
// nil. RegisterImplicit fails with an error matching errors.ErrUnsupported if
// the device does not support on-demand paging of the whole address space.
func (pd *PD) RegisterImplicit(access AccessFlags) (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	access |= AccessOnDemand
	if err := pd.checkImplicit("ibv_reg_mr", access); err != nil {
		return nil, err
	}
	raw, err := libibverbs.RegMr(pd.raw, nil, math.MaxUint64, access)
	if err != nil {
		return nil, wrap("the whole address space on "+pd.object.Name(), pd.device.explain(err, memoryRegions, 0))
	}
	return newMR(raw, region{pd: pd, access: access, size: math.MaxInt}), nil
}

// checkImplicit checks a region over the whole address space.
func (pd *PD) checkImplicit(op string, access AccessFlags) error {
	if problem := accessProblem(access); problem != "" {
		return badMR(op, pd, "%s", problem)
	}
	if access&(AccessHugeTLB|AccessZeroBased) != 0 {
		return badMR(op, pd, "%s cannot be set for the whole address space", accessName(access&(AccessHugeTLB|AccessZeroBased)))
	}
	return pd.checkOnDemand(op, libibverbs.IBV_ODP_SUPPORT|libibverbs.IBV_ODP_SUPPORT_IMPLICIT)
}

// Advice tells the device how a program will use memory that is paged on
// demand.
type Advice = libibverbs.IbUverbsAdviseMrAdvice

// The kinds of advice. Each asks the device to fetch pages before they are
// needed.
const (
	AdvicePrefetch        Advice = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH          // for reading
	AdvicePrefetchWrite   Advice = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE    // for reading and writing
	AdvicePrefetchNoFault Advice = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT // only pages that are already in memory
)

// Advise gives the device advice about segments of regions with AccessOnDemand
// in this domain; see ibv_advise_mr(3). With flush, it blocks until the device
// has mapped the pages, though they may be evicted again later. Advise fails
// with an error matching errors.ErrUnsupported if the device takes no advice.
func (pd *PD) Advise(advice Advice, flush bool, segments ...Segment) error {
	const op = "ibv_advise_mr"
	objects := []*object.Object{pd.self()}
	for _, s := range segments {
		objects = append(objects, s.mr.self())
	}
	done, err := object.UseAll(objects...)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	if len(segments) == 0 {
		return badMR(op, pd, "Advise needs at least one segment")
	}
	sges := make([]libibverbs.Sge, len(segments))
	for i, s := range segments {
		if err := s.check(); err != nil {
			return cerr.Argument(op, pd.object.Name(), inSegment(i, err))
		}
		if problem := adviceProblem(pd, advice, s.mr); problem != "" {
			return cerr.Refuse(op, pd.object.Name(), "segment %d: %s %s", i, s.mr.object.Name(), problem)
		}
		sges[i] = s.sge()
	}
	var flags libibverbs.IbUverbsAdviseMrFlag
	if flush {
		flags = libibverbs.IBV_ADVISE_MR_FLAG_FLUSH
	}
	err = libibverbs.AdviseMr(pd.raw, advice, flags, &sges[0], uint32(len(sges)))
	return wrap(fmt.Sprintf("%d segments on %s", len(sges), pd.object.Name()), err)
}

func adviceProblem(pd *PD, advice Advice, mr *MR) string {
	switch {
	case mr.keyOnly:
		return "is known by its key only"
	case mr.pd.raw != pd.raw:
		return "belongs to " + mr.pd.object.Name() + ", not to " + pd.object.Name()
	case mr.access&AccessOnDemand == 0:
		return "does not have AccessOnDemand"
	case advice == AdvicePrefetchWrite && mr.access&AccessLocalWrite == 0:
		return "does not have AccessLocalWrite"
	}
	return ""
}

// DMABuf describes memory of another device, such as a GPU, exported by that
// device's driver.
type DMABuf struct {
	FD     int    // file descriptor of the buffer; may be closed once the region exists
	Offset uint64 // start of the region in the buffer, in bytes
	Length int    // size of the region in bytes
	IOVA   uint64 // address of the region's first byte in work requests; must have the same offset within a page as Offset
}

// dmabufAccess holds the flags that a region of a DMABuf can have.
const dmabufAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// RegisterDMABuf registers memory of another device; see ibv_reg_dmabuf_mr(3).
// The region's Bytes returns nil. RegisterDMABuf fails with an error matching
// errors.ErrUnsupported if the device does not support DMA-BUFs.
func (pd *PD) RegisterDMABuf(b DMABuf, access AccessFlags) (*MR, error) {
	return pd.registerDMABuf(b, nil, access)
}

// registerDMABuf registers memory of another device, with a DMA handle unless
// it is nil.
func (pd *PD) registerDMABuf(b DMABuf, handle *dmaHandle, access AccessFlags) (*MR, error) {
	op, parents := "ibv_reg_dmabuf_mr", []*object.Object{pd.self()}
	if handle != nil {
		op, parents = opRegisterDMA, append(parents, handle.object)
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	what := fmt.Sprintf("%d bytes at %d of descriptor %d", b.Length, b.Offset, b.FD)
	page := uint64(os.Getpagesize())
	switch extra := access &^ dmabufAccess; {
	case b.FD < 0 || b.FD > math.MaxInt32:
		return nil, badMR(op, pd, "FD is %d, not from 0 to %d", b.FD, math.MaxInt32)
	case b.Length <= 0:
		return nil, badMR(op, pd, "Length is %d, less than 1", b.Length)
	case b.Offset+uint64(b.Length) < b.Offset, b.IOVA+uint64(b.Length)-1 < b.IOVA:
		return nil, badMR(op, pd, "%s with address %#x end beyond the last offset or address", what, b.IOVA)
	case extra != 0:
		return nil, badMR(op, pd, "%s cannot be set for a DMABuf", accessName(extra))
	case accessProblem(access) != "":
		return nil, badMR(op, pd, "%s", accessProblem(access))
	case (b.Offset^b.IOVA)%page != 0:
		return nil, badMR(op, pd, "the buffer is at offset %#x of a page, but the address %#x is at offset %#x of one", b.Offset%page, b.IOVA, b.IOVA%page)
	case handle != nil && handle.device.raw != pd.device.raw:
		return nil, otherDevice(op, pd.object.Name(), handle.object)
	}
	raw, err := b.register(pd, handle, access)
	if err != nil {
		return nil, wrap(what+" on "+pd.object.Name(), pd.device.explain(err, memoryRegions, b.Length))
	}
	return newMR(raw, region{pd: pd, access: access, start: b.IOVA, size: b.Length}, parents...), nil
}

func (b DMABuf) register(pd *PD, handle *dmaHandle, access AccessFlags) (*libibverbs.Mr, error) {
	if handle == nil {
		return libibverbs.RegDmabufMr(pd.raw, b.Offset, uint64(b.Length), b.IOVA, int32(b.FD), access)
	}
	return libibverbs.RegMrEx(pd.raw, &libibverbs.MrInitAttr{
		Length: uint64(b.Length), Access: access, Iova: b.IOVA, Fd: int32(b.FD), FdOffset: b.Offset, Dmah: handle.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_FD | libibverbs.IBV_REG_MR_MASK_FD_OFFSET |
			libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	})
}

// ReregError reports that Rereg failed.
type ReregError struct {
	// Object names the memory region.
	Object string
	// Code says which step failed: IBV_REREG_MR_ERR_INPUT or another code of
	// ibv_rereg_mr(3).
	Code int
	// Errno says why it failed.
	Errno syscall.Errno
}

// Unusable reports whether the region can now only be closed.
func (e *ReregError) Unusable() bool { return (*cerr.ReregError)(e).Unusable() }

// Error returns the region, the errno's text, and the step that failed.
func (e *ReregError) Error() string { return (*cerr.ReregError)(e).Error() }

// Unwrap returns Errno.
func (e *ReregError) Unwrap() error { return e.Errno }

// ReregConfig says what Rereg changes. Rereg changes nothing for a field that
// is nil.
type ReregConfig struct {
	PD     *PD          // new protection domain, of the same open device
	Access *AccessFlags // new access flags: all of them, not only those that change
	Memory []byte       // new memory, as for Register; work requests use its address
}

// Rereg changes a region over this process's memory in place, which can be
// cheaper than closing it and registering another; see ibv_rereg_mr(3). The
// keys may change. No request may use the region during the call. If Memory is
// set, Rereg releases the old memory, as Close does, and no request may use
// older Segments of the region.
//
// After a *ReregError, the region may be unusable except for Close, or, if Code
// is IBV_REREG_MR_ERR_DO_FORK_OLD, changed as requested. After any other error
// it is unchanged. Rereg fails with an error matching errors.ErrUnsupported if
// the device cannot change regions.
func (mr *MR) Rereg(config ReregConfig) error {
	if err := mr.self().Use(); err != nil {
		return err
	}
	defer mr.object.Done()
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if config.PD != nil {
		if err := config.PD.self().Use(); err != nil {
			return err
		}
		defer config.PD.object.Done()
	}
	if err := mr.checkRereg(config); err != nil {
		return err
	}
	return mr.rereg(config)
}

const opRereg = "ibv_rereg_mr"

func (mr *MR) checkRereg(config ReregConfig) error {
	problem := ""
	switch {
	case mr.usable() != nil:
		return cerr.Argument(opRereg, mr.object.Name(), mr.usable())
	case mr.bytes == nil:
		problem = "the region is not memory of this process"
	case config.PD == nil && config.Access == nil && config.Memory == nil:
		problem = "PD, Access and Memory are all nil"
	case config.Memory != nil && len(config.Memory) == 0:
		problem = "Memory is empty"
	case config.PD != nil && config.PD.device.raw != mr.pd.device.raw:
		return otherDevice(opRereg, mr.object.Name(), config.PD.self())
	case config.Access != nil && *config.Access&AccessZeroBased != 0:
		problem = "AccessZeroBased cannot be changed"
	case config.Access != nil && accessProblem(*config.Access) != "":
		problem = accessProblem(*config.Access)
	default:
		return nil
	}
	return cerr.Refuse(opRereg, mr.object.Name(), "%s", problem)
}

func (mr *MR) rereg(config ReregConfig) error {
	var flags libibverbs.ReregMrFlags
	var rawPD *libibverbs.Pd
	var access AccessFlags
	next, giveBack := mr.region, func() {}
	if config.PD != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_PD
		rawPD, next.pd = config.PD.raw, config.PD
		mr.object.AddParent(&config.PD.object)
	}
	if config.Access != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_ACCESS
		access, next.access = *config.Access, *config.Access
		next.readOnly, next.noSink = access&AccessLocalWrite == 0, mr.pd.device.isIWARP() && access&AccessRemoteWrite == 0
	}
	if config.Memory != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION
		next.bytes, next.start, next.size = config.Memory, addressOf(config.Memory), len(config.Memory)
		next.release, giveBack = pin(config.Memory), mr.release
	}
	err := libibverbs.ReregMr(mr.raw, flags, rawPD,
		unsafe.Pointer(unsafe.SliceData(config.Memory)), uint64(len(config.Memory)), access)
	err = wrap(mr.object.Name(), err)
	var failure *ReregError
	switch {
	case err == nil || errors.As(err, &failure) && failure.Code == int(libibverbs.IBV_REREG_MR_ERR_DO_FORK_OLD):
		previous := mr.pd
		mr.region = next
		mr.lkey, mr.rkey = mr.raw.Lkey, mr.raw.Rkey
		if next.pd != previous {
			mr.object.RemoveParent(&previous.object)
		}
		giveBack()
	case failure != nil && failure.Unusable():
		// It is unknown which domain and which memory the device now uses.
		mr.unusable.Store(true)
		if config.Memory != nil {
			mr.release = func() { giveBack(); next.release() }
		}
	default:
		if config.Memory != nil {
			next.release()
		}
		if next.pd != mr.pd {
			mr.object.RemoveParent(&next.pd.object)
		}
	}
	return err
}
