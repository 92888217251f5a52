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

// MR is a memory region: memory that the device can reach. Its methods may be
// called concurrently, but while Rereg runs, only Close. What the device does
// with the memory is not synchronised with Go: read what a peer wrote only
// after a completion says that it is there.
type MR struct {
	object   object.Object
	raw      *libibverbs.Mr
	itself   *MR // see Segment.owner
	handle   uint32
	region   // which Rereg replaces
	unusable atomic.Bool

	mu      sync.Mutex // held by a Rereg, and guards what follows
	windows map[*MW]struct{}
}

// region is what a memory region covers, and for whom.
type region struct {
	pd         *PD
	access     AccessFlags
	bytes      []byte // nil if Go cannot reach the memory
	start      uint64 // address of the first byte in work requests
	size       int
	release    func() // gives the memory back
	lkey, rkey uint32
	keyOnly    bool // RawSegment's: nothing else is known
	readOnly   bool // for the device, as far as is known
}

// newMR is called with the domain and other parents in use.
func newMR(raw *libibverbs.Mr, r region, parents ...*object.Object) *MR {
	r.lkey, r.rkey = raw.Lkey, raw.Rkey
	r.readOnly = r.access&AccessLocalWrite == 0
	if r.release == nil {
		r.release = func() {}
	}
	mr := &MR{raw: raw, handle: raw.Handle, region: r}
	mr.itself = mr
	mr.object.Init(fmt.Sprintf("MR %#x of %s", raw.Lkey, r.pd.device.Name()), append(parents, &r.pd.object)...)
	return mr
}

// PD returns the protection domain that the region belongs to.
func (mr *MR) PD() *PD { return mr.pd }

// Access returns what may be done with the region.
func (mr *MR) Access() AccessFlags { return mr.access }

// Bytes returns the memory, nil after Close and for memory that only the
// device can reach. What it returned before must not be used after Close
// either; memory from Alloc is no longer mapped then.
func (mr *MR) Bytes() []byte {
	if mr.object.Closed() {
		return nil
	}
	return mr.bytes
}

// Len returns the size in bytes.
func (mr *MR) Len() int { return mr.size }

// LKey returns the key that local requests name the region by.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey returns the key that peers name the region by.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Remote describes the whole region to a peer, which may use it as far as the
// region's access flags allow.
func (mr *MR) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: mr.start, RKey: mr.rkey, Len: uint64(mr.size)}
}

// addr is the address of the first byte in work requests.
func (mr *MR) addr() uint64 { return mr.start }

// Raw returns the C object, which is valid until Close.
func (mr *MR) Raw() *libibverbs.Mr { return mr.raw }

// usable returns nil, or why the region cannot be used any more.
func (mr *MR) usable() error {
	if err := mr.object.Err(); err != nil || !mr.unusable.Load() {
		return err
	}
	return cerr.Invalid("%s can only be closed since ibv_rereg_mr failed", mr.object.Name())
}

// Close takes the memory away from the device; see ibv_dereg_mr(3). Requests
// that are still under way with it fail. While memory windows are bound to the
// region, Close does nothing and returns a BusyError with their names: close
// them, or have them unbound or invalidated.
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

// knownAccess are the flags that some device may know; a device ignores those
// of the optional range that it does not.
const knownAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessWindowBind |
	AccessZeroBased | AccessOnDemand | AccessHugeTLB | AccessFlushGlobal | AccessFlushPersistent |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// accessNames are the names of the flags in messages.
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

// accessName names the first of the flags, as this package does.
func accessName(a AccessFlags) string {
	for _, n := range accessNames {
		if a&n.flag != 0 {
			return n.name
		}
	}
	return a.String()
}

// accessProblem says why no region can have the flags, "" if one may.
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

// badMR is a region that op cannot make.
func badMR(op string, pd *PD, format string, args ...any) error {
	return cerr.Refuse(op, pd.object.Name(), format, args...)
}

// checkOnDemand asks the device, where it answers, whether it can page on
// demand: the kernel would only say that an argument is invalid.
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
	return cerr.Argument(op, pd.object.Name(), cerr.InvalidAs(syscall.EOPNOTSUPP, "the device has no %s", what))
}

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

