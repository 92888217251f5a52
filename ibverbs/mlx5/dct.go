// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/libmlx5"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

const opCreate = "mlx5dv_create_qp"

// create returns a function that creates the C object of a queue pair with the
// attributes in mlx5, which only the driver knows.
func create(pd *ibverbs.PD, mlx5 *libmlx5.QpInitAttr) func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error) {
	return func(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error) {
		raw, err := libmlx5.CreateQp(pd.Device().Raw(), attr, mlx5)
		return raw, func() error { return libibverbs.DestroyQp(raw) }, err
	}
}

// DCTConfig is the configuration of a target.
type DCTConfig struct {
	CQ  *ibverbs.CQ  // completion queue for receives
	SRQ *ibverbs.SRQ // shared receive queue to take receives from; required
	Key uint64       // key that requests to the target must carry
}

// DCT is a target of DC requests. Its methods may be called concurrently.
type DCT struct {
	qp  *ibverbs.QP
	num atomic.Uint32
}

// CreateDCT creates a target in the reset state; see mlx5dv_create_qp(3).
func CreateDCT(pd *ibverbs.PD, config DCTConfig) (*DCT, error) {
	if config.SRQ == nil {
		return nil, cerr.Refuse(opCreate, "", "DCTConfig.SRQ is nil")
	}
	mlx5 := libmlx5.QpInitAttr{CompMask: uint64(libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DC)}
	mlx5.DcInitAttr.DcType = libmlx5.MLX5DV_DCTYPE_DCT
	*mlx5.DcInitAttr.DctAccessKey() = config.Key
	qp, err := sealed.Open(pd.Internals()).NewDriverQP(ibverbs.QPConfig{SendCQ: config.CQ, RecvCQ: config.CQ, SRQ: config.SRQ}, create(pd, &mlx5))
	if err != nil {
		return nil, err
	}
	return &DCT{qp: qp}, nil
}

// Verbs returns the underlying queue pair, for events and the state. It returns
// nil for a nil DCT.
func (d *DCT) Verbs() *ibverbs.QP {
	if d == nil {
		return nil
	}
	return d.qp
}

// Num returns the number by which initiators name the target. It is 0 before
// Start.
func (d *DCT) Num() uint32 {
	if d == nil {
		return 0
	}
	return d.num.Load()
}

// Close destroys the target, as [ibverbs.QP.Close] does.
func (d *DCT) Close() error { return d.Verbs().Close() }

// DCTPath is the path that DCT.Start gives a target.
type DCTPath struct {
	Port        int
	PKeyIndex   int
	MTU         ibverbs.MTU
	Access      ibverbs.AccessFlags // access to memory that initiators may have
	MinRNRTimer time.Duration       // delay before an initiator retries because no receive was posted; 0 means 0.64 ms

	// From is the path of the target's answers. Only SGIDIndex, HopLimit,
	// TrafficClass and SL are used. A DGID that is not zero requests a global
	// route, which RoCE needs: set it to the port's own GID, for example.
	From ibverbs.AHAttr
}

const defaultRNRTimer = 640 * time.Microsecond

// Start moves the target from the reset state to ready to receive, by two calls
// of ibv_modify_qp(3).
func (d *DCT) Start(path DCTPath) error {
	qp := d.Verbs()
	o := sibling.ObjectOf(qp)
	if err := o.Use(); err != nil {
		return err
	}
	defer o.Done()
	err := qp.Modify(
		ibverbs.QPAttr{State: ibverbs.QPStateInit, Port: path.Port, PKeyIndex: path.PKeyIndex, Access: path.Access},
		ibverbs.QPAttrState|ibverbs.QPAttrPort|ibverbs.QPAttrPKeyIndex|ibverbs.QPAttrAccess,
	)
	if err != nil {
		return err
	}
	err = qp.Modify(
		ibverbs.QPAttr{
			State: ibverbs.QPStateRTR, PathMTU: path.MTU, MinRNRTimer: cmp.Or(path.MinRNRTimer, defaultRNRTimer), Path: path.From,
		},
		ibverbs.QPAttrState|ibverbs.QPAttrPathMTU|ibverbs.QPAttrMinRNRTimer|ibverbs.QPAttrPath,
	)
	if err == nil {
		d.num.Store(qp.Raw().QpNum)
	}
	return err
}
