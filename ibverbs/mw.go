package ibverbs

import (
	"fmt"
	"sync"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// MWType2 is a memory window that is bound with a work request.
const MWType2 = libibverbs.IBV_MW_TYPE_2

// MW is a memory window: a way for peers to a piece of a memory region.
type MW struct {
	object object.Object
	raw    *libibverbs.Mw

	mu     sync.Mutex // guards what follows
	rkey   uint32
	remote RemoteBuffer
}

// Binding is what a memory window opens to peers.
type Binding struct {
	Memory Segment
	Access AccessFlags
}

// AllocMW makes a memory window that is not bound yet; see ibv_alloc_mw(3).
func (pd *PD) AllocMW(t libibverbs.MwType) (*MW, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	raw, err := libibverbs.AllocMw(pd.raw, t)
	if err != nil {
		return nil, cerr.Wrap(pd.object.Name(), err)
	}
	mw := &MW{raw: raw, rkey: raw.Rkey}
	mw.object.Init(fmt.Sprintf("MW %d of %s", raw.Handle, pd.context.Name()), &pd.object)
	return mw, nil
}

func (mw *MW) self() *object.Object {
	if mw == nil {
		return nil
	}
	return &mw.object
}

// RKey returns the key of the last bind.
func (mw *MW) RKey() uint32 {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.rkey
}

// Remote describes the window to a peer as of the last bind.
func (mw *MW) Remote() RemoteBuffer {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.remote
}

// BindRequest returns what a work request of type IBV_WR_BIND_MW has to say to
// bind the window, and takes the next key for it.
func (mw *MW) BindRequest(b Binding) (libibverbs.SendWrBindMw, error) {
	var request libibverbs.SendWrBindMw
	done, err := object.UseAll(mw.self(), b.Memory.mr.self())
	if err != nil {
		return request, fmt.Errorf("bind a memory window: %w", err)
	}
	defer done()
	if err := b.Memory.check(); err != nil {
		return request, fmt.Errorf("bind a memory window: %w", err)
	}
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.rkey, err = libibverbs.IncRkey(mw.rkey); err != nil {
		return request, err
	}
	sge := b.Memory.sge()
	mw.remote = RemoteBuffer{Addr: sge.Addr, RKey: mw.rkey, Len: uint64(sge.Length)}
	return libibverbs.SendWrBindMw{Mw: mw.raw, Rkey: mw.rkey, BindInfo: libibverbs.MwBindInfo{
		Mr: b.Memory.mr.raw, Addr: sge.Addr, Length: uint64(sge.Length), MwAccessFlags: uint32(b.Access),
	}}, nil
}

// Raw returns the C object, which is valid until Close.
func (mw *MW) Raw() *libibverbs.Mw { return mw.raw }

// Close takes the window away from peers; see ibv_dealloc_mw(3).
func (mw *MW) Close() error {
	return mw.self().Close(nil, func() error { return cerr.Wrap(mw.object.Name(), libibverbs.DeallocMw(mw.raw)) })
}
