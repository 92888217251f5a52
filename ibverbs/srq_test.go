// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/racing"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func (r *rig) srq(config ibverbs.SRQConfig) *ibverbs.SRQ {
	r.t.Helper()
	r.have(testdevice.SRQs)
	config.RecvSegments = min(config.RecvSegments, r.attr.MaxSRQSGE)
	srq := must(r.pd.CreateSRQ(config))(r.t)
	r.cleanup(srq)
	return srq
}

// Several queue pairs take their receives from one queue.
func TestSRQSharedByQPs(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: depth})
	shared := r.cq(depth, nil)
	mr := r.alloc(depth*64, anyAccess)
	const qps, each = 3, 4

	recv := must(ibverbs.NewRecvBatch(qps*each, 1))(t)
	for i := range qps * each {
		require.NoError(t, recv.Recv(uint64(i), mr.Sub(i*64, 64)))
	}
	require.Equal(t, qps*each, must(srq.PostRecv(recv))(t))

	senders := map[uint32]byte{} // by the receiver's number
	var ends []*end
	for i := range qps {
		a := r.end(nil)
		b := &end{rig: r, qp: r.qp(ibverbs.QPConfig{SendCQ: shared, RecvCQ: shared, SendQueue: 1, RecvQueue: 1, SRQ: srq})}
		r.connect(a, linkTo(b.qp))
		r.connect(b, linkTo(a.qp))
		senders[b.qp.Num()] = byte(i + 1)
		ends = append(ends, a)
	}
	for i, a := range ends {
		pattern(a.mr.Bytes()[:64], byte(i+1))
		for range each {
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(9, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
			collectOK(t, a.sendCQ, 1)
		}
	}
	got := map[byte]int{}
	for _, wc := range collectOK(t, shared, qps*each) {
		seed := senders[wc.QPNum()]
		got[seed]++
		require.Equal(t, pattern(make([]byte, 64), seed), mr.Bytes()[wc.ID()*64:][:64])
	}
	require.Equal(t, map[byte]int{1: each, 2: each, 3: each}, got)
}

func TestSRQLimitAndSize(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 10, RecvSegments: 3})
	a := must(srq.Query())(t)
	require.GreaterOrEqual(t, a.RecvQueue, 10)
	require.GreaterOrEqual(t, a.RecvSegments, 3)
	require.Zero(t, a.Limit)
	require.NoError(t, srq.SetLimit(7))
	require.Equal(t, 7, must(srq.Query())(t).Limit)
	require.NoError(t, srq.Resize(200))
	a = must(srq.Query())(t)
	require.GreaterOrEqual(t, a.RecvQueue, 200)
	require.Equal(t, 7, a.Limit)
	require.NoError(t, srq.SetLimit(0))
	require.Zero(t, must(srq.Query())(t).Limit)

	for _, err := range []error{srq.SetLimit(-1), srq.Resize(-1), srq.Resize(math.MaxInt), srq.SetLimit(a.RecvQueue + 1)} {
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "ibv_modify_srq (SRQ ")
	}
	max := must(r.c.QueryDevice())(t)
	for _, config := range []ibverbs.SRQConfig{{RecvQueue: max.MaxSRQWR + 1}, {RecvQueue: 1, RecvSegments: max.MaxSRQSGE + 1}} {
		_, err := r.pd.CreateSRQ(config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "ibv_create_srq (PD ")
	}
}

func TestSRQPost(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 8})
	recv := must(ibverbs.NewRecvBatch(512, 0))(t)
	require.Zero(t, must(srq.PostRecv(recv))(t))
	for _, bad := range []*ibverbs.RecvBatch{nil, {}} {
		_, err := srq.PostRecv(bad)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "the batch is nil")
	}
	for i := range uint64(512) {
		require.NoError(t, recv.Recv(3000+i))
	}
	posted, err := srq.PostRecv(recv)
	require.ErrorIs(t, err, syscall.ENOMEM)
	var postErr *ibverbs.PostError
	require.ErrorAs(t, err, &postErr)
	require.Equal(t, posted, postErr.Index)
	require.Equal(t, uint64(3000+posted), postErr.ID)
	require.GreaterOrEqual(t, posted, 8)
	require.ErrorContains(t, err, "ibv_post_srq_recv (SRQ ")

	// A queue pair with it has no receive queue of its own.
	cq := r.cq(8, nil)
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SRQ: srq})
	r.toInit(qp)
	_, err = qp.PostRecv(recv)
	require.ErrorIs(t, err, syscall.EINVAL)
}

