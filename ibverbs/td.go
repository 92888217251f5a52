package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// TD is a thread domain: a promise that what is made with it, through a parent
// domain, is used by one goroutine at a time, so that C can do without locks.
// Its own methods may be called concurrently.
type TD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Td
}

// AllocTD makes a thread domain; see ibv_alloc_td(3). A device without them
// gives errors.ErrUnsupported.
func (d *Device) AllocTD() (*TD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.AllocTd(d.raw, &libibverbs.TdInitAttr{})
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	td := &TD{device: d, raw: raw}
	td.object.Init("TD of "+d.Name(), &d.object)
	return td, nil
}

func (td *TD) self() *object.Object {
	if td == nil {
		return nil
	}
	return &td.object
}

// Raw returns the C object, which is valid until Close.
func (td *TD) Raw() *libibverbs.Td { return td.raw }

// Close releases the domain; see ibv_alloc_td(3). While a parent domain has
// it, Close does nothing and returns a BusyError.
func (td *TD) Close() error {
	return td.self().Close(nil, func() error {
		return wrap(td.object.Name(), td.device.unlessRemoved(libibverbs.DeallocTd(td.raw)))
	})
}
