// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
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
		Type: ibverbs.QPTypeUD, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, RecvQueue: depth,
		SendSegments: segments, MaxInline: inline, SendOps: ops,
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
	atA := must(a.qp.Addr(ibverbs.QPAddrConfig{}))(t)
	atB := must(b.qp.Addr(ibverbs.QPAddrConfig{QKey: 0x1234}))(t)
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

// datagrams makes two ends that send each other datagrams, and says how to
// reach the second.
func (r *rig) datagrams() (a, b *end, to ibverbs.Destination) {
	r.t.Helper()
	a, b = r.udEnd(), r.udEnd()
	ah := must(r.pd.CreateAH(r.path()))(r.t)
	r.cleanup(ah)
	pattern(a.mr.Bytes(), 3)
	return a, b, ibverbs.Destination{AH: ah, QPNum: b.qp.Num(), QKey: qkey}
}

// A datagram without a receive is lost, and its sender does not learn of it.
func TestLostDatagrams(t *testing.T) {
	r := open(t)
	mtu := must(r.c.QueryPort(r.device.Port))(t).ActiveMTU.Bytes()
	for name, tt := range map[string]struct {
		change func(d *ibverbs.Destination)
		size   int
		late   bool // the receive is posted afterwards
	}{
		"wrong Q_Key":         {change: func(d *ibverbs.Destination) { d.QKey ^= 1 }, size: 100},
		"wrong QP number":     {change: func(d *ibverbs.Destination) { d.QPNum = 0xFFFFF0 }, size: 100},
		"no receive":          {size: 100, late: true},
		"longer than the MTU": {size: mtu + 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, b, right := r.sub(t).datagrams()
			wrong := right
			if tt.change != nil {
				tt.change(&wrong)
			}
			receive := func() { b.postRecv(t, 7, b.mr.Sub(0, 10000)) }
			if !tt.late {
				receive()
			}
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.SendTo(1, wrong, ibverbs.SendSignaled, a.mr.Sub(0, tt.size))
			})
			require.EqualValues(t, 1, collectOK(t, a.sendCQ, 1)[0].ID())
			if tt.late {
				receive()
			}
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.SendTo(2, right, 0, a.mr.Sub(300, 50)) })
			require.Equal(t, ibverbs.GRHLen+50, collectOK(t, b.recvCQ, 1)[0].ByteLen(), "the right one")
			require.Equal(t, a.mr.Sub(300, 50).Bytes(), b.mr.Sub(ibverbs.GRHLen, 50).Bytes())
		})
	}
}

