// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// xrcRig is a domain with a shared receive queue and its completion queue.
type xrcRig struct {
	*rig
	domain *ibverbs.XRCD
	cq     *ibverbs.CQ
	srq    *ibverbs.SRQ
	number uint32
	mr     *ibverbs.MR // of the queue's protection domain
}

const xrcDepth = 32

func openXRC(t testing.TB) *xrcRig {
	t.Helper()
	r := open(t)
	r.have(testdevice.XRC)
	x := &xrcRig{rig: r, domain: must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t)}
	r.cleanup(x.domain)
	x.cq = r.cq(4*xrcDepth, nil)
	x.srq, x.number = x.queue(r.pd, x.cq)
	x.mr = r.alloc(1<<16, anyAccess|ibverbs.AccessRemoteAtomic)
	return x
}

// queue makes a shared receive queue of the domain.
func (x *xrcRig) queue(pd *ibverbs.PD, cq *ibverbs.CQ) (*ibverbs.SRQ, uint32) {
	x.t.Helper()
	srq := must(pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: xrcDepth, XRCD: x.domain, CQ: cq}))(x.t)
	x.cleanup(srq)
	number := must(srq.Num())(x.t)
	require.NotZero(x.t, number)
	return srq, number
}

// xrcPair is a sending queue pair that is connected to a receiving one.
type xrcPair struct {
	x     *xrcRig
	to    *ibverbs.QP
	from  *ibverbs.QP
	cq    *ibverbs.CQ // of the requests
	mr    *ibverbs.MR
	batch *ibverbs.SendBatch
}

func (x *xrcRig) pair(ops ibverbs.SendOpsFlags) *xrcPair {
	x.t.Helper()
	p := &xrcPair{x: x, cq: x.rig.cq(xrcDepth, nil), mr: x.alloc(1<<16, anyAccess), batch: must(ibverbs.NewSendBatch(xrcDepth, 1))(x.t)}
	p.from = must(x.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: p.cq, SendQueue: xrcDepth, SendOps: ops}))(x.t)
	x.cleanup(p.from)
	p.to = must(x.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: x.domain}))(x.t)
	x.cleanup(p.to)
	p.connect()
	return p
}

func (p *xrcPair) connect() {
	t, r := p.x.t, p.x.rig
	mtu := must(r.c.QueryPort(r.device.Port))(t).ActiveMTU
	init := ibverbs.InitAttr{Port: r.device.Port, Access: anyAccess | ibverbs.AccessRemoteAtomic}
	require.NoError(t, p.from.ToInit(init))
	require.NoError(t, p.to.ToInit(init))
	require.NoError(t, p.from.ToRTR(ibverbs.RTRAttr{Path: r.path(), PathMTU: mtu, DestQPNum: p.to.Num(), RecvPSN: psn}))
	require.NoError(t, p.to.ToRTR(ibverbs.RTRAttr{
		Path: r.path(), PathMTU: mtu, DestQPNum: p.from.Num(), RecvPSN: psn, MaxDestReadAtomic: r.reads(2), MinRNRTimer: time.Millisecond,
	}))
	require.NoError(t, p.to.ToRTS(ibverbs.RTSAttr{SendPSN: psn}))
	require.NoError(t, p.from.ToRTS(ibverbs.RTSAttr{
		SendPSN: psn, Timeout: time.Second, RetryCount: 5, RNRRetryCount: ibverbs.RNRRetryForever, MaxReadAtomic: r.reads(2),
	}))
}

// post posts one request that names a queue.
func (p *xrcPair) post(number uint32, add func(b *ibverbs.SendBatch) error) {
	p.x.t.Helper()
	p.batch.Reset()
	require.NoError(p.x.t, add(p.batch))
	require.NoError(p.x.t, p.batch.WR(0).SetXRCSRQ(number))
	require.Equal(p.x.t, 1, must(p.from.PostSend(p.batch))(p.x.t))
}

func (p *xrcPair) send(number uint32, n int) {
	p.x.t.Helper()
	p.post(number, func(b *ibverbs.SendBatch) error { return b.Send(1, ibverbs.SendSignaled, p.mr.Sub(0, n)) })
}