func TestSRQPostAllocatesNothing(t *testing.T) {
	racing.NeedsDirectCalls(t)
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 1024})
	recv := must(ibverbs.NewRecvBatch(4, 1))(t)
	mr := r.alloc(64, anyAccess)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		recv.Reset()
		for i := range uint64(4) {
			_ = recv.Recv(i, mr.All())
		}
		if n, err := srq.PostRecv(recv); n != 4 {
			panic(err)
		}
	}))
}

// A queue closes after the queue pairs that use it, and before its domain.
func TestSRQCloseOrder(t *testing.T) {
	r := open(t)
	r.have(testdevice.SRQs)
	pd := must(r.c.AllocPD())(t)
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))(t)
	cq := r.cq(1, nil)
	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SRQ: srq}))(t)
	require.Same(t, pd, srq.PD())
	busy := func(err error, children int, text string) {
		t.Helper()
		var busyErr *ibverbs.BusyError
		require.ErrorAs(t, err, &busyErr)
		require.Len(t, busyErr.Children, children)
		require.ErrorContains(t, err, text)
	}
	busy(srq.Close(), 1, "close first: QP ")
	busy(pd.Close(), 2, "SRQ ")
	require.NoError(t, srq.SetLimit(1), "nothing was closed")
	require.NoError(t, qp.Close())
	busy(pd.Close(), 1, "close first: SRQ ")
	require.NoError(t, srq.Close())
	require.NoError(t, srq.Close())
	require.NoError(t, pd.Close())

	recv := must(ibverbs.NewRecvBatch(1, 0))(t)
	_, postErr := srq.PostRecv(recv)
	_, queryErr := srq.Query()
	_, numErr := srq.Num()
	_, qpErr := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: srq})
	for _, err := range []error{postErr, queryErr, numErr, qpErr, srq.SetLimit(0), srq.Resize(1)} {
		require.ErrorIs(t, err, os.ErrClosed)
	}

	other := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(other)
	otherPD := must(other.AllocPD())(t)
	r.cleanup(otherPD)
	theirs := must(otherPD.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 1}))(t)
	r.cleanup(theirs)
	_, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: theirs})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "belongs to another open device")
	_, err = otherPD.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeTagMatching, RecvQueue: 1, CQ: cq, MaxTags: 1, MaxTagOps: 1})
	require.ErrorContains(t, err, "belongs to another open device")
}

