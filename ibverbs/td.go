// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// TD is a thread domain. Objects made with it, through a parent domain, must be
// used by only one goroutine at a time, which lets C omit locks. The methods of
// TD may be called concurrently.
type TD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Td
}

// AllocTD allocates a thread domain; see ibv_alloc_td(3). It fails with an
// error matching errors.ErrUnsupported if the device has none.
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

// Close deallocates the domain; see ibv_alloc_td(3). While a parent domain uses
// it, Close does nothing and returns a *BusyError.
func (td *TD) Close() error {
	return td.self().Close(nil, func() error {
		return wrap(td.object.Name(), td.device.unlessRemoved(libibverbs.DeallocTd(td.raw)))
	})
}