// AllocNullMR makes a region of no memory; see ibv_reg_mr(3). What a request
// writes to a segment of it, of any offset and size, goes nowhere, and what it
// reads are zeros. Peers cannot use it. A device without such regions gives
// errors.ErrUnsupported.
func (pd *PD) AllocNullMR() (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	raw, err := libibverbs.AllocNullMr(pd.raw)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: AccessLocalWrite, size: math.MaxInt}), nil
}

// RegisterImplicit registers the whole address space of this process for
// paging on demand, which AccessOnDemand need not be given for; see
// ibv_reg_mr(3). Segments and remote buffers of it have addresses as offsets.
// Memory of Go's heap must be pinned (runtime.Pinner) while a request uses it.
// The region has no Bytes. A device that cannot do it gives
// errors.ErrUnsupported, or syscall.EINVAL if it cannot do it WithDMAHandle.
func (pd *PD) RegisterImplicit(access AccessFlags, options ...RegisterOption) (*MR, error) {
	if o := registerOptionsOf(options, 0); o.withHandle {
		return pd.registerDMAImplicit(o.handle, access)
	}
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	access |= AccessOnDemand
	if err := pd.checkImplicit("ibv_reg_mr", access); err != nil {
		return nil, err
	}
	raw, err := libibverbs.RegMr(pd.raw, nil, math.MaxUint64, int32(access))
	if err != nil {
		return nil, wrap("the whole address space on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, size: math.MaxInt}), nil
}

// checkImplicit looks at a region over the whole address space.
func (pd *PD) checkImplicit(op string, access AccessFlags) error {
	if problem := accessProblem(access); problem != "" {
		return badMR(op, pd, "%s", problem)
	}
	if access&(AccessHugeTLB|AccessZeroBased) != 0 {
		return badMR(op, pd, "%s for the whole address space", accessName(access&(AccessHugeTLB|AccessZeroBased)))
	}
	return pd.checkOnDemand(op, libibverbs.IBV_ODP_SUPPORT|libibverbs.IBV_ODP_SUPPORT_IMPLICIT)
}

// Advice is what the device can be told about memory that it pages on demand.
type Advice = libibverbs.IbUverbsAdviseMrAdvice

// The advices: fetch pages before they are needed.
const (
	AdvicePrefetch        = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH          // for reading
	AdvicePrefetchWrite   = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE    // for writing too
	AdvicePrefetchNoFault = libibverbs.IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT // only those that are in memory
)

// Advise gives the device an advice about pieces of regions with
// AccessOnDemand, which must belong to the domain; see ibv_advise_mr(3). With
// flush, it returns when the device knows the pages. That the pages stay is
// not promised. A device without such advices gives errors.ErrUnsupported.
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
		return badMR(op, pd, "no segments")
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
	var flags uint32
	if flush {
		flags = uint32(libibverbs.IBV_ADVISE_MR_FLAG_FLUSH)
	}
	err = libibverbs.AdviseMr(pd.raw, advice, flags, &sges[0], uint32(len(sges)))
	return wrap(fmt.Sprintf("%d segments on %s", len(sges), pd.object.Name()), err)
}

func adviceProblem(pd *PD, advice Advice, mr *MR) string {
	switch {
	case mr.keyOnly:
		return "is of no memory region"
	case mr.pd.raw != pd.raw:
		return "belongs to " + mr.pd.object.Name() + ", not to " + pd.object.Name()
	case mr.access&AccessOnDemand == 0:
		return "is without AccessOnDemand"
	case advice == AdvicePrefetchWrite && mr.access&AccessLocalWrite == 0:
		return "is without AccessLocalWrite"
	}
	return ""
}

// DMABuf is memory of another device, such as a GPU's, as its driver exports
// it.
type DMABuf struct {
	FD     int    // the descriptor; it may be closed once the region is there
	Offset uint64 // where in the buffer the region begins, in bytes
	Length int    // bytes
	IOVA   uint64 // address of the first byte in work requests; the same place within a page as Offset

	Handle *DMAHandle // how the device is to reach it, which needs rdma-core 59; nil: as it likes
}

// dmabufAccess is what such a region can have.
const dmabufAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// RegisterDMABuf registers memory of another device; see ibv_reg_dmabuf_mr(3).
// The region has no Bytes. A device that cannot do it gives
// errors.ErrUnsupported.
func (pd *PD) RegisterDMABuf(b DMABuf, access AccessFlags) (*MR, error) {
	op, parents := "ibv_reg_dmabuf_mr", []*object.Object{pd.self()}
	if b.Handle != nil {
		op, parents = "ibv_reg_mr_ex", append(parents, b.Handle.self())
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	what := fmt.Sprintf("%d bytes at %d of descriptor %d", b.Length, b.Offset, b.FD)
	page := uint64(os.Getpagesize())
	switch extra := access &^ dmabufAccess; {
	case b.FD < 0 || b.FD > math.MaxInt32, b.Length <= 0, b.Offset+uint64(b.Length) < b.Offset, b.IOVA+uint64(b.Length)-1 < b.IOVA:
		return nil, badMR(op, pd, "%s at address %#x: none, or beyond the last address", what, b.IOVA)
	case extra != 0:
		return nil, badMR(op, pd, "%s for %s", accessName(extra), what)
	case accessProblem(access) != "":
		return nil, badMR(op, pd, "%s for %s", accessProblem(access), what)
	case (b.Offset^b.IOVA)%page != 0:
		return nil, badMR(op, pd, "%s for address %#x, elsewhere in a page", what, b.IOVA)
	case b.Handle != nil && b.Handle.device.raw != pd.device.raw:
		return nil, otherDevice(op, pd.object.Name(), b.Handle.self())
	}
	raw, err := b.register(pd, access)
	if err != nil {
		return nil, wrap(what+" on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, start: b.IOVA, size: b.Length}, parents...), nil
}

func (b DMABuf) register(pd *PD, access AccessFlags) (*libibverbs.Mr, error) {
	if b.Handle == nil {
		return libibverbs.RegDmabufMr(pd.raw, b.Offset, uint64(b.Length), b.IOVA, int32(b.FD), int32(access))
	}
	return libibverbs.RegMrEx(pd.raw, &libibverbs.MrInitAttr{
		Length: uint64(b.Length), Access: int32(access), Iova: b.IOVA, Fd: int32(b.FD), FdOffset: b.Offset, Dmah: b.Handle.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_FD | libibverbs.IBV_REG_MR_MASK_FD_OFFSET |
			libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	})
}

// ReregError is a failed Rereg.
type ReregError struct {
	// Object is the memory region.
	Object string
	// Code says which step failed. It is one of IBV_REREG_MR_ERR_INPUT and the
	// others of ibv_rereg_mr(3).
	Code int
	// Errno says why.
	Errno syscall.Errno
}

// Unusable reports whether the region can only be closed now.
func (e *ReregError) Unusable() bool { return (*cerr.ReregError)(e).Unusable() }

// Error returns the region, the errno's text, and the step that failed.
func (e *ReregError) Error() string { return (*cerr.ReregError)(e).Error() }

// Unwrap returns Errno, so that errors.Is and errors.As find it.
func (e *ReregError) Unwrap() error { return e.Errno }

// ReregConfig says what to change of a memory region. What is nil stays.
type ReregConfig struct {
	PD     *PD          // of the same open device
	Access *AccessFlags // all of them, not only those that change
	Memory []byte       // of the caller's, as in Register; its address is that of work requests
}

// Rereg changes a region over this process's memory in place, which can be
// cheaper than to close it and make another; see ibv_rereg_mr(3). The keys may
// change. No request may use the region meanwhile, nor Segments made before of
// a region that then has other memory. Old memory is given back, as Close
// does.
//
// An error that is a *ReregError may leave the region unusable, which it then
// is for everything but Close, or, with IBV_REREG_MR_ERR_DO_FORK_OLD as Code,
// changed as asked for. After any other error it is as it was. A device that
// cannot change regions gives errors.ErrUnsupported.
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
		problem = "nothing to change"
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
		next.readOnly = access&AccessLocalWrite == 0
	}
	if config.Memory != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION
		next.bytes, next.start, next.size = config.Memory, addressOf(config.Memory), len(config.Memory)
		next.release, giveBack = pin(config.Memory), mr.release
	}
	err := libibverbs.ReregMr(mr.raw, int32(flags), rawPD,
		unsafe.Pointer(unsafe.SliceData(config.Memory)), uint64(len(config.Memory)), int32(access))
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
		// Nobody knows whose it is and which memory the device still uses.
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
