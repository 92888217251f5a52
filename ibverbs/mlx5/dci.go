// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"cmp"
	"errors"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/libmlx5"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/sealed"
)

// DCIConfig is the configuration of an initiator.
type DCIConfig struct {
	CQ           *ibverbs.CQ
	SendQueue    int // maximum number of requests in progress
	SendSegments int // maximum number of segments in a request; 0 means 1
	SignalAll    bool

	// LogStreams is the binary logarithm of the number of streams. Requests
	// of one stream do not wait for requests of another. LogErrored is the
	// binary logarithm of the number of streams that may fail before the
	// initiator fails. If both are 0, the initiator has no streams.
	LogStreams, LogErrored uint8
}

// DCI is an initiator of DC requests. Its methods may be called concurrently.
type DCI struct {
	qp      *ibverbs.QP
	sender  sibling.Sender
	mlx5    *libmlx5.QpEx
	streams bool
}

// CreateDCI creates an initiator in the reset state; see mlx5dv_create_qp(3).
func CreateDCI(pd *ibverbs.PD, config DCIConfig) (*DCI, error) {
	mlx5 := libmlx5.QpInitAttr{CompMask: uint64(libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DC)}
	mlx5.DcInitAttr.DcType = libmlx5.MLX5DV_DCTYPE_DCI
	streams := config.LogStreams != 0 || config.LogErrored != 0
	if streams {
		mlx5.CompMask |= uint64(libmlx5.MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS)
		*mlx5.DcInitAttr.DciStreams() = libmlx5.DciStreams{LogNumConcurent: config.LogStreams, LogNumErrored: config.LogErrored}
	}
	verbs, err := sealed.Open(pd.Internals()).NewDriverQP(ibverbs.QPConfig{
		SendCQ: config.CQ, RecvCQ: config.CQ, SendQueue: config.SendQueue, SendSegments: config.SendSegments,
		SignalAll: config.SignalAll, SendOps: sibling.Ops,
	}, create(pd, &mlx5))
	if err != nil {
		return nil, err
	}
	d := &DCI{qp: verbs, streams: streams}
	ex, err := d.sender.Init(verbs)
	if err == nil {
		// C does not check that mlx5dv_create_qp made the queue pair.
		d.mlx5, err = libmlx5.QpExFromIbvQpEx(ex)
	}
	if err == nil && d.mlx5 == nil {
		err = cerr.Argument("mlx5dv_qp_ex_from_ibv_qp_ex", "", cerr.InvalidAs(syscall.EOPNOTSUPP, "libmlx5 offers no extended interface for this queue pair"))
	}
	if err != nil {
		return nil, errors.Join(err, verbs.Close())
	}
	return d, nil
}

// Verbs returns the underlying queue pair, for events and the state. It returns
// nil for a nil DCI.
func (d *DCI) Verbs() *ibverbs.QP {
	if d == nil {
		return nil
	}
	return d.qp
}

// Close destroys the initiator, as [ibverbs.QP.Close] does.
func (d *DCI) Close() error { return d.Verbs().Close() }

// DCIPath is the path that DCI.Start gives an initiator.
type DCIPath struct {
	Port          int
	PKeyIndex     int
	MTU           ibverbs.MTU
	Timeout       time.Duration // how long to wait for an acknowledgement, or ibverbs.NoTimeout; 0 means 67 ms
	RetryCount    int           // retries after a timeout, at most 7; 0 means 6; negative means none
	RNRRetryCount int           // retries while the target has no receive posted, at most 7; 0 means ibverbs.RNRRetryForever; negative means none
	MaxReads      int           // maximum number of RDMA reads and atomics in progress
	SendPSN       uint32        // sequence number of the first packet, 24 bits
}

const (
	defaultTimeout    = 67 * time.Millisecond
	defaultRetryCount = 6
)

// countOr returns def if n is 0, 0 if n is negative, and n otherwise.
func countOr(n, def int) int { return max(cmp.Or(n, def), 0) }