func (x *xrcRig) recv(srq *ibverbs.SRQ, id uint64, segments ...ibverbs.Segment) {
	x.t.Helper()
	batch := must(ibverbs.NewRecvBatch(1, 1))(x.t)
	require.NoError(x.t, batch.Recv(id, segments...))
	require.Equal(x.t, 1, must(srq.PostRecv(batch))(x.t))
}

// A file names the same domain each time, and none without one.
func TestXRCD(t *testing.T) {
	r := open(t)
	r.have(testdevice.XRC)
	file := must(os.Create(t.TempDir() + "/domain"))(t)
	r.cleanup(file)
	_, err := r.c.OpenXRCD(ibverbs.XRCDConfig{File: file})
	require.ErrorIs(t, err, syscall.EAGAIN, "the file has no domain")
	one := must(r.c.OpenXRCD(ibverbs.XRCDConfig{File: file, Create: true, Exclusive: true}))(t)
	_, err = r.c.OpenXRCD(ibverbs.XRCDConfig{File: file, Create: true, Exclusive: true})
	require.ErrorIs(t, err, syscall.EINVAL, "the file has one")
	same := must(r.c.OpenXRCD(ibverbs.XRCDConfig{File: file}))(t)
	again := must(os.Open(file.Name()))(t)
	r.cleanup(again)
	sameToo := must(r.c.OpenXRCD(ibverbs.XRCDConfig{File: again, Create: true}))(t)
	other := must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t)

	qp := must(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: one}))(t)
	for _, x := range []*ibverbs.XRCD{one, same, sameToo} {
		opened := must(x.OpenQP(qp.Num()))(t)
		require.Equal(t, qp.Num(), opened.Num())
		require.Equal(t, ibverbs.QPTypeXRCRecv, opened.Type())
		require.Nil(t, opened.PD())
		var busy *ibverbs.BusyError
		require.ErrorAs(t, x.Close(), &busy)
		require.NoError(t, opened.Close())
	}
	for _, number := range []uint32{qp.Num() + 1, 1<<24 - 1} {
		_, err = one.OpenQP(number)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = other.OpenQP(qp.Num())
	require.ErrorIs(t, err, syscall.EINVAL, "of another domain")
	require.NoError(t, qp.Close())
	for _, x := range []*ibverbs.XRCD{one, same, sameToo, other} {
		require.NoError(t, x.Close())
	}
	_, err = r.c.OpenXRCD(ibverbs.XRCDConfig{File: file})
	require.ErrorIs(t, err, syscall.EAGAIN, "the domain went with the last that had it open")
}

// Every operation reaches the queue and the memory of its protection domain,
// with ibv_post_send and with ibv_wr_*.
func TestXRCOperations(t *testing.T) {
	for name, ops := range map[string]ibverbs.SendOpsFlags{
		"post_send": 0,
		"wr": libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE |
			libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_READ |
			libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	} {
		t.Run(name, func(t *testing.T) {
			x := openXRC(t)
			x.have(testdevice.Atomics)
			p := x.pair(ops)
			require.Equal(t, ops != 0, ibverbs.HasWR(p.from))
			message := pattern(p.mr.Bytes()[:9000], 1)
			remote := x.mr.Remote()
			for i, tt := range []struct {
				add  func(b *ibverbs.SendBatch) error
				recv bool
				imm  bool
				at   int // offset in x.mr at which the message is then
			}{
				{func(b *ibverbs.SendBatch) error { return b.Send(1, ibverbs.SendSignaled, p.mr.Sub(0, 9000)) }, true, false, 0},
				{func(b *ibverbs.SendBatch) error { return b.SendImm(1, 7, ibverbs.SendSignaled, p.mr.Sub(0, 9000)) }, true, true, 0},
				{func(b *ibverbs.SendBatch) error {
					return b.Write(1, remote.Sub(10000, 9000), ibverbs.SendSignaled, p.mr.Sub(0, 9000))
				}, false, false, 10000},
				{func(b *ibverbs.SendBatch) error {
					return b.WriteImm(1, remote.Sub(20000, 9000), 7, ibverbs.SendSignaled, p.mr.Sub(0, 9000))
				}, true, true, 20000},
			} {
				clear(x.mr.Bytes())
				if tt.recv {
					x.recv(x.srq, uint64(100+i), x.mr.Sub(0, 10000))
				}
				p.post(x.number, tt.add)
				require.EqualValues(t, 1, collectOK(t, p.cq, 1)[0].ID())
				if tt.recv {
					wc := collectOK(t, x.cq, 1)[0]
					require.EqualValues(t, 100+i, wc.ID())
					require.Equal(t, p.to.Num(), wc.QPNum())
					require.Equal(t, 9000, wc.ByteLen())
					imm, has := wc.Imm()
					require.Equal(t, tt.imm, has)
					if has {
						require.EqualValues(t, 7, imm)
					}
				}
				require.Equal(t, message, x.mr.Bytes()[tt.at:tt.at+9000])
			}
			p.post(x.number, func(b *ibverbs.SendBatch) error {
				return b.Read(1, remote.Sub(20000, 9000), ibverbs.SendSignaled, p.mr.Sub(30000, 9000))
			})
			collectOK(t, p.cq, 1)
			require.Equal(t, message, p.mr.Bytes()[30000:39000])
			clear(x.mr.Bytes()[:8])
			p.post(x.number, func(b *ibverbs.SendBatch) error {
				return b.FetchAdd(1, remote.Sub(0, 8), 5, ibverbs.SendSignaled, p.mr.Sub(40000, 8))
			})
			p.post(x.number, func(b *ibverbs.SendBatch) error {
				return b.CompareSwap(1, remote.Sub(0, 8), 5, 6, ibverbs.SendSignaled, p.mr.Sub(40008, 8))
			})
			collectOK(t, p.cq, 2)
			require.EqualValues(t, 6, x.mr.Bytes()[0]+x.mr.Bytes()[7])
		})
	}
}

