// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// opened holds the devices that librdmacm has open. When the last ID on a
// removed device is destroyed, librdmacm closes the device and with it all
// protection domains and memory. Holding a librdmacm list that contains the
// device prevents that.
var opened openDevices

type openDevices struct {
	calling sync.Mutex // held while C creates and frees lists; taken before mu

	mu    sync.Mutex                          // guards the fields below
	known map[*libibverbs.Context]*openDevice // devices that librdmacm has open
	held  []**libibverbs.Context              // librdmacm's lists that are held, and not freed yet
}

// openDevice is a device in a list that openDevices holds.
type openDevice struct {
	device *ibverbs.Device // the Device for programs; nil if it was closed in Go
	gone   bool            // whether the device was removed from the machine
}

// Devices returns the RDMA devices that librdmacm has open; see
// rdma_get_devices(3). Allocate a protection domain for Config.PD on one of
// them. The caller need not close the devices. Closing a Device does not close
// it in C.
//
// When a device was removed from the machine, this package releases it in the
// kernel as soon as no ID and no object created on the Device uses it any more.
// The Device is closed automatically at that time. A program without an ID on
// the device does not learn of the removal until its next call of Devices.
func Devices() ([]*ibverbs.Device, error) {
	devices, err := opened.list()
	opened.letGoUnlisted()
	return devices, err
}

// deviceOf returns the device that an ID is bound to.
func deviceOf(raw *libibverbs.Context) (*ibverbs.Device, error) {
	if c := opened.device(raw); c != nil {
		return c, nil
	}
	if _, err := Devices(); err != nil {
		return nil, err
	}
	if c := opened.device(raw); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("find the device of an id: %w", ibverbs.ErrNoDevice)
}

func (o *openDevices) device(raw *libibverbs.Context) *ibverbs.Device {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.known[raw]; d != nil {
		return d.device
	}
	return nil
}

// list asks librdmacm for its list of devices, and returns a Device for each.
func (o *openDevices) list() ([]*ibverbs.Device, error) {
	o.calling.Lock()
	defer o.calling.Unlock()
	list, raws, err := getDevices()
	if err != nil && !errors.Is(err, syscall.ENODEV) { // ENODEV means that no device is left
		return nil, err
	}
	for _, old := range o.take(list, raws) {
		_ = librdmacm.FreeDevices(old) // the C function returns nothing
	}
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	devices := make([]*ibverbs.Device, 0, len(raws))
	for _, raw := range raws {
		d := o.known[raw]
		if d.device == nil {
			d.device = new(ibverbs.Device)
			sealed.Open(d.device.Internals()).InitForeign(raw, func() error { o.closed(raw); return nil })
		}
		devices = append(devices, d.device)
	}
	return devices, nil
}

func getDevices() (list **libibverbs.Context, raws []*libibverbs.Context, err error) {
	list, n, err := librdmacm.GetDevices()
	if err != nil {
		return nil, nil, err
	}
	return list, slices.Clone(unsafe.Slice(list, n)), nil // cloned, since the list may be freed
}

// take replaces the lists that are held by a new list, which may be nil. It
// returns the lists that the caller must free. A new list never contains a
// removed device. So while a removed device is in use, take keeps the earlier
// lists, and holds the new list in addition if that contains a new device.
func (o *openDevices) take(list **libibverbs.Context, raws []*libibverbs.Context) (free []**libibverbs.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	isNew, inUse := o.mark(raws)
	var lists []**libibverbs.Context
	if list != nil {
		lists = append(lists, list)
	}
	switch {
	case !inUse:
		free, o.held = o.held, lists
	case isNew:
		o.held = append(o.held, lists...)
	default:
		free = lists
	}
	return free
}

// mark records the devices in a list, and marks all others as gone. It reports
// whether the list has a new device, and whether a gone device is in use.
func (o *openDevices) mark(raws []*libibverbs.Context) (isNew, inUse bool) {
	if o.known == nil {
		o.known = map[*libibverbs.Context]*openDevice{}
	}
	for raw, d := range o.known {
		d.gone = !slices.Contains(raws, raw)
		if d.gone && d.device == nil {
			delete(o.known, raw)
		}
		inUse = inUse || d.gone && d.device != nil
	}
	for _, raw := range raws {
		if o.known[raw] == nil {
			o.known[raw] = new(openDevice)
			isNew = true
		}
	}
	return isNew, inUse
}

// removed marks the device raw, which may be nil, as removed from the machine.
func (o *openDevices) removed(raw *libibverbs.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.known[raw]; d != nil {
		d.gone = true
	}
}

// letGo gives a removed device back to the kernel as soon as nothing uses it.
// It is called after an ID on the device was closed.
func (o *openDevices) letGo(raw *libibverbs.Context) {
	o.mu.Lock()
	d := o.known[raw]
	if d == nil || !d.gone {
		o.mu.Unlock()
		return
	}
	c := d.device
	o.mu.Unlock()
	if c == nil {
		o.closed(raw)
		return
	}
	sealed.Open(c.Internals()).CloseWhenUnused()
}

// letGoUnlisted calls letGo for every known device.
func (o *openDevices) letGoUnlisted() {
	o.mu.Lock()
	raws := slices.Collect(maps.Keys(o.known))
	o.mu.Unlock()
	for _, raw := range raws {
		o.letGo(raw)
	}
}

// closed records that Go no longer uses a device. If the device was removed,
// closed gives it back to the kernel, which may be waiting for that.
func (o *openDevices) closed(raw *libibverbs.Context) {
	o.calling.Lock() // keeps librdmacm from closing the device meanwhile
	defer o.calling.Unlock()
	o.mu.Lock()
	d := o.known[raw]
	isBack := d == nil || !d.gone
	if d != nil {
		d.device = nil
	}
	o.mu.Unlock()
	if !isBack {
		giveBack(raw)
	}
}

// unlessRemoved returns err, or an EventDeviceRemoval error if err was caused
// by the removal of the device. The kernel may take a device from its users
// before it reports the removal.
func (c *queues) unlessRemoved(err error) error {
	if !errors.Is(err, syscall.EIO) || !c.pd.Device().Removed() {
		return err
	}
	err = (&Event{Type: EventDeviceRemoval}).Err()
	c.end(err)
	return err
}
