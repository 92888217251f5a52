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
)

// contexts are the devices as librdmacm has them open. It closes a device that
// was removed with the last id on it, and would take protection domains and
// memory with it; so each device that is in use here is in a list of
// librdmacm's that is held.
var contexts openDevices

type openDevices struct {
	calling sync.Mutex // held while C makes and frees lists; taken before mu

	mu    sync.Mutex // guards what follows
	known map[*libibverbs.Context]*openDevice
	held  []**libibverbs.Context
}

// openDevice is a device in a list that is held.
type openDevice struct {
	context *ibverbs.Device // nil: closed here
	gone    bool            // removed from the machine
}

// Devices returns the RDMA devices as librdmacm has them open; see
// rdma_get_devices(3). A protection domain for Config.PD is made of one of
// them. They stay open in C, even if they are closed here.
//
// A device that was removed from the machine is given back to the kernel when
// nothing uses it any more: neither an id nor anything made of its Context,
// which is closed by itself then. A program that has no id on it does not hear
// of the removal; its next call of Devices does.
func Devices() ([]*ibverbs.Device, error) {
	devices, err := contexts.list()
	contexts.letGoUnlisted()
	return devices, err
}

// contextOf returns the device that an id is bound to.
func contextOf(raw *libibverbs.Context) (*ibverbs.Device, error) {
	if c := contexts.context(raw); c != nil {
		return c, nil
	}
	if _, err := Devices(); err != nil {
		return nil, err
	}
	if c := contexts.context(raw); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("device of an id: %w", ibverbs.ErrNoDevice)
}

func (o *openDevices) context(raw *libibverbs.Context) *ibverbs.Device {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.known[raw]; d != nil {
		return d.context
	}
	return nil
}

// list asks librdmacm for the devices.
func (o *openDevices) list() ([]*ibverbs.Device, error) {
	o.calling.Lock()
	defer o.calling.Unlock()
	list, raws, err := getDevices()
	if err != nil && !errors.Is(err, syscall.ENODEV) { // there is none any more
		return nil, err
	}
	for _, old := range o.take(list, raws) {
		_ = librdmacm.FreeDevices(old) // C gives no result
	}
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	devices := make([]*ibverbs.Device, 0, len(raws))
	for _, raw := range raws {
		d := o.known[raw]
		if d.context == nil {
			d.context = deviceFromRaw(raw, func() error { o.closed(raw); return nil })
		}
		devices = append(devices, d.context)
	}
	return devices, nil
}

func getDevices() (list **libibverbs.Context, raws []*libibverbs.Context, err error) {
	list, n, err := librdmacm.GetDevices()
	if err != nil {
		return nil, nil, err
	}
	return list, slices.Clone(unsafe.Slice(list, n)), nil // for when the list has been freed
}

// take holds a list, which may be nil, in place of the others, whose return is
// up to the caller. While a device that is gone is still in use, which no new
// list has, the others stay, and the list comes with them if it has a new one.
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

// mark makes the devices of a list known. Those that it has not are gone, of
// which some may be in use.
func (o *openDevices) mark(raws []*libibverbs.Context) (isNew, inUse bool) {
	if o.known == nil {
		o.known = map[*libibverbs.Context]*openDevice{}
	}
	for raw, d := range o.known {
		d.gone = !slices.Contains(raws, raw)
		if d.gone && d.context == nil {
			delete(o.known, raw)
		}
		inUse = inUse || d.gone && d.context != nil
	}
	for _, raw := range raws {
		if o.known[raw] == nil {
			o.known[raw] = new(openDevice)
			isNew = true
		}
	}
	return isNew, inUse
}

// removed notes that a device, which may be nil, is gone from the machine.
func (o *openDevices) removed(raw *libibverbs.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.known[raw]; d != nil {
		d.gone = true
	}
}

// letGo has a device given back after an id on it was closed, if the device was
// removed: now, or when nothing uses it any more.
func (o *openDevices) letGo(raw *libibverbs.Context) {
	o.mu.Lock()
	d := o.known[raw]
	if d == nil || !d.gone {
		o.mu.Unlock()
		return
	}
	c := d.context
	o.mu.Unlock()
	if c == nil {
		o.closed(raw)
		return
	}
	closeWhenUnused(c)
}

// letGoUnlisted does so with each device that is gone.
func (o *openDevices) letGoUnlisted() {
	o.mu.Lock()
	raws := slices.Collect(maps.Keys(o.known))
	o.mu.Unlock()
	for _, raw := range raws {
		o.letGo(raw)
	}
}

// closed notes that nothing of ours uses a device any more. If it was removed,
// the kernel may be waiting for that.
func (o *openDevices) closed(raw *libibverbs.Context) {
	o.calling.Lock() // so that librdmacm keeps it
	defer o.calling.Unlock()
	o.mu.Lock()
	d := o.known[raw]
	isBack := d == nil || !d.gone
	if d != nil {
		d.context = nil
	}
	o.mu.Unlock()
	if !isBack {
		giveBack(raw)
	}
}

// unlessRemoved returns the error of a wait, or that the device was removed if that
// is why. The kernel may take a device from its users before it says so.
func (c *queues) unlessRemoved(err error) error {
	if !errors.Is(err, syscall.EIO) || !c.pd.Device().Removed() {
		return err
	}
	err = (&Event{Type: EventDeviceRemoval}).Err()
	c.end(err)
	return err
}
