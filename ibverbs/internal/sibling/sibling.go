// SPDX-License-Identifier: Apache-2.0

// Package sibling holds what the packages in the directories below ibverbs
// share: access to the lifetimes of the objects of ibverbs, and errors like
// those of ibverbs.
package sibling

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// lifetime is the type of internals that have the object's lifetime, an
// object.Object.
type lifetime interface{ Object() *object.Object }

// ObjectOf returns the object.Object that manages the lifetime of o, or nil for
// a nil pointer.
func ObjectOf[T lifetime](o interface{ Internals() sealed.Of[T] }) *object.Object {
	return sealed.Open(o.Internals()).Object()
}

// NotOfDevice returns an error if the object o does not belong to device. its
// is the device of o.
func NotOfDevice(device *ibverbs.Device, o *object.Object, its *ibverbs.Device) error {
	if device.Raw() != its.Raw() {
		return cerr.Invalid("%s belongs to another open device", o.Name())
	}
	return nil
}

// SameDevice returns an error if the object o does not belong to device. its is
// the device of o, op the operation on device, and what the object in the
// error.
func SameDevice(op, what string, device *ibverbs.Device, o *object.Object, its *ibverbs.Device) error {
	if err := NotOfDevice(device, o, its); err != nil {
		return cerr.Argument(op, what, err)
	}
	return nil
}

// Wrap names the object in an error of a C call.
func Wrap(object string, err error) error {
	if e, ok := err.(*ibverbs.Error); ok {
		e.Object = object
	}
	return err
}

// UnlessRemoved returns the error of a C call that destroys an object, or nil
// if the call failed because the device was removed.
func UnlessRemoved(device *ibverbs.Device, err error) error {
	return sealed.Open(device.Internals()).UnlessRemoved(err)
}

// AppendSGEs appends segments to sges in C's form. writes says that the device
// will write to them. AppendSGEs fails if a work request cannot have one of the
// segments, or if the device may not write to it.
func AppendSGEs(sges []libibverbs.Sge, segments []ibverbs.Segment, writes bool) ([]libibverbs.Sge, error) {
	for k := range segments {
		sge, err := sealed.Open(segments[k].Internals()).SGE(writes)
		if err != nil {
			return nil, fmt.Errorf("segment %d: %w", k, err)
		}
		sges = append(sges, sge)
	}
	return sges, nil
}
