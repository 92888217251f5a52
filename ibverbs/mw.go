// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"sort"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// MWType is a type of memory window.
type MWType = libibverbs.MwType

// The types of memory windows.
const (
	MWType1 MWType = libibverbs.IBV_MW_TYPE_1 // bound with MW.Bind, for all queue pairs of the domain
	MWType2 MWType = libibverbs.IBV_MW_TYPE_2 // bound and invalidated with work requests
)

// MW is a memory window: it gives peers access to a piece of a memory region,
// and can be opened and closed much faster than a region. Its methods may be
// called concurrently.
type MW struct {
	object object.Object
	pd     *PD
	raw    *libibverbs.Mw
	typ    MWType

	mu     sync.Mutex // guards the fields below
	rkey   uint32
	mr     *MR // region of the last bind, or nil
	remote RemoteBuffer
}

// AllocMW allocates a memory window that is not bound yet; see ibv_alloc_mw(3).
// If the device has no windows of the type, it fails with an error matching
// errors.ErrUnsupported, or syscall.EINVAL from some drivers.
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	if t != MWType1 && t != MWType2 {
		return nil, badMR("ibv_alloc_mw", pd, "type is %d, neither MWType1 nor MWType2", t)
	}
	raw, err := libibverbs.AllocMw(pd.raw, t)
	if err != nil {
		return nil, wrap(pd.object.Name(), pd.device.explain(err, memoryWindows, 0))
	}
	mw := &MW{pd: pd, raw: raw, typ: t, rkey: raw.Rkey}
	mw.object.Init(fmt.Sprintf("MW %d of %s", raw.Handle, pd.device.Name()), &pd.object)
	return mw, nil
}

func (mw *MW) self() *object.Object {
	if mw == nil {
		return nil
	}
	return &mw.object
}

// PD returns the protection domain that the window belongs to.
func (mw *MW) PD() *PD { return mw.pd }

// Type returns the type of the window.
func (mw *MW) Type() MWType { return mw.typ }

// RKey returns the key of the last bind, which is valid once the bind has
// completed. A request that invalidates the window takes this key.
func (mw *MW) RKey() uint32 {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.rkey
}

// Remote describes the window to a peer as of the last bind, which must have
// completed. For a window that is not bound it returns the zero RemoteBuffer.
func (mw *MW) Remote() RemoteBuffer {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.remote
}

// Raw returns the C object, which is valid until Close.
func (mw *MW) Raw() *libibverbs.Mw { return mw.raw }

// Close deallocates the window, which ends the peers' access; see
// ibv_dealloc_mw(3).
func (mw *MW) Close() error {
	return mw.self().Close(nil, func() error {
		if err := mw.pd.device.unlessRemoved(libibverbs.DeallocMw(mw.raw)); err != nil {
			return wrap(mw.object.Name(), err)
		}
		mw.mu.Lock()
		defer mw.mu.Unlock()
		mw.moveTo(nil, RemoteBuffer{})
		return nil
	})
}

// moveTo records that the window is bound to mr, or to nothing if mr is nil.
// The caller holds mw.mu.
func (mw *MW) moveTo(mr *MR, remote RemoteBuffer) {
	if old := mw.mr; old != nil {
		old.mu.Lock()
		delete(old.windows, mw)
		old.mu.Unlock()
	}
	if mr != nil {
		mr.mu.Lock()
		if mr.windows == nil {
			mr.windows = map[*MW]struct{}{}
		}
		mr.windows[mw] = struct{}{}
		mr.mu.Unlock()
	}
	mw.mr, mw.remote = mr, remote
}

// boundWindows returns the names of the windows whose last bind was to the
// region. A peer may have invalidated some of them.
func (mr *MR) boundWindows() []string {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	var names []string
	for mw := range mr.windows {
		names = append(names, mw.object.Name())
	}
	sort.Slice(names, func(i, j int) bool { return names[i] < names[j] })
	return names
}

// refusesBound reports whether err can mean that windows are bound to a region:
// EBUSY, or EINVAL, which Soft-RoCE returns.
func refusesBound(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EINVAL)
}

// Binding describes the access that a memory window gives peers.
type Binding struct {
	// Memory is part of a region in the window's protection domain. The region
	// must have AccessWindowBind, and AccessLocalWrite if peers may write.
	Memory Segment

	// Access combines AccessRemoteRead, AccessRemoteWrite and
	// AccessRemoteAtomic. With AccessZeroBased, peers address the memory from
	// 0.
	Access AccessFlags
}

