// SPDX-License-Identifier: Apache-2.0

// Package sibling has what the packages in the directories below ibverbs share:
// access to the lifetimes of ibverbs' objects, which it does not export, and to
// the ways in which it makes errors.
package sibling

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// ObjectOf returns the lifetime of an object, or nil for a nil pointer.
func ObjectOf[T *ibverbs.Device | *ibverbs.PD | *ibverbs.MR | *ibverbs.CQ | *ibverbs.QP | *ibverbs.SRQ | *ibverbs.AH](o T) *object.Object {
	return bridge.Sibling.Object(o)
}

// DeviceOf returns the device that a queue belongs to.
func DeviceOf[T *ibverbs.CQ | *ibverbs.QP](queue T) *ibverbs.Device {
	return bridge.Sibling.DeviceOf(queue).(*ibverbs.Device)
}

// NotOfDevice returns an error if the object o, on the device its, does not
// belong to device.
func NotOfDevice(device *ibverbs.Device, o *object.Object, its *ibverbs.Device) error {
	if device.Raw() != its.Raw() {
		return cerr.Invalid("%s is not of the same open device", o.Name())
	}
	return nil
}

// SameDevice returns an error if the object belongs to another open device than
// op is called on.
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
// if it failed because the device was removed.
func UnlessRemoved(device *ibverbs.Device, err error) error {
	return bridge.Sibling.UnlessRemoved(device, err)
}

// CheckRemote returns an error if that many bytes do not fit into the remote
// buffer, or if the buffer is outside the one it came from.
func CheckRemote(remote ibverbs.RemoteBuffer, bytes uint64) error {
	return bridge.Sibling.CheckRemote(remote, bytes)
}
