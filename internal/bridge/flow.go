// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// Flow holds the functions that package ibverbs provides to package flow.
var Flow struct {
	// AdoptQP returns a *QP on a *PD for a C object that ibv_destroy_qp
	// destroys. The parents must be in use and include the domain.
	AdoptQP func(pd any, raw *libibverbs.Qp, parents ...*object.Object) (qp any)

	// RegisterWQ records wq as what events about a C object happen to, until
	// UnregisterWQ. Call that before destroying the C object, because the next
	// one may have the same address.
	RegisterWQ   func(raw *libibverbs.Wq, wq any)
	UnregisterWQ func(raw *libibverbs.Wq)

	// ForgetWQ drops the unread events of a work queue on the *Device that was
	// destroyed.
	ForgetWQ func(device, wq any, num uint32)

	// PostRecv posts a *RecvBatch by a function that returns the first request
	// that was not posted. to is what the batch is posted to.
	PostRecv func(
		batch any, to *object.Object, post func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error),
	) (n int, err error)
}
