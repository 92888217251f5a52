package ibverbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// unlessRemoved is given the result of destroying something on the device. If
// the device was removed, the kernel has destroyed everything on it, and
// refuses every call with EIO: then this is no failure.
//
// C keeps its own part of the object, a little memory, for ever then. It would
// free it with RDMAV_ALLOW_DISASSOC_DESTROY in the environment, but no longer
// wait for events to be acknowledged, which reading them relies on.
func (d *Device) unlessRemoved(err error) error {
	if errors.Is(err, syscall.EIO) && d.isRemoved() {
		return nil
	}
	return err
}

// Removed reports whether the device was removed from the machine, as far as the
// kernel lets programs know. It asks for something that no driver takes part
// in, so that a device which merely fails is not taken for one that is gone.
func (d *Device) Removed() bool {
	if d.self().Use() != nil {
		return false
	}
	defer d.object.Done()
	return d.isRemoved()
}

// isRemoved is Removed for a device that something keeps open.
func (d *Device) isRemoved() bool {
	if d.removed.Load() {
		return true
	}
	ch, err := libibverbs.CreateCompChannel(d.raw)
	if err == nil {
		_ = libibverbs.DestroyCompChannel(ch) // cannot fail: nothing uses it
		return false
	}
	if !errors.Is(err, syscall.EIO) {
		return false
	}
	d.removed.Store(true)
	return true
}
