// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
)

// Attr returns the attributes as ibv_query_qp does. The PSNs in them are those
// of the next packets.
func (q *QP) Attr() (libibverbs.QpAttr, error) {
	if err := q.device.check(); err != nil {
		return libibverbs.QpAttr{}, err
	}
	a := q.attr
	a.CurQpState, a.Cap = a.QpState, q.cap()
	a.RqPsn, a.SqPsn = uint32(q.responder.psn), uint32(q.requester.psn)
	return a, nil
}

// InitAttr returns the attributes at creation as ibv_query_qp does, but without
// the context and the queues.
func (q *QP) InitAttr() libibverbs.QpInitAttr {
	a := libibverbs.QpInitAttr{Cap: q.cap(), QpType: q.kind}
	if q.signalAll {
		a.SqSigAll = 1
	}
	return a
}

// cap returns the sizes of the queue pair's queues.
func (q *QP) cap() libibverbs.QpCap {
	var c libibverbs.QpCap
	if q.offload == nil {
		c = libibverbs.QpCap{MaxSendWr: q.send.Max, MaxSendSge: q.send.MaxSGE, MaxInlineData: q.send.Inline}
	}
	if q.recv != nil {
		c.MaxRecvWr, c.MaxRecvSge = q.recv.Max, q.recv.MaxSGE
	}
	return c
}

// step is a transition of a queue pair from one state to another, or to the
// same state.
type step struct{ from, to libibverbs.QpState }

// attrs has the attributes that a step requires or permits, apart from the
// state.
type attrs struct{ required, optional libibverbs.QpAttrMask }

// Sets of attributes that several steps have in common.
const (
	initAttrs   = libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT
	connInit    = initAttrs | libibverbs.IBV_QP_ACCESS_FLAGS
	udInit      = initAttrs | libibverbs.IBV_QP_QKEY
	peerAttrs   = libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN
	answerAttrs = libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER
	retryAttrs  = libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	connRTR     = libibverbs.IBV_QP_ACCESS_FLAGS | libibverbs.IBV_QP_ALT_PATH | libibverbs.IBV_QP_PKEY_INDEX
	udRTR       = libibverbs.IBV_QP_QKEY | libibverbs.IBV_QP_PKEY_INDEX
	ucRTS       = libibverbs.IBV_QP_CUR_STATE | libibverbs.IBV_QP_ACCESS_FLAGS | libibverbs.IBV_QP_ALT_PATH | libibverbs.IBV_QP_PATH_MIG_STATE
	rcRTS       = ucRTS | libibverbs.IBV_QP_MIN_RNR_TIMER
	udRTS       = libibverbs.IBV_QP_CUR_STATE | libibverbs.IBV_QP_QKEY
	ucSQD       = connRTR | libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MIG_STATE
	xrcRTS      = libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_SQ_PSN // of the type XRC_RECV, as xrcSQD
	xrcSQD      = ucSQD | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_TIMEOUT | answerAttrs
	rcSQD       = ucSQD | libibverbs.IBV_QP_PORT | retryAttrs | answerAttrs
)

