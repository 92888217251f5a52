package bridge

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// RDMACM is what package ibverbs does for package rdmacm. A device is an
// *ibverbs.Device, pd an *ibverbs.PD, qp an *ibverbs.QP, and config an
// ibverbs.QPConfig.
var RDMACM struct {
	// DeviceFromRaw makes a device of one that something else keeps open until the
	// device is closed: its Close calls closed in place of ibv_close_device(3).
	// OpenObjects does not list it.
	DeviceFromRaw func(raw *libibverbs.Context, closed func() error) (device any)

	// CloseWhenUnused closes a device now, or together with the last object that was
	// made on it.
	CloseWhenUnused func(device any)

	// NewQP makes a queue pair with a function that returns the C object, and one
	// that destroys it.
	NewQP func(pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error)) (qp any, err error)

	// ModifyQP is QP.Modify with the attributes as C has them.
	ModifyQP func(qp any, attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error

	// QPAttr returns the ibverbs.QPAttr of what C has.
	QPAttr func(raw *libibverbs.QpAttr) (attr any)

	// AHAttr returns the ibverbs.AHAttr of what C has.
	AHAttr func(raw *libibverbs.AhAttr) (attr any)

	// RNRTimer returns C's code of the shortest delay that is not shorter than d.
	RNRTimer func(d time.Duration) (code uint8, err error)
}
