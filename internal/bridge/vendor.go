// SPDX-License-Identifier: Apache-2.0

package bridge

import "github.com/verbena-go/verbena/generated/libibverbs"

// Vendor holds the functions that package ibverbs provides to packages efa and
// mlx5, for queue pairs that the libraries of their drivers make.
var Vendor struct {
	// NewQP makes a *QP on a *PD from a QPConfig whose type is IBV_QPT_DRIVER.
	// create returns the C object and a function that destroys it.
	NewQP func(pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error)) (qp any, err error)

	// Place returns segments, an []ibverbs.Segment, as C takes them. If written
	// is set, the device writes to them.
	Place func(segments any, written bool) ([]libibverbs.Sge, error)
}
