package ibverbs

import (
	"sync/atomic"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Device is an open device. Its methods may be called concurrently.
type Device struct {
	object  object.Object
	raw     *libibverbs.Context
	vectors int
	destroy func() error
	events  asyncEvents
	removed atomic.Bool // the kernel said so; see isRemoved
}

// Name returns the device's name.
func (d *Device) Name() string { return d.object.Name() }

// CompVectors returns how many interrupt vectors the device has for completions:
// CQConfig.Vector is below it.
func (d *Device) CompVectors() int { return d.vectors }

// Raw returns the C object, for the functions of package libibverbs. It is
// valid until Close.
func (d *Device) Raw() *libibverbs.Context { return d.raw }

// Close closes the device, and wakes whoever waits for its events; see
// ibv_close_device(3). While the context has protection domains, completion
// channels or completion queues, it does nothing and returns a BusyError.
func (d *Device) Close() error {
	return d.self().Close(d.stopEvents, func() error { return wrap(d.Name(), d.destroy()) })
}

// closeWhenUnused closes the device now, or together with the last object that
// was made on it.
func (d *Device) closeWhenUnused() {
	d.object.WhenIdle(func() { _ = d.Close() }) // if it fails, an object has come that calls this again
}

// sameDevice refuses to call op for what with an object of another open device: C
// names objects by numbers, which mean other ones there.
func sameDevice(op, what string, device *libibverbs.Context, o *object.Object, its *libibverbs.Context) error {
	if device != its {
		return otherDevice(op, what, o)
	}
	return nil
}

func otherDevice(op, what string, o *object.Object) error {
	return cerr.Argument(op, what, notOfDevice(o))
}

func notOfDevice(o *object.Object) error {
	return cerr.Invalid("%s is not of the same open device", o.Name())
}
