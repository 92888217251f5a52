package rdmacm

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// contexts are the devices as librdmacm has them open. librdmacm closes a
// device with the last id on it, and would take protection domains and memory
// with it; so each list of devices that it gives is held for ever.
var contexts struct {
	sync.Mutex
	known map[*libibverbs.Context]*ibverbs.Context
}

// Devices returns the RDMA devices as librdmacm has them open; see
// rdma_get_devices(3). A protection domain for Config.PD is made of one of
// them. They stay open; closing them does nothing in C.
func Devices() ([]*ibverbs.Context, error) {
	contexts.Lock()
	defer contexts.Unlock()
	return listDevices()
}

// contextOf returns the device that an id is bound to.
func contextOf(raw *libibverbs.Context) (*ibverbs.Context, error) {
	contexts.Lock()
	defer contexts.Unlock()
	if c := contexts.known[raw]; c != nil {
		return c, nil
	}
	if _, err := listDevices(); err != nil {
		return nil, err
	}
	if c := contexts.known[raw]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("device of an id: %w", ibverbs.ErrNoDevice)
}

// listDevices asks librdmacm for the devices, and holds the list if it has new
// ones. The caller holds the lock.
func listDevices() ([]*ibverbs.Context, error) {
	list, n, err := librdmacm.GetDevices()
	if err != nil {
		return nil, err
	}
	known := maps.Clone(contexts.known)
	if known == nil {
		known = map[*libibverbs.Context]*ibverbs.Context{}
	}
	var devices []*ibverbs.Context
	for _, raw := range unsafe.Slice(list, n) {
		if known[raw] == nil {
			if known[raw], err = ibverbs.ContextFromRaw(raw); err != nil {
				return nil, errors.Join(err, librdmacm.FreeDevices(list))
			}
		}
		devices = append(devices, known[raw])
	}
	if len(known) == len(contexts.known) {
		return devices, librdmacm.FreeDevices(list)
	}
	contexts.known = known
	return devices, nil
}