// A datagram whose receive has no room for it and the header of the route is
// lost, and so is a message over an unreliable connection that is longer than
// its receive. The receive serves the next one, and the queue pair goes on.
func TestUnreliableWithoutRoom(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, tt := range map[string]struct {
		kind   ibverbs.QPType
		header int
		size   int // that does not fit
		shared bool
		rxe    ibverbs.WCStatus // of the receive, by Soft-RoCE since Linux 6.10
	}{
		"datagram":                     {ibverbs.QPTypeUD, ibverbs.GRHLen, 101, false, ibverbs.WCSuccess},
		"datagram, SRQ":                {ibverbs.QPTypeUD, ibverbs.GRHLen, 101, true, ibverbs.WCRemoteInvalidRequest},
		"connection":                   {ibverbs.QPTypeUC, 0, 101, false, ibverbs.WCLocalQPOperation},
		"connection, many packets":     {ibverbs.QPTypeUC, 0, 20_000, false, ibverbs.WCLocalQPOperation},
		"connection, SRQ":              {ibverbs.QPTypeUC, 0, 101, true, ibverbs.WCLocalQPOperation},
		"connection, SRQ, two packets": {ibverbs.QPTypeUC, 0, 5000, true, ibverbs.WCLocalQPOperation},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			const fits = 100
			config := ibverbs.QPConfig{Type: tt.kind}
			a := r.typedEnd(config)
			if tt.shared {
				config.SRQ = r.srq(ibverbs.SRQConfig{RecvQueue: depth})
			}
			b := r.typedEnd(config)
			r.bring(a.qp, b.qp.Num(), ibverbs.QPStateRTS)
			r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
			post := b.qp.PostRecv
			if tt.shared {
				post = config.SRQ.PostRecv
			}
			for id := range uint64(2) {
				require.NoError(t, b.recv.Recv(id, b.mr.Sub(int(id)*1024, tt.header+fits)))
			}
			require.Equal(t, 2, must(post(b.recv))(t))
			to := ibverbs.Destination{QPNum: b.qp.Num(), QKey: qkey}
			if tt.kind == ibverbs.QPTypeUD {
				to.AH = must(r.pd.CreateAH(r.path()))(t)
				r.cleanup(to.AH)
			}
			pattern(a.mr.Bytes(), 3)
			send := func(id uint64, size int) {
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					if tt.kind == ibverbs.QPTypeUC {
						return s.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, size))
					}
					return s.SendTo(id, to, ibverbs.SendSignaled, a.mr.Sub(0, size))
				})
				require.Equal(t, id, collectOK(t, a.sendCQ, 1)[0].ID())
			}
			send(1, tt.size)
			first := uint64(0)
			if r.device.SoftRoCE() {
				rxe := ibverbs.WCLocalQPOperation
				if r.device.SoftRoCESince(t, 6, 10) {
					rxe = tt.rxe
				}
				if rxe != ibverbs.WCSuccess {
					requireWC(t, collect(t, b.recvCQ, 1)[0], 0, b.qp, rxe, rxe.Class())
					first = 1
				}
				if rxe == ibverbs.WCLocalQPOperation {
					require.Equal(t, ibverbs.QPStateError, must(b.qp.State())(t))
					return
				}
			}
			for id := first; id < 2; id++ {
				send(2, fits)
				wc := collectOK(t, b.recvCQ, 1)[0]
				require.Equal(t, id, wc.ID())
				require.Equal(t, tt.header+fits, wc.ByteLen())
				require.Equal(t, a.mr.Bytes()[:fits], b.mr.Bytes()[int(id)*1024+tt.header:][:fits])
			}
			require.Equal(t, ibverbs.QPStateRTS, must(b.qp.State())(t))
		})
	}
}

// A receive that the device cannot write is the program's mistake, whatever
// meets it.
func TestUnreliableIntoBadReceive(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	protection := verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation)}
	for name, kind := range map[string]ibverbs.QPType{"datagram": ibverbs.QPTypeUD, "connection": ibverbs.QPTypeUC} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.typedEnd(ibverbs.QPConfig{Type: kind}), r.typedEnd(ibverbs.QPConfig{Type: kind})
			r.bring(a.qp, b.qp.Num(), ibverbs.QPStateRTS)
			r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
			require.NoError(t, b.recv.Recv(7, b.mr.Sub(0, 1000)))
			ibverbs.RawRecvs(b.recv)[0].SgList.Lkey ^= 0x5A
			require.Equal(t, 1, must(b.qp.PostRecv(b.recv))(t))
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				if kind == ibverbs.QPTypeUC {
					return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8))
				}
				ah := must(r.pd.CreateAH(r.path()))(t)
				r.cleanup(ah)
				return s.SendTo(1, ibverbs.Destination{AH: ah, QPNum: b.qp.Num(), QKey: qkey}, ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
			collectOK(t, a.sendCQ, 1)
			requireVerdict(t, b.recvCQ, 7, b.qp, protection, r)
			require.Equal(t, ibverbs.QPStateError, must(b.qp.State())(t))
		})
	}
}

