package bridge

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// Flow holds the functions that package ibverbs provides to package flow.
var Flow struct {
	// Object returns the lifetime of a *Device, *PD, *QP or *WQ, or nil for a
	// nil pointer.
	Object func(o any) *object.Object

	// DeviceOfQP returns the *Device that a *QP belongs to.
	DeviceOfQP func(qp any) (device any)

	// UnlessRemoved returns the error of a C call that destroys something, or
	// nil if it failed because the *Device was removed.
	UnlessRemoved func(device any, err error) error

	// AdoptQP returns a *QP on a *PD for a C object that ibv_destroy_qp
	// destroys. The parents must be in use and include the domain.
	AdoptQP func(pd any, raw *libibverbs.Qp, parents ...*object.Object) (qp any)
}
