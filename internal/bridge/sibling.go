// SPDX-License-Identifier: Apache-2.0

package bridge

import "github.com/verbena-go/verbena/internal/object"

// Sibling holds the functions that package ibverbs provides to all packages in
// the directories below it, through package sibling.
var Sibling struct {
	// Object returns the lifetime of an object of package ibverbs, or nil for a
	// nil pointer.
	Object func(o any) *object.Object

	// DeviceOf returns the *Device that a *QP or *CQ belongs to.
	DeviceOf func(o any) (device any)

	// UnlessRemoved returns the error of a C call that destroys something, or
	// nil if it failed because the *Device was removed.
	UnlessRemoved func(device any, err error) error

	// CheckRemote returns an error if so many bytes do not fit into a
	// RemoteBuffer, or if that is outside the one it came from.
	CheckRemote func(remote any, bytes uint64) error
}
