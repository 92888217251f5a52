package rdmacm

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// contexts are the devices as librdmacm has them open. librdmacm closes a
// device with the last id on it, and would take protection domains and memory
// with it; so a list of devices that it gives is held as long as it can have
// one that is in use.
var contexts openDevices

type openDevices struct {
	sync.Mutex
	known map[*libibverbs.Context]*ibverbs.Context
	gone  map[*libibverbs.Context]bool // removed from the machine, but not closed yet
	held  []**libibverbs.Context       // lists of librdmacm's
	ours  map[*libibverbs.Context]bool // in one of those
}

// Devices returns the RDMA devices as librdmacm has them open; see
// rdma_get_devices(3). A protection domain for Config.PD is made of one of
// them. They stay open in C, even if they are closed here.
//
// A device that was removed from the machine is closed in C as well, when
// nothing uses it any more: neither an id nor anything made of its Context.
func Devices() ([]*ibverbs.Context, error) {
	contexts.Lock()
	defer contexts.Unlock()
	return contexts.list()
}

// contextOf returns the device that an id is bound to.
func contextOf(raw *libibverbs.Context) (*ibverbs.Context, error) {
	contexts.Lock()
	defer contexts.Unlock()
	if c := contexts.known[raw]; c != nil {
		return c, nil
	}
	if _, err := contexts.list(); err != nil {
		return nil, err
	}
	if c := contexts.known[raw]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("device of an id: %w", ibverbs.ErrNoDevice)
}

// list asks librdmacm for the devices, and holds the list if it has new ones.
// The caller holds the lock.
func (o *openDevices) list() ([]*ibverbs.Context, error) {
	list, n, err := librdmacm.GetDevices()
	if err != nil {
		return nil, err
	}
	raws := unsafe.Slice(list, n)
	if !slices.ContainsFunc(raws, func(raw *libibverbs.Context) bool { return !o.ours[raw] }) {
		defer librdmacm.FreeDevices(list)
	} else {
		o.hold(list, raws)
	}
	var devices []*ibverbs.Context
	for _, raw := range raws {
		if o.known[raw] == nil {
			c, err := ibverbs.ContextFromRaw(raw, func() error { o.closed(raw); return nil })
			if err != nil {
				return nil, err
			}
			o.known[raw] = c
		}
		devices = append(devices, o.known[raw])
	}
	return devices, nil
}

func (o *openDevices) hold(list **libibverbs.Context, raws []*libibverbs.Context) {
	if o.known == nil {
		o.known, o.gone = map[*libibverbs.Context]*ibverbs.Context{}, map[*libibverbs.Context]bool{}
		o.ours = map[*libibverbs.Context]bool{}
	}
	o.held = append(o.held, list)
	for _, raw := range raws {
		o.ours[raw] = true
	}
}

// removed notes that a device, which may be nil, is gone from the machine.
func (o *openDevices) removed(raw *libibverbs.Context) {
	o.Lock()
	defer o.Unlock()
	if o.known[raw] != nil {
		o.gone[raw] = true
	}
}

// letGo closes a device after an id on it was closed, if the device was removed
// and nothing uses it any more.
func (o *openDevices) letGo(raw *libibverbs.Context) {
	o.Lock()
	c := o.known[raw]
	gone := o.gone[raw]
	o.Unlock()
	if gone && c != nil {
		_ = c.Close() // fails while it is in use; then the last id was not this one
	}
}

// closed forgets a device that was closed. If it was removed, the lists that
// have it give way to one that has the others, which stay open all the time.
// The kernel may be waiting for that.
func (o *openDevices) closed(raw *libibverbs.Context) {
	o.Lock()
	defer o.Unlock()
	delete(o.known, raw)
	if !o.gone[raw] {
		return
	}
	delete(o.gone, raw)
	lists := o.held
	o.held = nil
	clear(o.ours)
	if others, n, err := librdmacm.GetDevices(); err == nil {
		o.hold(others, unsafe.Slice(others, n))
	}
	for _, list := range lists {
		_ = librdmacm.FreeDevices(list) // C gives no result
	}
}