// One connection reaches the queues of several protection domains, and the
// keys of one are of no use with another.
func TestXRCQueues(t *testing.T) {
	x := openXRC(t)
	p := x.pair(0)
	pd := must(x.c.AllocPD())(t)
	x.cleanup(pd)
	mr := must(pd.Alloc(4096, anyAccess))(t)
	x.cleanup(mr)
	cq := x.rig.cq(8, nil)
	srq, number := x.queue(pd, cq)
	require.NotEqual(t, x.number, number)
	x.recv(x.srq, 1, x.mr.Sub(0, 100))
	x.recv(srq, 2, mr.Sub(0, 100))
	p.send(number, 10)
	require.EqualValues(t, 2, collectOK(t, cq, 1)[0].ID())
	p.send(x.number, 10)
	require.EqualValues(t, 1, collectOK(t, x.cq, 1)[0].ID())
	collectOK(t, p.cq, 2)
	write := func(remote ibverbs.RemoteBuffer) func(b *ibverbs.SendBatch) error {
		return func(b *ibverbs.SendBatch) error { return b.Write(1, remote, ibverbs.SendSignaled, p.mr.Sub(0, 64)) }
	}
	p.post(number, write(mr.Remote().Sub(0, 64)))
	p.post(x.number, write(x.mr.Remote().Sub(0, 64)))
	collectOK(t, p.cq, 2)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, cq.Close(), &busy, "the shared receive queue uses it")
	p.post(number, write(x.mr.Remote().Sub(0, 64)))
	require.Equal(t, ibverbs.WCRemoteAccess, collect(t, p.cq, 1)[0].Status(), "a key of another domain")
}

// What names no queue of the domain is refused, and the receiving queue pair
// says that it takes no more receives.
func TestXRCRefused(t *testing.T) {
	for name, number := range map[string]func(x *xrcRig) uint32{
		"no queue":   func(x *xrcRig) uint32 { return x.number ^ 1 },
		"0":          func(*xrcRig) uint32 { return 0 },
		"too large":  func(x *xrcRig) uint32 { return 1 << 23 &^ x.number },
		"was closed": func(x *xrcRig) uint32 { require.NoError(x.t, x.srq.Close()); return x.number },
		"other domain": func(x *xrcRig) uint32 {
			domain := must(x.c.OpenXRCD(ibverbs.XRCDConfig{}))(x.t)
			x.cleanup(domain)
			other := *x
			other.domain = domain
			_, number := other.queue(x.pd, x.cq)
			return number
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := openXRC(t)
			p := x.pair(0)
			to := number(x)
			p.send(to, 10)
			require.Equal(t, ibverbs.WCRemoteAccess, collect(t, p.cq, 1)[0].Status())
			select {
			case <-p.to.LastWQEReached():
			case <-limit(t).Done():
				require.Fail(t, "no event")
			}
			soon(t, "the queue pair has failed", func() bool { _, failed := p.to.Failure(); return failed })
			event, _ := p.to.Failure()
			require.Equal(t, ibverbs.EventQPAccessError, event)
			require.Equal(t, ibverbs.QPStateError, must(p.to.State())(t))
		})
	}
}