// steps has the permitted steps for each type of queue pair, as in the
// InfiniBand specification and in Linux. In addition, a queue pair may go from
// any state to the reset and error states, without attributes.
var steps = map[libibverbs.QpType]map[step]attrs{
	libibverbs.IBV_QPT_RC: {
		{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_INIT}: {required: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_INIT}:  {optional: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR}:   {required: peerAttrs | answerAttrs, optional: connRTR},
		{libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS}:    {required: retryAttrs | libibverbs.IBV_QP_SQ_PSN, optional: rcRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_RTS}:    {optional: rcRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD}:    {optional: libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_RTS}:    {optional: rcRTS},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_SQD}:    {optional: rcSQD},
		{libibverbs.IBV_QPS_SQE, libibverbs.IBV_QPS_RTS}:    {},
	},
	libibverbs.IBV_QPT_XRC_SEND: {
		{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_INIT}: {required: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_INIT}:  {optional: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR}:   {required: peerAttrs, optional: connRTR},
		{libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS}:    {required: retryAttrs | libibverbs.IBV_QP_SQ_PSN, optional: ucRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_RTS}:    {optional: ucRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD}:    {optional: libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_RTS}:    {optional: ucRTS},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_SQD}:    {optional: ucSQD | libibverbs.IBV_QP_PORT | retryAttrs},
		{libibverbs.IBV_QPS_SQE, libibverbs.IBV_QPS_RTS}:    {},
	},
	libibverbs.IBV_QPT_XRC_RECV: {
		{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_INIT}: {required: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_INIT}:  {optional: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR}:   {required: peerAttrs | answerAttrs, optional: connRTR},
		{libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS}:    {required: xrcRTS, optional: rcRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_RTS}:    {optional: rcRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD}:    {optional: libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_RTS}:    {optional: rcRTS},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_SQD}:    {optional: xrcSQD},
		{libibverbs.IBV_QPS_SQE, libibverbs.IBV_QPS_RTS}:    {},
	},
	libibverbs.IBV_QPT_UC: {
		{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_INIT}: {required: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_INIT}:  {optional: connInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR}:   {required: peerAttrs, optional: connRTR},
		{libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS}:    {required: libibverbs.IBV_QP_SQ_PSN, optional: ucRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_RTS}:    {optional: ucRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD}:    {optional: libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_RTS}:    {optional: ucRTS},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_SQD}:    {optional: ucSQD},
		{libibverbs.IBV_QPS_SQE, libibverbs.IBV_QPS_RTS}:    {optional: libibverbs.IBV_QP_CUR_STATE | libibverbs.IBV_QP_ACCESS_FLAGS},
	},
	libibverbs.IBV_QPT_UD: {
		{libibverbs.IBV_QPS_RESET, libibverbs.IBV_QPS_INIT}: {required: udInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_INIT}:  {optional: udInit},
		{libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR}:   {optional: udRTR},
		{libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS}:    {required: libibverbs.IBV_QP_SQ_PSN, optional: udRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_RTS}:    {optional: udRTS},
		{libibverbs.IBV_QPS_RTS, libibverbs.IBV_QPS_SQD}:    {optional: libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_RTS}:    {optional: udRTS},
		{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_SQD}:    {optional: udRTR},
		{libibverbs.IBV_QPS_SQE, libibverbs.IBV_QPS_RTS}:    {optional: udRTS},
	},
}

// allowed reports whether queue pairs of a type permit the step s with the
// attributes in mask.
func allowed(kind libibverbs.QpType, s step, mask libibverbs.QpAttrMask) bool {
	a, ok := steps[kind][s]
	ok = ok || s.to == libibverbs.IBV_QPS_RESET || s.to == libibverbs.IBV_QPS_ERR
	mask &^= libibverbs.IBV_QP_STATE
	return ok && a.required&^mask == 0 && mask&^(a.required|a.optional) == 0
}

