package ibverbs_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

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

// A datagram that nobody takes is lost, and its sender does not learn of it.
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

// A receive needs room for the header of the route before the datagram. Without
// it fails; or, by Soft-RoCE since Linux 6.10, it waits for a shorter one.
func TestDatagramWithoutRoom(t *testing.T) {
	r := open(t)
	for name, room := range map[string]int{"too small": ibverbs.GRHLen + 99, "no room for the header": 100} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b, to := r.datagrams()
			b.postRecv(t, 7, b.mr.Sub(0, room))
			send := func(id uint64, size int) {
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.SendTo(id, to, ibverbs.SendSignaled, a.mr.Sub(0, size)) })
				require.Equal(t, id, collectOK(t, a.sendCQ, 1)[0].ID())
			}
			send(1, 100)
			if softRoCESince(t, 6, 10) {
				send(2, room-ibverbs.GRHLen)
				require.Equal(t, room, collectOK(t, b.recvCQ, 1)[0].ByteLen())
				return
			}
			requireVerdict(t, b.recvCQ, 7, b.qp, verdict{ibverbs.WCLocalLength, instead(ibverbs.WCLocalQPOperation)}, r)
			require.Equal(t, ibverbs.QPStateError, must(b.qp.State())(t))
		})
	}
}

// What cannot be sent at all fails at the sender.
func TestDatagramThatCannotBeSent(t *testing.T) {
	r := open(t)
	theirs := r.foreign()
	operation := verdict{ibverbs.WCLocalQPOperation, unsendable.rxe}
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
		}, operation},
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
	operation := verdict{ibverbs.WCLocalQPOperation, unsendable.rxe}
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
		"read":          {func(s *ibverbs.SendBatch, a, b *end) error { return s.Read(1, b.mr.Remote(), 0, a.mr.Sub(0, 8)) }, operation},
		"fetch and add": {func(s *ibverbs.SendBatch, a, b *end) error { return s.FetchAdd(1, b.mr.Remote(), 1, 0, a.mr.Sub(0, 8)) }, operation},
		"compare and swap": {func(s *ibverbs.SendBatch, a, b *end) error {
			return s.CompareSwap(1, b.mr.Remote(), 0, 1, 0, a.mr.Sub(0, 8))
		}, operation},
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