// Start moves the initiator from the reset state to ready to send, by three
// calls of ibv_modify_qp(3).
func (d *DCI) Start(path DCIPath) error {
	for _, step := range []struct {
		attr ibverbs.QPAttr
		mask ibverbs.QPAttrMask
	}{
		{
			ibverbs.QPAttr{State: ibverbs.QPStateInit, Port: path.Port, PKeyIndex: path.PKeyIndex},
			ibverbs.QPAttrState | ibverbs.QPAttrPort | ibverbs.QPAttrPKeyIndex,
		},
		{ibverbs.QPAttr{State: ibverbs.QPStateRTR, PathMTU: path.MTU}, ibverbs.QPAttrState | ibverbs.QPAttrPathMTU},
		{
			ibverbs.QPAttr{
				State: ibverbs.QPStateRTS, SendPSN: path.SendPSN, Timeout: cmp.Or(path.Timeout, defaultTimeout), RetryCount: countOr(path.RetryCount, defaultRetryCount),
				RNRRetryCount: countOr(path.RNRRetryCount, ibverbs.RNRRetryForever), MaxReadAtomic: path.MaxReads,
			},
			ibverbs.QPAttrState | ibverbs.QPAttrSendPSN | ibverbs.QPAttrTimeout | ibverbs.QPAttrRetryCount |
				ibverbs.QPAttrRNRRetryCount | ibverbs.QPAttrMaxReadAtomic,
		},
	} {
		if err := d.Verbs().Modify(step.attr, step.mask); err != nil {
			return err
		}
	}
	return nil
}

// ResetStream lets a stream continue after one of its requests has failed; see
// mlx5dv_dci_stream_id_reset(3).
func (d *DCI) ResetStream(stream uint16) error {
	o := sibling.ObjectOf(d.Verbs())
	if err := o.Use(); err != nil {
		return err
	}
	defer o.Done()
	return sibling.Wrap(o.Name(), libmlx5.DciStreamIdReset(d.qp.Raw(), stream))
}

// Op is the operation of a request.
type Op = libibverbs.WrOpcode

// The operations.
const (
	Send     Op = libibverbs.IBV_WR_SEND
	SendImm  Op = libibverbs.IBV_WR_SEND_WITH_IMM
	Write    Op = libibverbs.IBV_WR_RDMA_WRITE
	WriteImm Op = libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
	Read     Op = libibverbs.IBV_WR_RDMA_READ
)

// Target is the destination of a request.
type Target struct {
	AH     *ibverbs.AH // address handle of the target's port
	Num    uint32      // number of the target, from DCT.Num
	Key    uint64      // key of the target, from DCTConfig.Key
	Stream uint16      // stream of the request, if the initiator has streams
}

// Request is a send request.
type Request struct {
	Op       Op
	ID       uint64 // ID of the completion
	Flags    ibverbs.SendFlags
	To       Target
	Remote   ibverbs.RemoteBuffer // memory of the target, for Write, WriteImm and Read
	Imm      uint32               // immediate data for SendImm and WriteImm, in the host's byte order
	Segments []ibverbs.Segment
}

// Post posts all of the requests, or none; see ibv_wr_start(3) and
// mlx5dv_wr_set_dc_addr(3). If a request cannot be posted, the error is an
// *[ibverbs.PostError]. Memory regions must stay open until the requests that
// use them have completed, and address handles until Post returns.
// [ibverbs.SendInline] is not supported. Each request costs a few calls of C.
func (d *DCI) Post(requests ...Request) error {
	o := sibling.ObjectOf(d.Verbs())
	if err := o.Use(); err != nil {
		return err
	}
	defer o.Done()
	all := make([]sibling.Request, len(requests))
	for i, r := range requests {
		all[i] = sibling.Request{
			ID: r.ID, Op: r.Op, Flags: r.Flags, Imm: r.Imm, Remote: r.Remote, Segments: r.Segments, AH: r.To.AH,
		}
	}
	return d.sender.Post(all, func(_ *libibverbs.QpEx, i int) error {
		to := requests[i].To
		if d.streams {
			return libmlx5.WrSetDcAddrStream(d.mlx5, to.AH.Raw(), to.Num, to.Key, to.Stream)
		}
		return libmlx5.WrSetDcAddr(d.mlx5, to.AH.Raw(), to.Num, to.Key)
	})
}