// Modify sets the attributes in mask, and the state if mask has IBV_QP_STATE.
// For the reset state, the caller must hold the locks of the threads that post
// to the queue pair and that poll its completion queues.
//
// If Modify fails, nothing changes. It fails with EINVAL for a change of state
// that does not exist, for attributes that are missing, unknown, not permitted
// or out of range, and if IBV_QP_CUR_STATE names another state than the queue
// pair's. It fails with ENODATA for a path from an empty entry of the GID
// table. All values of IBV_QP_ALT_PATH are out of range, as RoCE has no
// alternate paths.
func (q *QP) Modify(attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error {
	if err := q.device.check(); err != nil {
		return err
	}
	from := q.attr.QpState
	to := from
	if mask&libibverbs.IBV_QP_STATE != 0 {
		to = attr.QpState
	}
	if !allowed(q.kind, step{from, to}, mask) || !q.inRange(attr, mask) {
		return syscall.EINVAL
	}
	path := q.path
	if mask&libibverbs.IBV_QP_AV != 0 {
		var err error
		if path, err = q.device.pathOf(&attr.AhAttr); err != nil {
			return err
		}
		if isMulticast(path.dgid) {
			return syscall.EINVAL
		}
	}
	if to == libibverbs.IBV_QPS_RESET {
		q.reset()
		return nil
	}
	q.path = path
	if from != libibverbs.IBV_QPS_SQD {
		q.attr.EnSqdAsyncNotify = 0 // applies to one drain
	}
	if mask&libibverbs.IBV_QP_ACCESS_FLAGS != 0 {
		q.device.settle() // a copy was permitted by the old flags
	}
	q.assign(attr, mask)
	if mask&libibverbs.IBV_QP_TIMEOUT != 0 {
		q.restartTimer()
	}
	if mask&libibverbs.IBV_QP_STATE != 0 {
		q.setState(to)
	}
	if detector.Enabled && to == libibverbs.IBV_QPS_ERR {
		q.told.Acquire()
	}
	return nil
}

// inRange reports whether the device supports the values of the attributes in
// mask.
func (q *QP) inRange(a *libibverbs.QpAttr, mask libibverbs.QpAttrMask) bool {
	for _, f := range []struct {
		bit libibverbs.QpAttrMask
		ok  bool
	}{
		{libibverbs.IBV_QP_CUR_STATE, a.CurQpState == q.attr.QpState},
		{libibverbs.IBV_QP_ACCESS_FLAGS, a.QpAccessFlags&^(mrAccess|flushAccess|optionalAccess) == 0},
		{libibverbs.IBV_QP_PKEY_INDEX, a.PkeyIndex == 0},
		{libibverbs.IBV_QP_PORT, a.PortNum == portNum},
		{libibverbs.IBV_QP_PATH_MTU, a.PathMtu >= libibverbs.IBV_MTU_256 && a.PathMtu <= q.device.config.MTU},
		{libibverbs.IBV_QP_TIMEOUT, a.Timeout < 1<<5},
		{libibverbs.IBV_QP_RETRY_CNT, a.RetryCnt < 1<<3},
		{libibverbs.IBV_QP_RNR_RETRY, a.RnrRetry < 1<<3},
		{libibverbs.IBV_QP_RQ_PSN, a.RqPsn < 1<<24},
		{libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, uint32(a.MaxRdAtomic) <= q.device.limits.Reads},
		{libibverbs.IBV_QP_ALT_PATH, false},
		{libibverbs.IBV_QP_MIN_RNR_TIMER, a.MinRnrTimer < 1<<5},
		{libibverbs.IBV_QP_SQ_PSN, a.SqPsn < 1<<24},
		{libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, uint32(a.MaxDestRdAtomic) <= q.device.limits.Reads},
		{libibverbs.IBV_QP_PATH_MIG_STATE, a.PathMigState == libibverbs.IBV_MIG_MIGRATED},
		{libibverbs.IBV_QP_DEST_QPN, a.DestQpNum < 1<<24},
	} {
		if mask&f.bit != 0 && !f.ok {
			return false
		}
	}
	return true
}

// assign copies those attributes of from that are in mask, except the state.
func (q *QP) assign(from *libibverbs.QpAttr, mask libibverbs.QpAttrMask) {
	a := &q.attr
	set(mask&libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY, &a.EnSqdAsyncNotify, from.EnSqdAsyncNotify)
	set(mask&libibverbs.IBV_QP_ACCESS_FLAGS, &a.QpAccessFlags, from.QpAccessFlags)
	set(mask&libibverbs.IBV_QP_PKEY_INDEX, &a.PkeyIndex, from.PkeyIndex)
	set(mask&libibverbs.IBV_QP_PORT, &a.PortNum, from.PortNum)
	set(mask&libibverbs.IBV_QP_QKEY, &a.Qkey, from.Qkey)
	set(mask&libibverbs.IBV_QP_AV, &a.AhAttr, from.AhAttr)
	set(mask&libibverbs.IBV_QP_PATH_MTU, &a.PathMtu, from.PathMtu)
	set(mask&libibverbs.IBV_QP_PATH_MTU, &q.mtu, mtuBytes(from.PathMtu))
	set(mask&libibverbs.IBV_QP_TIMEOUT, &a.Timeout, from.Timeout)
	set(mask&libibverbs.IBV_QP_RETRY_CNT, &a.RetryCnt, from.RetryCnt)
	set(mask&libibverbs.IBV_QP_RETRY_CNT, &q.requester.retries, from.RetryCnt)
	set(mask&libibverbs.IBV_QP_RNR_RETRY, &a.RnrRetry, from.RnrRetry)
	set(mask&libibverbs.IBV_QP_RNR_RETRY, &q.requester.rnrRetries, from.RnrRetry)
	set(mask&libibverbs.IBV_QP_RQ_PSN, &a.RqPsn, from.RqPsn)
	set(mask&libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, &a.MaxRdAtomic, from.MaxRdAtomic)
	set(mask&libibverbs.IBV_QP_MIN_RNR_TIMER, &a.MinRnrTimer, from.MinRnrTimer)
	set(mask&libibverbs.IBV_QP_SQ_PSN, &a.SqPsn, from.SqPsn)
	set(mask&libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, &a.MaxDestRdAtomic, from.MaxDestRdAtomic)
	set(mask&libibverbs.IBV_QP_DEST_QPN, &a.DestQpNum, from.DestQpNum)
}

// set sets an attribute to v unless bit, which is the attribute's bit in the
// mask, is 0.
func set[T any](bit libibverbs.QpAttrMask, to *T, v T) {
	if bit != 0 {
		*to = v
	}
}

// mtuBytes returns the number of payload bytes that an MTU stands for.
func mtuBytes(m libibverbs.Mtu) int { return 128 << m }