// A queue pair lives until the last that has it open closes it.
func TestXRCQueuePairIsOpenTwice(t *testing.T) {
	x := openXRC(t)
	p := x.pair(0)
	first := must(x.domain.OpenQP(p.to.Num()))(t)
	x.cleanup(first)
	require.NoError(t, p.to.Close())
	x.recv(x.srq, 1, x.mr.Sub(0, 100))
	p.send(x.number, 10)
	collectOK(t, p.cq, 1)
	require.Equal(t, first.Num(), collectOK(t, x.cq, 1)[0].QPNum())
	second := must(x.domain.OpenQP(first.Num()))(t)
	require.Equal(t, ibverbs.QPStateRTS, must(second.State())(t))
	require.NoError(t, second.SetError())
	for _, qp := range []*ibverbs.QP{first, second} {
		select {
		case <-qp.LastWQEReached():
		case <-limit(t).Done():
			require.Fail(t, "no event")
		}
		require.Equal(t, ibverbs.QPStateError, must(qp.State())(t))
	}
	require.NoError(t, second.Close())
}

// Queue pairs of the two types do not post what they do not have.
func TestXRCPostsNothingElse(t *testing.T) {
	x := openXRC(t)
	p := x.pair(0)
	send := must(ibverbs.NewSendBatch(1, 1))(t)
	require.NoError(t, send.Send(1, 0, p.mr.Sub(0, 1)))
	recv := must(ibverbs.NewRecvBatch(1, 1))(t)
	require.NoError(t, recv.Recv(1, p.mr.Sub(0, 1)))
	_, err := p.to.PostSend(send)
	require.ErrorIs(t, err, syscall.EINVAL)
	for _, qp := range []*ibverbs.QP{p.from, p.to} {
		_, err = qp.PostRecv(recv)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Zero(t, p.from.Cap().RecvQueue)
	_, err = x.pd.CreateQP(ibverbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, SRQ: x.srq, SendQueue: 1})
	require.ErrorIs(t, err, syscall.EINVAL, "the shared receive queue is not for it")
}

// A shared receive queue is closed again and again while many senders use it:
// requests succeed or are refused, and nothing hangs.
func TestXRCQueuesAreClosedUnderTraffic(t *testing.T) {
	x := openXRC(t)
	const senders = 4
	var pairs []*xrcPair
	for range senders {
		pairs = append(pairs, x.pair(0))
	}
	for range 20 {
		srq, number := x.queue(x.pd, x.cq)
		batch := must(ibverbs.NewRecvBatch(xrcDepth, 1))(t)
		for i := range uint64(xrcDepth) {
			require.NoError(t, batch.Recv(i, x.mr.Sub(0, 1<<16)))
		}
		require.Equal(t, xrcDepth, must(srq.PostRecv(batch))(t))
		for _, p := range pairs {
			for range 4 {
				p.send(number, 1<<15)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- srq.Close() }()
		for _, p := range pairs {
			failed := false
			for _, wc := range collect(t, p.cq, 4) {
				require.True(t, !failed || wc.Status() == ibverbs.WCFlushed)
				failed = failed || wc.Status() != ibverbs.WCSuccess
			}
			if failed {
				require.NoError(t, p.to.ToReset())
				require.NoError(t, p.from.ToReset())
				p.connect()
			}
		}
		require.NoError(t, <-closed)
		require.Zero(t, must(x.cq.Poll(make([]ibverbs.WC, 1)))(t), "completions of a queue that is closed")
	}
}

// A device without XRC says so.
func TestXRCUnsupported(t *testing.T) {
	r := open(t)
	if testdevice.HasAttr(r.c, &r.attr, testdevice.XRC) {
		return
	}
	_, err := r.c.OpenXRCD(ibverbs.XRCDConfig{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
