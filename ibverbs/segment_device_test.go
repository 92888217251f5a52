package ibverbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Memory that is not registered is sent inline, and can be changed at once.
func TestInlineBytesArrive(t *testing.T) {
	r := open(t)
	const rcOps = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
	for name, ops := range map[string]libibverbs.QpCreateSendOpsFlags{"ibv_post_send": 0, "ibv_wr": rcOps} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.endWithOps(ops), r.endWithOps(ops)
			r.connect(a, linkTo(b.qp))
			r.connect(b, linkTo(a.qp))
			b.postRecv(t, 1, b.mr.Sub(0, 100))
			b.postRecv(t, 2)
			copy(a.mr.Bytes(), "region")
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				var data [8]byte
				copy(data[:], "anything")
				const flags = ibverbs.SendSignaled | ibverbs.SendInline
				err := errors.Join(
					s.Send(1, flags, ibverbs.InlineBytes(data[:3]), a.mr.Sub(0, 6), ibverbs.InlineBytes(data[3:])),
					s.Write(2, b.mr.Remote().Sub(200, 8), flags, ibverbs.InlineBytes(data[:])),
					s.WriteImm(3, b.mr.Remote().Sub(300, 0), 7, flags, ibverbs.InlineBytes(nil)),
				)
				clear(data[:])
				return err
			})
			collectOK(t, a.sendCQ, 3)
			require.Equal(t, 14, collectOK(t, b.recvCQ, 2)[0].ByteLen())
			require.Equal(t, "anyregionthing", string(b.mr.Bytes()[:14]))
			require.Equal(t, "anything", string(b.mr.Bytes()[200:208]))

			// The same batch, with other bytes.
			require.NoError(t, a.send.WR(1).SetSegments(ibverbs.InlineBytes([]byte("else"))))
			b.postRecv(t, 1, b.mr.Sub(0, 100))
			b.postRecv(t, 2)
			must(a.qp.PostSend(a.send))(t)
			collectOK(t, a.sendCQ, 3)
			require.Equal(t, "elsehing", string(b.mr.Bytes()[200:208]))
			collectOK(t, b.recvCQ, 2)
		})
	}
}

// endWithOps is end with a queue pair that posts with ibv_wr_*, if it has ops.
func (r *rig) endWithOps(ops libibverbs.QpCreateSendOpsFlags) *end {
	r.t.Helper()
	e := r.end(nil)
	e.qp = r.qp(ibverbs.QPConfig{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: depth, MaxRecvWR: depth,
		MaxSendSGE: segments, MaxRecvSGE: segments, MaxInline: inline, SendOps: ops,
	})
	return e
}

// Memory is named by its address and key alone, as if something else had
// registered it.
func TestRawSegmentArrives(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	want := pattern(a.mr.Sub(64, 32).Bytes(), 5)
	b.postRecv(t, 1, ibverbs.RawSegment(b.mr.Remote().Addr, b.mr.Len(), b.mr.LKey()).Sub(100, 50))
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Send(1, ibverbs.SendSignaled, ibverbs.RawSegment(a.mr.Remote().Addr+64, 32, a.mr.LKey()))
	})
	collectOK(t, a.sendCQ, 1)
	collectOK(t, b.recvCQ, 1)
	require.Equal(t, want, b.mr.Sub(100, 50).Sub(0, 32).Bytes())
}