// Bind binds a window of type 1 by posting a request to the send queue of qp,
// which must belong to the window's protection domain; see ibv_bind_mw(3). With
// SendSignaled, the send completion queue of qp gets a completion with the ID.
// After the bind has completed, Remote describes the memory to peers, and they
// can no longer access the memory that was bound before. If the request fails,
// the window can only be closed. To unbind a window, close it: an empty binding
// crashes Soft-RoCE's C code.
func (mw *MW) Bind(qp *QP, id uint64, flags SendFlags, b Binding) error {
	done, err := object.UseAll(mw.self(), qp.self(), b.Memory.mr.self())
	if err != nil {
		return fmt.Errorf("ibv_bind_mw: %w", err)
	}
	defer done()
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.typ != MWType1 {
		return mw.refuse("ibv_bind_mw", "the window is not of type 1")
	}
	if qp.pd == nil || qp.pd.root() != mw.pd.root() {
		return mw.otherDomain("ibv_bind_mw", qp.object.Name())
	}
	info, err := mw.bindInfo("ibv_bind_mw", b)
	if err != nil {
		return err
	}
	bind := libibverbs.MwBind{WrId: id, SendFlags: flags, BindInfo: info}
	if err := libibverbs.BindMw(qp.raw, mw.raw, &bind); err != nil {
		return wrap(mw.object.Name()+" with "+qp.object.Name(), err)
	}
	mw.rkey = mw.raw.Rkey
	mw.moveTo(b.Memory.mr, mw.remoteOf(b))
	return nil
}

// bindWR takes the window's next key and returns the fields of a work request
// that binds a window of type 2. After the call, RKey and Remote describe that
// bind.
func (mw *MW) bindWR(b Binding) (libibverbs.SendWrBindMw, error) {
	const op = "SendBatch.BindMW"
	var request libibverbs.SendWrBindMw
	done, err := object.UseAll(mw.self(), b.Memory.mr.self())
	if err != nil {
		return request, fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.typ != MWType2 {
		return request, mw.refuse(op, "the window is not of type 2")
	}
	info, err := mw.bindInfo(op, b)
	if err != nil {
		return request, err
	}
	rkey, err := libibverbs.IncRkey(mw.rkey)
	if err != nil {
		return request, err
	}
	mw.raw.Rkey = mw.rkey // providers read the current key there, and do not update it
	mw.rkey = rkey
	mw.moveTo(b.Memory.mr, mw.remoteOf(b))
	return libibverbs.SendWrBindMw{Mw: mw.raw, Rkey: rkey, BindInfo: info}, nil
}

func (mw *MW) refuse(op, format string, args ...any) error {
	return cerr.Refuse(op, mw.object.Name(), format, args...)
}

func (mw *MW) otherDomain(op, other string) error {
	return cerr.Argument(op, mw.object.Name(), cerr.InvalidAs(syscall.EPERM, "%s does not belong to %s", other, mw.pd.object.Name()))
}

// bindInfo checks the binding and returns it in C's form. The region is in use.
func (mw *MW) bindInfo(op string, b Binding) (info libibverbs.MwBindInfo, err error) {
	if err := b.Memory.inside(); err != nil {
		return info, cerr.Argument(op, mw.object.Name(), err)
	}
	mr, name := b.Memory.mr, b.Memory.mr.object.Name()
	const writing = AccessRemoteWrite | AccessRemoteAtomic
	switch extra := b.Access &^ (writing | AccessRemoteRead | AccessZeroBased); {
	case extra != 0:
		err = mw.refuse(op, "a window cannot have %s", accessName(extra))
	case mr.keyOnly:
		err = mw.refuse(op, "%s is known by its key only, so a window cannot be bound to it", name)
	case b.Memory.n == 0:
		err = mw.refuse(op, "the binding has 0 bytes of %s", name)
	case mr.pd.raw != mw.pd.raw:
		err = mw.otherDomain(op, name)
	case mr.access&AccessWindowBind == 0:
		err = mw.refuse(op, "%s does not have AccessWindowBind", name)
	case b.Access&writing != 0 && mr.access&AccessLocalWrite == 0:
		err = mw.refuse(op, "%s needs AccessLocalWrite, which %s does not have", accessName(b.Access&writing), name)
	}
	return libibverbs.MwBindInfo{
		Mr: mr.raw, Addr: b.Memory.addr(), Length: uint64(b.Memory.n), MwAccessFlags: b.Access,
	}, err
}

// remoteOf describes the binding to a peer. mw.rkey is already the binding's
// key.
func (mw *MW) remoteOf(b Binding) RemoteBuffer {
	r := RemoteBuffer{Addr: b.Memory.addr(), RKey: mw.rkey, Len: uint64(b.Memory.n)}
	if b.Access&AccessZeroBased != 0 {
		r.Addr = 0
	}
	return r
}
