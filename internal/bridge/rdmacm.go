// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RDMACM holds the functions that package ibverbs provides to package rdmacm. A
// device is an *ibverbs.Device, pd an *ibverbs.PD, qp an *ibverbs.QP, and
// config an ibverbs.QPConfig.
var RDMACM struct {
	// DeviceFromRaw makes a device from a C object that its owner keeps open
	// until the device is closed. Close of the device calls closed instead of
	// ibv_close_device(3). OpenObjects does not list the device.
	DeviceFromRaw func(raw *libibverbs.Context, closed func() error) (device any)

	// CloseWhenUnused closes a device now, or together with the last object
	// made on it.
	CloseWhenUnused func(device any)

	// NewQP makes a queue pair. create returns the C object and a function that
	// destroys it.
	NewQP func(pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error)) (qp any, err error)

	// ModifyQP changes attributes like QP.Modify, but takes them in C's form.
	ModifyQP func(qp any, attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error

	// SetHint replaces the hint of an *ibverbs.Error, unless hint is empty.
	SetHint func(err error, hint string)

	// QPAttr converts attributes from C's form to an ibverbs.QPAttr.
	QPAttr func(raw *libibverbs.QpAttr) (attr any)

	// AHAttr converts attributes from C's form to an ibverbs.AHAttr.
	AHAttr func(raw *libibverbs.AhAttr) (attr any)

	// MarkBatch gives the requests of a SendBatch their IDs: last to the last one, which is the only one that may be
	// signaled, and id to the others. It reports whether one of them is a read or an atomic operation.
	MarkBatch func(batch any, id, last uint64, signaled bool) (fetches bool)

	// CheckRecv returns the error of a receive that the device could not write a message to, or the program, in its place, by
	// Fill. The segments are a *[]ibverbs.Segment.
	CheckRecv func(segments any) error

	// Fill copies data to the segments in order, which must have room for it. They may be of InlineBytes.
	Fill func(segments any, data []byte) error

	// RNRTimer returns C's code for the shortest delay that is at least d.
	RNRTimer func(d time.Duration) (code uint8, err error)
}
