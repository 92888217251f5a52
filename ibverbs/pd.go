package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// PD is a protection domain: memory regions can be used only by queue pairs
// of the same one. Its methods may be called concurrently.
type PD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Pd
	handle uint32
	parent *PD // of a parent domain, what it was made of

	imported bool // of another process
}

// AllocPD makes a protection domain; see ibv_alloc_pd(3).
func (d *Device) AllocPD() (*PD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.AllocPd(d.raw)
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	pd := &PD{device: d, raw: raw, handle: raw.Handle}
	pd.object.Init(fmt.Sprintf("PD %d of %s", raw.Handle, d.Name()), &d.object)
	return pd, nil
}

// Device returns the device that the domain belongs to.
func (pd *PD) Device() *Device { return pd.device }

// Raw returns the C object, which is valid until Close.
func (pd *PD) Raw() *libibverbs.Pd { return pd.raw }

// Close releases the domain; see ibv_dealloc_pd(3). While it has memory
// regions, buffers, memory windows, queues or parent domains, Close does
// nothing and returns a BusyError.
func (pd *PD) Close() error {
	return pd.self().Close(nil, func() error {
		if pd.imported {
			return wrap(pd.object.Name(), libibverbs.UnimportPd(pd.raw))
		}
		return wrap(pd.object.Name(), pd.device.unlessRemoved(libibverbs.DeallocPd(pd.raw)))
	})
}
