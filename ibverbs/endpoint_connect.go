package ibverbs

import (
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// ConnectOptions say how a queue pair behaves once it is connected. The zero
// value is good for most programs.
type ConnectOptions struct {
	// Access is what peers may do through the queue pair, in regions that
	// allow it too. The zero value is all of remote write, read and atomic
	// that the type of queue pair has; AccessLocalWrite alone is nothing.
	Access AccessFlags

	PKeyIndex int
	MaxMTU    MTU // the zero value is no limit; the smaller one of both ports counts anyway

	// For InfiniBand the way through the subnet, for RoCE the IP header.
	SL           uint8
	TrafficClass uint8
	FlowLabel    uint32
	HopLimit     uint8 // the zero value is 64

	// Of reliable connections only.
	Timeout       time.Duration // for an acknowledgement, rounded up to 4.096 us * 2^n; the zero value is 67 ms
	RetryCount    int           // after timeouts, up to 7, which Soft-RoCE takes for endless; the zero value is 6, negative is none
	RNRRetryCount int           // while the peer has no receive, up to 7; the zero value is RNRRetryForever, negative is none
	MinRNRTimer   time.Duration // that a sender is told to wait then, rounded up; the zero value is 0.64 ms
	ReadDepth     int           // RDMA reads and atomics under way; the zero value is as many as both sides can, negative is none
}

// ConnectTo connects a queue pair of type RC or UC without package rdmacm: it
// moves it from reset through init and ready to receive to ready to send. Both
// sides call it, with what Endpoint gave on this side and on the other.
// Receives may be posted before or after, but must be there before the peer
// sends. See ibv_modify_qp(3). On RoCE it may hold a thread for seconds, as
// Modify says. If it fails, the queue pair may be left in a state in between.
func (qp *QP) ConnectTo(local, remote QPAddr, options ConnectOptions) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	s, err := qp.steps(local, remote, options)
	if err != nil {
		return err
	}
	return explainGIDs(qp.modifyAll(s), local, remote)
}

// Activate makes a queue pair of type UD ready to send and receive, with what
// Endpoint gave for it; see ibv_modify_qp(3). pkeyIndex is that of its
// partition in the port's table. Peers need the same endpoint's address, number
// and key. If it fails, the queue pair may be left in a state in between.
func (qp *QP) Activate(local QPAddr, pkeyIndex int) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if err := qp.checkLocal(local, pkeyIndex); err != nil {
		return qp.refuse(opActivate, err)
	}
	if qp.Type() != QPTypeUD {
		return qp.refuse(opActivate, cerr.Invalid("the queue pair is of type %s, not %s", qp.Type(), QPTypeUD))
	}
	return qp.modifyAll([]step{
		{
			libibverbs.QpAttr{
				QpState: QPStateInit, PkeyIndex: uint16(pkeyIndex), PortNum: uint8(local.Port), Qkey: local.QKey,
			},
			libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_QKEY,
		},
		{libibverbs.QpAttr{QpState: QPStateRTR}, libibverbs.IBV_QP_STATE},
		{
			libibverbs.QpAttr{QpState: QPStateRTS, SqPsn: local.PSN},
			libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN,
		},
	})
}

// explainGIDs says why C refuses the way between two endpoints, with a bare
// EINVAL, if their GIDs are of different kinds.
func explainGIDs(err error, local, peer QPAddr) error {
	here, there := local.GID.Addr(), peer.GID.Addr()
	if e, ok := err.(*Error); ok && e.Errno == syscall.EINVAL && here.Is4() != there.Is4() {
		return fmt.Errorf("%w: the GID is of %s here and of %s there, and both must be of IPv4 or both of IPv6; see QPAddrOptions.GID", err, here, there)
	}
	return err
}

// step is a change of a queue pair.
const (
	opConnect  = "QP.ConnectTo"
	opActivate = "QP.Activate"
)

func (qp *QP) refuse(op string, err error) error { return cerr.Argument(op, qp.object.Name(), err) }

type step struct {
	attr libibverbs.QpAttr
	mask libibverbs.QpAttrMask
}

func (qp *QP) modifyAll(steps []step) error {
	for _, s := range steps {
		if err := qp.modify(&s.attr, s.mask); err != nil {
			return err
		}
	}
	return nil
}

func (qp *QP) checkLocal(local QPAddr, pkeyIndex int) error {
	if err := local.check(); err != nil {
		return fmt.Errorf("local %w", err)
	}
	if local.QPNum != qp.Num() {
		return cerr.Invalid("local endpoint is that of QP %d", local.QPNum)
	}
	if pkeyIndex < 0 || pkeyIndex > 1<<16-1 {
		return inRange("P_Key index", pkeyIndex, 0, 1<<16-1)
	}
	return nil
}

// steps returns the changes that connect the queue pair.
func (qp *QP) steps(local, remote QPAddr, options ConnectOptions) ([]step, error) {
	if err := qp.checkLocal(local, options.PKeyIndex); err != nil {
		return nil, qp.refuse(opConnect, err)
	}
	if err := remote.check(); err != nil {
		return nil, qp.refuse(opConnect, fmt.Errorf("remote %w", err))
	}
	port, err := qp.device.QueryPort(local.Port)
	if err != nil {
		return nil, err
	}
	device, err := qp.device.QueryDevice()
	if err != nil {
		return nil, err
	}
	o, err := options.complete(qp.Type(), min(device.MaxQPInitReadAtomic, remote.ReadDepth))
	if err != nil {
		return nil, qp.refuse(opConnect, err)
	}
	return connectSteps(qp.Type(), local, remote, port, o), nil
}

// connectSteps returns the changes for options that are complete.
func connectSteps(t QPType, local, remote QPAddr, port PortAttr, o connectValues) []step {
	init := step{
		libibverbs.QpAttr{
			QpState: QPStateInit, PkeyIndex: uint16(o.PKeyIndex), PortNum: uint8(local.Port), QpAccessFlags: uint32(o.Access),
		},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_ACCESS_FLAGS,
	}
	rtr := step{
		libibverbs.QpAttr{
			QpState: QPStateRTR, AhAttr: local.address(remote, port, o.ConnectOptions), DestQpNum: remote.QPNum, RqPsn: remote.PSN,
			PathMtu: libibverbs.Mtu(min(local.MTU, remote.MTU, o.MaxMTU)),
		},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU |
			libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN,
	}
	rts := step{
		libibverbs.QpAttr{QpState: QPStateRTS, SqPsn: local.PSN},
		libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN,
	}
	if t == QPTypeRC {
		rtr.attr.MaxDestRdAtomic, rtr.attr.MinRnrTimer = uint8(local.ReadDepth), o.rnrTimer
		rtr.mask |= libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER
		rts.attr.Timeout, rts.attr.RetryCnt, rts.attr.RnrRetry = o.timeout, o.retryCount, o.rnrRetryCount
		rts.attr.MaxRdAtomic = o.readDepth
		rts.mask |= libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY |
			libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	}
	return []step{init, rtr, rts}
}
