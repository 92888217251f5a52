package flow

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// objectOf returns the lifetime of an object, or nil for a nil pointer.
func objectOf[T *ibverbs.Device | *ibverbs.PD | *ibverbs.QP | *ibverbs.WQ](o T) *object.Object {
	return bridge.Flow.Object(o)
}

// deviceOf returns the device that a queue pair belongs to.
func deviceOf(qp *ibverbs.QP) *ibverbs.Device { return bridge.Flow.DeviceOfQP(qp).(*ibverbs.Device) }

// notOfDevice returns an error if the object o, on the device its, does not
// belong to device.
func notOfDevice(device *ibverbs.Device, o *object.Object, its *ibverbs.Device) error {
	if device.Raw() != its.Raw() {
		return cerr.Invalid("%s is not of the same open device", o.Name())
	}
	return nil
}

// sameDevice returns an error if the object belongs to another open device than
// op is called on.
func sameDevice(op, what string, device *ibverbs.Device, o *object.Object, its *ibverbs.Device) error {
	if err := notOfDevice(device, o, its); err != nil {
		return cerr.Argument(op, what, err)
	}
	return nil
}

// wrap names the object in an error of a C call.
func wrap(object string, err error) error {
	if e, ok := err.(*ibverbs.Error); ok {
		e.Object = object
	}
	return err
}

// unlessRemoved returns the error of a C call that destroys an object, or nil
// if it failed because the device was removed.
func unlessRemoved(device *ibverbs.Device, err error) error {
	return bridge.Flow.UnlessRemoved(device, err)
}

// adoptQP returns a queue pair for a C object. The parents must be in use.
func adoptQP(pd *ibverbs.PD, raw *libibverbs.Qp, parents ...*object.Object) *ibverbs.QP {
	return bridge.Flow.AdoptQP(pd, raw, parents...).(*ibverbs.QP)
}