// What cannot be sent at all fails at the sender.
func TestDatagramThatCannotBeSent(t *testing.T) {
	r := open(t)
	theirs := r.foreign()
	for name, tt := range map[string]struct {
		fill func(s *ibverbs.SendBatch, a *end, to ibverbs.Destination) error
		want verdict
	}{
		"region of another domain": {func(s *ibverbs.SendBatch, _ *end, to ibverbs.Destination) error {
			return s.SendTo(1, to, 0, theirs.All())
		}, unsendable},
		"wrong local key": {func(s *ibverbs.SendBatch, a *end, to ibverbs.Destination) error {
			err := s.SendTo(1, to, 0, a.mr.Sub(0, 8))
			sge(&ibverbs.RawSends(s)[0]).Lkey ^= 0x5A
			return err
		}, unsendable},
		"address handle of another domain": {func(s *ibverbs.SendBatch, a *end, to ibverbs.Destination) error {
			to.AH = must(theirs.PD().CreateAH(r.path()))(a.rig.t)
			a.rig.cleanup(to.AH)
			return s.SendTo(1, to, 0, a.mr.Sub(0, 8))
		}, unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, _, to := r.datagrams()
			a.postSend(t, func(s *ibverbs.SendBatch) error { return tt.fill(s, a, to) })
			requireVerdict(t, a.sendCQ, 1, a.qp, tt.want, r)
		})
	}
}

// An address handle that is closed before or after a batch is filled with it.
func TestClosedAddressHandle(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	a := r.udEnd()
	ah := must(r.pd.CreateAH(r.path()))(t)
	to := ibverbs.Destination{AH: ah, QPNum: 5, QKey: qkey}
	for range 2 {
		a.send.Reset()
		require.NoError(t, a.send.SendTo(1, to, 0))
		require.NoError(t, ah.Close())
		_, err := a.qp.PostSend(a.send)
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorContains(t, err, "AH ")
	}
	require.Equal(t, ibverbs.QPStateRTS, must(a.qp.State())(t))
}

// Unreliable connections lose what the peer cannot take. They have no reads and
// atomics.
func TestUnreliableConnections(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, tt := range map[string]struct {
		fill func(s *ibverbs.SendBatch, a, b *end) error
		want verdict
	}{
		"wrong remote key": {func(s *ibverbs.SendBatch, a, b *end) error {
			to := b.mr.Remote()
			to.RKey ^= 0x5A
			return s.Write(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8))
		}, good},
		"no receive": {func(s *ibverbs.SendBatch, a, _ *end) error {
			return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8))
		}, good},
		"wrong local key": {func(s *ibverbs.SendBatch, a, _ *end) error {
			err := s.Send(1, 0, a.mr.Sub(0, 8))
			sge(&ibverbs.RawSends(s)[0]).Lkey ^= 0x5A
			return err
		}, unsendable},
		"read":          {func(s *ibverbs.SendBatch, a, b *end) error { return s.Read(1, b.mr.Remote(), 0, a.mr.Sub(0, 8)) }, unsupported},
		"fetch and add": {func(s *ibverbs.SendBatch, a, b *end) error { return s.FetchAdd(1, b.mr.Remote(), 1, 0, a.mr.Sub(0, 8)) }, unsupported},
		"compare and swap": {func(s *ibverbs.SendBatch, a, b *end) error {
			return s.CompareSwap(1, b.mr.Remote(), 0, 1, 0, a.mr.Sub(0, 8))
		}, unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUC}), r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUC})
			r.bring(a.qp, b.qp.Num(), ibverbs.QPStateRTS)
			r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
			pattern(a.mr.Bytes(), 1)
			a.postSend(t, func(s *ibverbs.SendBatch) error { return tt.fill(s, a, b) })
			requireVerdict(t, a.sendCQ, 1, a.qp, tt.want, r)
			require.Equal(t, make([]byte, 8), b.mr.Bytes()[:8])
			require.Equal(t, ibverbs.QPStateRTS, must(b.qp.State())(t))
		})
	}
}
