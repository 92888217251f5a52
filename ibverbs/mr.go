package ibverbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
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