// What rxe does not have.
func TestUnsupported(t *testing.T) {
	r := open(t)
	e := r.end(nil)
	cq := r.cq(8, nil)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 1})
	file := must(os.Create(t.TempDir() + "/domain"))(t)
	r.cleanup(file)
	config := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}
	with := func(change func(*ibverbs.QPConfig)) error {
		c := config
		change(&c)
		return second(r.pd.CreateQP(c))
	}
	for name, err := range map[string]error{
		"raw packet":  with(func(c *ibverbs.QPConfig) { c.Type = ibverbs.QPTypeRawPacket }),
		"scatter FCS": with(func(c *ibverbs.QPConfig) { c.CreateFlags = ibverbs.QPCreateScatterFCS }),
		"CVLAN":       with(func(c *ibverbs.QPConfig) { c.CreateFlags = ibverbs.QPCreateCVLANStripping }),
		"TSO":         with(func(c *ibverbs.QPConfig) { c.MaxTSOHeader = 64 }),
		"SRQ number":  second(srq.Num()),
		"query ECE":   second(e.qp.QueryECE()),
		"set ECE":     e.qp.SetECE(ibverbs.ECE{VendorID: 0x15B3, Options: 1}),
		"no ECE":      e.qp.SetECE(ibverbs.ECE{}),
	} {
		require.Error(t, err, name)
		require.True(t, errors.Is(err, errors.ErrUnsupported), "%s: %v", name, err)
	}
	if !testdevice.HasAttr(r.c, &r.attr, testdevice.XRC) {
		for name, err := range map[string]error{
			"anonymous XRCD": second(r.c.OpenXRCD(ibverbs.XRCDConfig{})),
			"XRCD of a file": second(r.c.OpenXRCD(ibverbs.XRCDConfig{File: file, Create: true, Exclusive: true})),
			"XRC send":       second(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: cq, SendQueue: 1})),
		} {
			require.ErrorIs(t, err, errors.ErrUnsupported, name)
		}
	}
	if r.attr.TagMatching.MaxTags == 0 {
		require.ErrorIs(t, second(r.pd.CreateSRQ(ibverbs.SRQConfig{
			Type: ibverbs.SRQTypeTagMatching, RecvQueue: 1, CQ: cq, MaxTags: 1, MaxTagOps: 1,
		})), errors.ErrUnsupported)
	}
	err := e.qp.SetRateLimit(ibverbs.RateLimit{KilobitsPerSecond: 1000})
	if !r.attr.PacketPacing.QPTypes.Has(ibverbs.QPTypeRC) {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	tooLong := int64(1) << 32 // converted when the test runs, to compile where int has 32 bits
	for _, limit := range []ibverbs.RateLimit{{MaxBurst: -1}, {MaxBurst: int(tooLong)}, {TypicalPacket: -1}, {TypicalPacket: 1 << 16}} {
		require.ErrorIs(t, e.qp.SetRateLimit(limit), syscall.EINVAL)
	}
	require.Zero(t, must(e.qp.DataInOrder(0))(t), "rxe does not know")
}

// A queue pair can be made for the ibv_wr functions.
func TestSendOps(t *testing.T) {
	r := open(t)
	const ops = ibverbs.SendOpsFlags(0x4 | 0x1) // send and RDMA write
	a, b := r.typedEnd(ibverbs.QPConfig{SendOps: ops}), r.typedEnd(ibverbs.QPConfig{})
	require.Equal(t, ops, a.qp.SendOps())
	require.True(t, ibverbs.HasWR(a.qp))
	require.Zero(t, b.qp.SendOps())
	require.False(t, ibverbs.HasWR(b.qp))
	r.bring(a.qp, b.qp.Num(), ibverbs.QPStateRTS)
	r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
	exchange(t, a, b)
	_, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendQueue: 1, SendOps: 1 << 30})
	require.Error(t, err)
}

// sharing makes a connected pair whose end b takes receives from the queue.
func (r *rig) sharing(srq *ibverbs.SRQ) (a, b *end) {
	r.t.Helper()
	a, b = r.end(nil), r.end(nil)
	b.qp = r.qp(ibverbs.QPConfig{SendCQ: b.sendCQ, RecvCQ: b.recvCQ, SendQueue: 4, SRQ: srq})
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	return a, b
}

// A queue pair that fails takes no receives of others along.
func TestSRQOutlivesQueuePair(t *testing.T) {
	r := open(t)
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 8})
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
			srq := r.srq(ibverbs.SRQConfig{RecvQueue: 8})
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
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 8, RecvSegments: 2})
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
	srq := r.srq(ibverbs.SRQConfig{RecvQueue: 64})
	before := must(srq.Query())(t).RecvQueue
	refused := func(n int) {
		t.Helper()
		err := srq.Resize(n)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "ibv_modify_srq (SRQ ")
		require.Equal(t, before, must(srq.Query())(t).RecvQueue)
	}
	refused(must(r.c.QueryDevice())(t).MaxSRQWR + 1)
	refused(0)
	require.NoError(t, srq.SetLimit(40))
	refused(20)
	require.NoError(t, srq.SetLimit(0))
	if r.device.SoftRoCE() && !r.device.SoftRoCESince(t, 7, 2) {
		return // older kernels' Soft-RoCE crashes
	}
	recv := must(ibverbs.NewRecvBatch(50, 0))(t)
	for i := range uint64(50) {
		require.NoError(t, recv.Recv(i))
	}
	require.Equal(t, 50, must(srq.PostRecv(recv))(t))
	refused(20)
}
