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
// with it; so each list of devices that it gives is held for ever.
var contexts struct {
	sync.Mutex
	known map[*libibverbs.Context]*ibverbs.Context
}

// contextOf returns the device that an id is bound to.
func contextOf(raw *libibverbs.Context) (*ibverbs.Context, error) {
	contexts.Lock()
	defer contexts.Unlock()
	if c := contexts.known[raw]; c != nil {
		return c, nil
	}
	list, n, err := librdmacm.GetDevices()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(unsafe.Slice(list, n), raw) {
		_ = librdmacm.FreeDevices(list)
		return nil, fmt.Errorf("device of an id: %w", ibverbs.ErrNoDevice)
	}
	c, err := ibverbs.ContextFromRaw(raw)
	if err != nil {
		return nil, err
	}
	if contexts.known == nil {
		contexts.known = map[*libibverbs.Context]*ibverbs.Context{}
	}
	contexts.known[raw] = c
	return c, nil
}
