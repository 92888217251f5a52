package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// PD is a protection domain: memory regions can be used only by queue pairs
// of the same one. Its methods may be called concurrently.
type PD struct {
	object  object.Object
	context *Context
	raw     *libibverbs.Pd
	handle  uint32
	parent  *PD // of a parent domain, what it was made of

	imported bool // of another process
}

// AllocPD makes a protection domain; see ibv_alloc_pd(3).
func (c *Context) AllocPD() (*PD, error) {
	if err := c.self().Use(); err != nil {
		return nil, err
	}
	defer c.object.Done()
	raw, err := libibverbs.AllocPd(c.raw)
	if err != nil {
		return nil, cerr.Wrap(c.Name(), err)
	}
	pd := &PD{context: c, raw: raw, handle: raw.Handle}
	pd.object.Init(fmt.Sprintf("PD %d of %s", raw.Handle, c.Name()), &c.object)
	return pd, nil
}

// Context returns the device that the domain belongs to.
func (pd *PD) Context() *Context { return pd.context }

// Raw returns the C object, which is valid until Close.
func (pd *PD) Raw() *libibverbs.Pd { return pd.raw }

// Close releases the domain; see ibv_dealloc_pd(3). While it has memory
// regions, buffers, memory windows, queues or parent domains, Close does
// nothing and returns a BusyError.
func (pd *PD) Close() error {
	return pd.self().Close(nil, func() error {
		if pd.imported {
			return cerr.Wrap(pd.object.Name(), libibverbs.UnimportPd(pd.raw))
		}
		return cerr.Wrap(pd.object.Name(), pd.context.unlessRemoved(libibverbs.DeallocPd(pd.raw)))
	})
}
