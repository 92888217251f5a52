package ibverbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// MWType is a type of memory windows.
type MWType = libibverbs.MwType

// The types of memory windows.
const (
	MWType1 MWType = libibverbs.IBV_MW_TYPE_1 // bound with Bind, for all queue pairs of the domain
	MWType2 MWType = libibverbs.IBV_MW_TYPE_2 // bound with a work request, can be invalidated with another
)

// MW is a memory window: a way for peers to a piece of a memory region, which
// can be opened and closed much faster than a region. Its methods may be
// called concurrently.
type MW struct {
	object object.Object
	pd     *PD
	raw    *libibverbs.Mw
	typ    MWType

	mu     sync.Mutex // guards what follows
	rkey   uint32
	mr     *MR // that the last bind was for, nil for none
	remote RemoteBuffer
}

// AllocMW makes a memory window that is not bound yet; see ibv_alloc_mw(3). A
// device without windows of the type gives an error that is
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
		return nil, wrap(pd.object.Name(), err)
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

// RKey returns the key of the last bind, which is valid once that has
// completed, and which a request that invalidates the window takes.
func (mw *MW) RKey() uint32 {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.rkey
}

// Remote describes the window to a peer as of the last bind, which must have
// completed. A window that is not bound is empty.
func (mw *MW) Remote() RemoteBuffer {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.remote
}

// Raw returns the C object, which is valid until Close.
func (mw *MW) Raw() *libibverbs.Mw { return mw.raw }

// Close takes the window away from peers; see ibv_dealloc_mw(3).
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

// moveTo notes that the window is bound to a region, nil for none. It is
// called with mw.mu held.
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

// boundWindows names the windows whose last bind was for the region. A peer
// may have invalidated some.
func (mr *MR) boundWindows() []string {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	var names []string
	for mw := range mr.windows {
		names = append(names, mw.object.Name())
	}
	slices.Sort(names)
	return names
}

// refusesBound reports whether err can be that of a region with windows: EBUSY,
// or what Soft-RoCE gives.
func refusesBound(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EINVAL)
}
