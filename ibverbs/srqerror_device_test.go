package ibverbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// sharing makes a connected pair whose end b takes receives from the queue.
func (r *rig) sharing(srq *ibverbs.SRQ) (a, b *end) {
	r.t.Helper()
	a, b = r.end(nil), r.end(nil)
	b.qp = r.qp(ibverbs.QPConfig{SendCQ: b.sendCQ, RecvCQ: b.recvCQ, MaxSendWR: 4, SRQ: srq})
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	return a, b
}

// A queue pair that fails takes no receives of others along.
func TestSRQOutlivesQueuePair(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{MaxWR: 8})
	_, b := r.sharing(srq)
	c, d := r.sharing(srq)
	recv := must(ibverbs.NewRecvBatch(2, 1))(t)
	require.NoError(t, errors.Join(recv.Recv(1, b.mr.Sub(0, 8)), recv.Recv(2, b.mr.Sub(8, 8))))
	require.Equal(t, 2, must(srq.PostRecv(recv))(t))
	require.NoError(t, b.qp.SetError())
	for i, id := range []uint64{1, 2} {
		c.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(9, ibverbs.SendSignaled, c.mr.Sub(0, 8)) })
		collectOK(t, c.sendCQ, 1)
		require.Equal(t, id, collectOK(t, d.recvCQ, 1)[0].ID(), i)
	}
	require.Zero(t, must(b.recvCQ.Poll(make([]ibverbs.WC, 1)))(t), "nothing was flushed")
}

// Memory of a receive that the device cannot write: both ends learn of it, and
// the queue serves others.
func TestBadSRQReceives(t *testing.T) {
	r := open(t)
	theirs := r.foreign()
	protection := verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation)}
	for name, tt := range map[string]struct {
		spoil        func(s *libibverbs.Sge)
		sender, recv verdict
	}{
		"wrong key": {func(s *libibverbs.Sge) { s.Lkey ^= 0x5A }, verdict{spec: ibverbs.WCRemoteOperation}, protection},
		"another domain": {func(s *libibverbs.Sge) {
			s.Lkey, s.Addr = theirs.LKey(), theirs.Remote().Addr
		}, verdict{spec: ibverbs.WCRemoteOperation}, protection},
		"too small": {
			func(s *libibverbs.Sge) { s.Length = 4 },
			verdict{ibverbs.WCRemoteInvalidRequest, instead(ibverbs.WCRemoteOperation)},
			verdict{ibverbs.WCLocalLength, instead(ibverbs.WCLocalQPOperation)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			srq := r.srq(ibverbs.SRQConfig{MaxWR: 8})
			a, b := r.sharing(srq)
			c, d := r.sharing(srq)
			require.NoError(t, errors.Join(b.recv.Recv(2, b.mr.Sub(0, 8)), b.recv.Recv(3, b.mr.Sub(0, 8))))
			tt.spoil(ibverbs.RawRecvs(b.recv)[0].SgList)
			require.Equal(t, 2, must(srq.PostRecv(b.recv))(t))
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 8)) })
			requireVerdict(t, a.sendCQ, 1, a.qp, tt.sender, r)
			requireVerdict(t, b.recvCQ, 2, b.qp, tt.recv, r)
			c.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, c.mr.Sub(0, 8)) })
			require.EqualValues(t, 3, collectOK(t, d.recvCQ, 1)[0].ID())
		})
	}
}

// A receive with more segments than the queue was made for ends the list.
func TestTooManySegmentsOfReceives(t *testing.T) {
	r := open(t)
	mr := r.alloc(64, anyAccess)
	many := make([]ibverbs.Segment, 64)
	for i := range many {
		many[i] = mr.Sub(i, 1)
	}
	e := r.end(nil)
	r.toInit(e.qp)
	srq := r.srq(ibverbs.SRQConfig{MaxWR: 8, MaxSGE: 2})
	for op, post := range map[string]func(*ibverbs.RecvBatch) (int, error){
		"ibv_post_recv (QP ": e.qp.PostRecv, "ibv_post_srq_recv (SRQ ": srq.PostRecv,
	} {
		recv := must(ibverbs.NewRecvBatch(3, len(many)))(t)
		require.NoError(t, errors.Join(recv.Recv(1, mr.All()), recv.Recv(2, many...), recv.Recv(3)))
		n, err := post(recv)
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "request 1 of the batch (ID 2), the ones before it were posted: "+op)
	}
}

// The queue cannot become smaller than its limit, or than what is posted, nor
// larger than the device has.
func TestSRQResizeRefused(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{MaxWR: 64})
	before := must(srq.Query())(t).MaxWR
	refused := func(n int) {
		t.Helper()
		err := srq.Resize(n)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "ibv_modify_srq (SRQ ")
		require.Equal(t, before, must(srq.Query())(t).MaxWR)
	}
	refused(must(r.c.QueryDevice())(t).MaxSRQWR + 1)
	refused(0)
	require.NoError(t, srq.SetLimit(40))
	refused(20)
	require.NoError(t, srq.SetLimit(0))
	if strings.HasPrefix(r.device.Name, "rxe") && !softRoCESince(t, 7, 2) {
		return // older kernels' Soft-RoCE crashes
	}
	recv := must(ibverbs.NewRecvBatch(50, 0))(t)
	for i := range uint64(50) {
		require.NoError(t, recv.Recv(i))
	}
	require.Equal(t, 50, must(srq.PostRecv(recv))(t))
	refused(20)
}
