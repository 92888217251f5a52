package ibverbs

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// queried are the attributes that can be asked for: all but the rate limit.
const queried = libibverbs.IBV_QP_DEST_QPN<<1 - 1

// Query asks the device for the queue pair's attributes; see ibv_query_qp(3).
// Those that its type or state does not have are meaningless. It waits for a
// Modify that is under way.
func (qp *QP) Query() (QPAttr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAttr{}, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	if err := libibverbs.QueryQp(qp.raw, &attr, int32(queried), &init); err != nil {
		return QPAttr{}, wrap(qp.object.Name(), err)
	}
	return qpAttrOf(&attr), nil
}

// State asks the device for the queue pair's state; see ibv_query_qp(3). It
// waits for a Modify that is under way.
func (qp *QP) State() (QPState, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	return qp.askState()
}

// RateLimit is how fast a queue pair may send.
type RateLimit struct {
	KilobitsPerSecond uint32 // 0: no limit
	MaxBurst          int    // bytes sent at once; 0: the device chooses
	TypicalPacket     int    // bytes, which help the device; 0: not known
}

// SetRateLimit changes how fast the queue pair may send, which must be ready to
// send or on the way to it; see ibv_modify_qp_rate_limit(3). Few devices can do
// it; with the others it fails with errors.ErrUnsupported.
func (qp *QP) SetRateLimit(limit RateLimit) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if limit.MaxBurst < 0 || int64(limit.MaxBurst) > math.MaxUint32 ||
		limit.TypicalPacket < 0 || limit.TypicalPacket > math.MaxUint16 {
		return cerr.Refuse("ibv_modify_qp_rate_limit", qp.object.Name(), "MaxBurst is %d and TypicalPacket %d, not up to %d and %d",
			limit.MaxBurst, limit.TypicalPacket, uint32(math.MaxUint32), math.MaxUint16)
	}
	attr := libibverbs.QpRateLimitAttr{
		RateLimit: limit.KilobitsPerSecond, MaxBurstSz: uint32(limit.MaxBurst), TypicalPktSz: uint16(limit.TypicalPacket),
	}
	return wrap(qp.object.Name(), libibverbs.ModifyQpRateLimit(qp.raw, &attr))
}

// DataInOrder says in which order received data appears in memory.
type DataInOrder = libibverbs.QueryQpDataInOrderCaps

// The orders of received data. Without either, only a completion says that
// data is there.
const (
	DataInOrderMessage DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG         // byte after byte of the message
	DataInOrder128     DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES // within aligned blocks of 128 bytes
)

// DataInOrder returns in which order the data of the peer's requests of a kind
// appears in memory, so that a program may poll the memory instead of the
// completion queue; see ibv_query_qp_data_in_order(3). 0 also stands for a
// device that does not know. It needs rdma-core 36 or later.
func (qp *QP) DataInOrder(op libibverbs.WrOpcode) (DataInOrder, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	caps, err := libibverbs.QueryQpDataInOrder(qp.raw, op, uint32(libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS))
	return DataInOrder(caps), wrap(qp.object.Name(), err)
}
