package ibverbs_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

const (
	qkey   = 0x11111111
	grhLen = 40 // bytes before a datagram

	udOps = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM
)

// datagramEnd makes a datagram queue pair that can send.
func (r *rig) datagramEnd(ops libibverbs.QpCreateSendOpsFlags) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil), mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{
		Type: ibverbs.QPTypeUD, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: depth, MaxRecvWR: depth,
		MaxSendSGE: segments, MaxInline: inline, SendOps: ops,
	})
	e.send = must(ibverbs.NewSendBatch(depth, segments))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, segments))(r.t)
	for _, step := range []struct {
		attr libibverbs.QpAttr
		mask libibverbs.QpAttrMask
	}{
		{
			libibverbs.QpAttr{QpState: ibverbs.QPStateInit, PortNum: uint8(r.device.Port), Qkey: qkey},
			libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_QKEY,
		},
		{libibverbs.QpAttr{QpState: ibverbs.QPStateRTR}, 0},
		{libibverbs.QpAttr{QpState: ibverbs.QPStateRTS, SqPsn: psn}, libibverbs.IBV_QP_SQ_PSN},
	} {
		require.NoError(r.t, e.qp.ModifyRaw(&step.attr, step.mask|libibverbs.IBV_QP_STATE))
	}
	return e
}

func TestDatagrams(t *testing.T) {
	r := open(t)
	for name, ops := range map[string]libibverbs.QpCreateSendOpsFlags{"ibv_post_send": 0, "ibv_wr": udOps} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.datagramEnd(ops), r.datagramEnd(ops)
			ah := must(r.pd.CreateAH(ibverbs.AHAttr{
				Port: r.device.Port, SGIDIndex: r.device.GIDIndex, DGID: r.device.GID, HopLimit: 1,
			}))(t)
			r.cleanup(ah)
			to := ibverbs.Destination{AH: ah, QPNum: b.qp.Num(), QKey: qkey}
			pattern(a.mr.Bytes(), 3)
			for id := range uint64(2) {
				b.postRecv(t, id, b.mr.Sub(int(id)*1000, 1000))
			}
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				if err := s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 100)); err != nil {
					return err
				}
				return s.SendImmTo(2, to, 77, ibverbs.SendSignaled|ibverbs.SendInline, a.mr.Sub(5, 20))
			})
			collectOK(t, a.sendCQ, 2)
			wcs := collectOK(t, b.recvCQ, 2)
			for i, want := range [][]byte{a.mr.Sub(0, 100).Bytes(), a.mr.Sub(5, 20).Bytes()} {
				require.True(t, wcs[i].HasGRH())
				require.Equal(t, a.qp.Num(), wcs[i].SrcQPNum())
				require.Equal(t, grhLen+len(want), wcs[i].ByteLen())
				require.Equal(t, want, b.mr.Sub(i*1000+grhLen, len(want)).Bytes())
			}
			imm, ok := wcs[1].Imm()
			require.True(t, ok)
			require.EqualValues(t, 77, imm)

			for name, fill := range map[string]func(s *ibverbs.SendBatch) error{
				"no destination": func(s *ibverbs.SendBatch) error { return s.Send(1, 0) },
				"write":          func(s *ibverbs.SendBatch) error { return s.Write(1, b.mr.Remote(), 0, a.mr.Sub(0, 8)) },
			} {
				a.send.Reset()
				require.NoError(t, fill(a.send))
				_, err := a.qp.PostSend(a.send)
				require.ErrorIs(t, err, syscall.EINVAL, name)
			}
		})
	}
}

// Two endpoints are all that datagrams need.
func TestDestination(t *testing.T) {
	r := open(t)
	a, b := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD, MaxInline: inline}), r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	atA := must(a.qp.Addr(ibverbs.QPAddrOptions{}))(t)
	atB := must(b.qp.Addr(ibverbs.QPAddrOptions{QKey: 0x1234}))(t)
	require.NoError(t, a.qp.Activate(atA, 0))
	require.NoError(t, b.qp.Activate(atB, 0))
	to := must(r.pd.CreateDestination(atA, atB))(t)
	r.cleanup(to.AH)
	b.postRecv(t, 1, b.mr.Sub(0, 1024))
	message := pattern(a.mr.Bytes()[:100], 9)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.SendTo(2, to, ibverbs.SendSignaled, a.mr.Sub(0, len(message)))
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, grhLen+len(message), collectOK(t, b.recvCQ, 1)[0].ByteLen())
	require.Equal(t, message, b.mr.Sub(grhLen, len(message)).Bytes())

	b.postRecv(t, 3, b.mr.Sub(0, 1024))
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.SendTo(4, to, ibverbs.SendSignaled|ibverbs.SendInline, ibverbs.InlineBytes([]byte("anything")))
	})
	collectOK(t, a.sendCQ, 1)
	collectOK(t, b.recvCQ, 1)
	require.Equal(t, "anything", string(b.mr.Sub(grhLen, 8).Bytes()))
}
