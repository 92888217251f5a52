package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// link says how queue pairs are connected.
type link struct {
	peer     uint32 // QP number
	timeout  uint8  // for an answer: 4.096 us * 2^timeout
	retries  uint8
	rnrRetry uint8
}

func linkTo(peer *ibverbs.QP) link {
	return link{peer: peer.Num(), timeout: 17, retries: 7, rnrRetry: 7} // 0.5 s; 7 RNR retries are endless
}

const psn = 0x1234

func (r *rig) toInit(qp *ibverbs.QP) {
	r.t.Helper()
	require.NoError(r.t, qp.ModifyRaw(&libibverbs.QpAttr{
		QpState: ibverbs.QPStateInit, PortNum: uint8(r.device.Port), QpAccessFlags: uint32(anyAccess),
	}, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_PKEY_INDEX|libibverbs.IBV_QP_PORT|libibverbs.IBV_QP_ACCESS_FLAGS))
}

func (r *rig) toRTR(qp *ibverbs.QP, l link) {
	r.t.Helper()
	port := must(r.c.QueryPort(r.device.Port))(r.t)
	attr := &libibverbs.QpAttr{
		QpState: ibverbs.QPStateRTR, PathMtu: libibverbs.Mtu(port.ActiveMTU), DestQpNum: l.peer,
		RqPsn: psn, MaxDestRdAtomic: 1, MinRnrTimer: 1, // 0.01 ms
		AhAttr: libibverbs.AhAttr{
			Dlid: port.LID, IsGlobal: 1, PortNum: uint8(r.device.Port),
			Grh: libibverbs.GlobalRoute{SgidIndex: uint8(r.device.GIDIndex), HopLimit: 1},
		},
	}
	*attr.AhAttr.Grh.Dgid.Raw() = r.device.GID
	require.NoError(r.t, qp.ModifyRaw(attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_AV|libibverbs.IBV_QP_PATH_MTU|
		libibverbs.IBV_QP_DEST_QPN|libibverbs.IBV_QP_RQ_PSN|libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC|
		libibverbs.IBV_QP_MIN_RNR_TIMER))
}

func (r *rig) toRTS(qp *ibverbs.QP, l link) {
	r.t.Helper()
	require.NoError(r.t, qp.ModifyRaw(&libibverbs.QpAttr{
		QpState: ibverbs.QPStateRTS, SqPsn: psn, Timeout: l.timeout, RetryCnt: l.retries,
		RnrRetry: l.rnrRetry, MaxRdAtomic: 1,
	}, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_SQ_PSN|libibverbs.IBV_QP_TIMEOUT|libibverbs.IBV_QP_RETRY_CNT|
		libibverbs.IBV_QP_RNR_RETRY|libibverbs.IBV_QP_MAX_QP_RD_ATOMIC))
}

// end is one end of a reliable connection.
type end struct {
	rig            *rig
	qp             *ibverbs.QP
	sendCQ, recvCQ *ibverbs.CQ
	mr             *ibverbs.MR
	send           *ibverbs.SendBatch
	recv           *ibverbs.RecvBatch
}

const (
	depth    = 64 // requests in a queue
	segments = 4
	inline   = 64
	mrSize   = 1 << 16
)

// end makes an end that is not connected. Its queues have the channel, which
// may be nil.
func (r *rig) end(ch *ibverbs.CompChannel) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, ch), recvCQ: r.cq(depth, ch), mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: depth, MaxRecvWR: depth,
		MaxSendSGE: segments, MaxRecvSGE: segments, MaxInline: inline,
	})
	e.send = must(ibverbs.NewSendBatch(depth, segments))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, segments))(r.t)
	return e
}

// pair makes two ends that are connected with each other.
func (r *rig) pair(ch *ibverbs.CompChannel) (a, b *end) {
	r.t.Helper()
	a, b = r.end(ch), r.end(ch)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	return a, b
}

func (r *rig) connect(e *end, l link) {
	r.t.Helper()
	r.toInit(e.qp)
	r.toRTR(e.qp, l)
	r.toRTS(e.qp, l)
	require.Equal(r.t, ibverbs.QPStateRTS, must(e.qp.State())(r.t))
}

// postSend posts what fill puts into an empty batch.
func (e *end) postSend(t testing.TB, fill func(b *ibverbs.SendBatch) error) {
	t.Helper()
	e.send.Reset()
	require.NoError(t, fill(e.send))
	require.Equal(t, e.send.Len(), must(e.qp.PostSend(e.send))(t))
}

// postRecv posts one receive.
func (e *end) postRecv(t testing.TB, id uint64, s ...ibverbs.Segment) {
	t.Helper()
	e.recv.Reset()
	require.NoError(t, e.recv.Recv(id, s...))
	require.Equal(t, 1, must(e.qp.PostRecv(e.recv))(t))
}

// collectOK is collect for completions that are all successful.
func collectOK(t testing.TB, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	wcs := collect(t, cq, n)
	for i := range wcs {
		require.NoError(t, wcs[i].Err())
	}
	return wcs
}

// pattern fills b with bytes that tell their place and seed.
func pattern(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}
