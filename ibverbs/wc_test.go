// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// requireWC checks a failed completion, as a value and as an error.
func requireWC(t testing.TB, wc ibverbs.WC, id uint64, qp *ibverbs.QP, status ibverbs.WCStatus, class ibverbs.WCClass) {
	t.Helper()
	require.Equal(t, status, wc.Status(), "%v", wc.Err())
	require.Equal(t, id, wc.ID())
	require.Equal(t, qp.Num(), wc.QPNum())
	require.ErrorIs(t, wc.Err(), status)
	var wcErr *ibverbs.WCError
	require.ErrorAs(t, wc.Err(), &wcErr)
	require.Equal(t, class, wcErr.Class())
	require.Contains(t, wc.Err().Error(), status.String())
}

func TestWCErrors(t *testing.T) {
	tests := map[string]struct {
		do func(t *testing.T, r *rig, a, b *end) // posts ID 1 to a, maybe ID 2 to b
		a  verdict
		b  *verdict // nil: nothing completes there
	}{
		"wrong remote key": {
			do: func(t *testing.T, _ *rig, a, b *end) {
				remote := b.mr.Remote()
				remote.RKey ^= 0x5A
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(1, remote, 0, a.mr.Sub(0, 8)) })
			},
			a: remoteAccess,
		},
		"beyond the peer's region": {
			do: func(t *testing.T, _ *rig, a, b *end) {
				remote := beyond(b.mr.Remote(), mrSize-4, 8)
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Read(1, remote, 0, a.mr.Sub(0, 8)) })
			},
			a: remoteAccess,
		},
		"region without remote write": {
			do: func(t *testing.T, r *rig, a, _ *end) {
				readOnly := r.alloc(64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(1, readOnly.Remote(), 0, a.mr.Sub(0, 8)) })
			},
			a: remoteAccess,
		},
		"peer's region closed": {
			do: func(t *testing.T, r *rig, a, _ *end) {
				mr := must(r.pd.Alloc(64, anyAccess))(t)
				remote := mr.Remote()
				require.NoError(t, mr.Close())
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(1, remote, 0, a.mr.Sub(0, 8)) })
			},
			a: remoteAccess,
		},
		"read into a region closed after filling": {
			do: func(t *testing.T, r *rig, a, b *end) {
				mr := must(r.pd.Alloc(64, anyAccess))(t)
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := s.Read(1, b.mr.Remote(), 0, mr.All())
					require.NoError(t, mr.Close())
					return err
				})
			},
			a: localProtection,
		},
		"send from a region closed after filling": {
			do: func(t *testing.T, r *rig, a, b *end) {
				mr := must(r.pd.Alloc(64, anyAccess))(t)
				b.postRecv(t, 2, b.mr.All())
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := s.Send(1, 0, mr.All())
					require.NoError(t, mr.Close())
					return err
				})
			},
			a: unsendable,
		},
		"message longer than the receive": {
			do: func(t *testing.T, _ *rig, a, b *end) {
				b.postRecv(t, 2, b.mr.Sub(0, 10))
				a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 11)) })
			},
			a: verdict{ibverbs.WCRemoteInvalidRequest, instead(ibverbs.WCRemoteOperation)},
			b: &verdict{ibverbs.WCLocalLength, instead(ibverbs.WCLocalQPOperation)},
		},
	}
	r := open(t)
	r.have(testdevice.Queries)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.pair(nil)
			tt.do(t, r, a, b)
			// Not signaled: a failure completes all the same.
			requireVerdict(t, a.sendCQ, 1, a.qp, tt.a, r)
			require.Equal(t, ibverbs.QPStateError, must(a.qp.State())(t))
			if tt.b != nil {
				requireVerdict(t, b.recvCQ, 2, b.qp, *tt.b, r)
			}
		})
	}
}

func TestRNRRetryExceeded(t *testing.T) {
	r := open(t)
	a, b := r.end(nil), r.end(nil)
	l := linkTo(b.qp)
	l.rnrRetry = 1
	r.connect(a, l)
	r.connect(b, linkTo(a.qp))
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0) }) // b has no receive
	requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRNRRetryExceeded, ibverbs.WCClassTransport)
}

func TestRetryExceeded(t *testing.T) {
	r := open(t)
	a := r.end(nil)
	r.connect(a, route{peer: 0xFFFFF0, timeout: 8, retries: 1}) // no such queue pair; 1 ms
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
}

// What is posted when the QP fails completes as flushed, in its order, and so
// does what is posted later.
func TestFlush(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	a, b := r.pair(nil)
	const n = 10
	b.recv.Reset()
	for i := range uint64(n) {
		require.NoError(t, b.recv.Recv(i, b.mr.All()))
	}
	require.Equal(t, n, must(b.qp.PostRecv(b.recv))(t))
	require.NoError(t, b.qp.SetError())
	require.Equal(t, ibverbs.QPStateError, must(b.qp.State())(t))
	for i, wc := range collect(t, b.recvCQ, n) {
		requireWC(t, wc, uint64(i), b.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
	}

	require.NoError(t, a.qp.SetError())
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(77, 0) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 77, a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
}

// Receives that a message of 8 bytes does not fit into, or whose memory the
// device cannot write: both ends learn of it.
func TestBadReceives(t *testing.T) {
	r := open(t)
	closedAddr, closedLKey, _ := r.closedKeys()
	theirs := r.foreign()
	inaccessible := func(spoil func(s *libibverbs.Sge)) func(wr *libibverbs.RecvWr) {
		return func(wr *libibverbs.RecvWr) { spoil(wr.SgList) }
	}
	// Soft-RoCE has one status of each end for all of them.
	operation := verdict{spec: ibverbs.WCRemoteOperation}
	protection := verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation)}
	tooLong := verdict{ibverbs.WCRemoteInvalidRequest, instead(ibverbs.WCRemoteOperation)}
	length := verdict{ibverbs.WCLocalLength, instead(ibverbs.WCLocalQPOperation)}
	for name, tt := range map[string]struct {
		spoil  func(wr *libibverbs.RecvWr)
		sender verdict
		recv   verdict
	}{
		"too small":      {inaccessible(func(s *libibverbs.Sge) { s.Length = 7 }), tooLong, length},
		"no segment":     {func(wr *libibverbs.RecvWr) { wr.SgList, wr.NumSge = nil, 0 }, tooLong, length},
		"wrong key":      {inaccessible(func(s *libibverbs.Sge) { s.Lkey ^= 0x5A }), operation, protection},
		"closed region":  {inaccessible(func(s *libibverbs.Sge) { s.Lkey, s.Addr = closedLKey, closedAddr }), operation, protection},
		"another domain": {inaccessible(func(s *libibverbs.Sge) { s.Lkey, s.Addr = theirs.LKey(), theirs.Remote().Addr }), operation, protection},
		"in front":       {inaccessible(func(s *libibverbs.Sge) { s.Addr -= 2048 }), operation, protection},
		"over the end":   {inaccessible(func(s *libibverbs.Sge) { s.Addr += mrSize - 1024 - 4 }), operation, protection},
		"beyond the region, more than the message needs": {inaccessible(func(s *libibverbs.Sge) { s.Length = mrSize }), good, good},
	} {
		for _, kind := range []string{"send", "send imm"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				require.NoError(t, b.recv.Recv(2, b.mr.Sub(1024, 8)))
				tt.spoil(&ibverbs.RawRecvs(b.recv)[0])
				require.Equal(t, 1, must(b.qp.PostRecv(b.recv))(t))
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := requests[kind].add(s, ibverbs.RemoteBuffer{}, a.mr.Sub(64, 8))
					ibverbs.RawSends(s)[0].SendFlags |= ibverbs.SendSignaled
					return err
				})
				requireVerdict(t, a.sendCQ, 1, a.qp, tt.sender, r)
				requireVerdict(t, b.recvCQ, 2, b.qp, tt.recv, r)
			})
		}
	}
}

// A write with immediate data that the peer refuses fails the peer's receive.
func TestRefusedWriteImm(t *testing.T) {
	r := open(t)
	a, b := r.opPair(0, fullAccess)
	requests["write imm"].spoiled(t, a, b, func(wr *libibverbs.SendWr) { wr.Wr.Rdma().Rkey ^= 0x5A })
	requireVerdict(t, a.sendCQ, 1, a.qp, remoteAccess, r)
	access := verdict{ibverbs.WCLocalAccess, instead(ibverbs.WCRemoteAccess)}
	requireVerdict(t, b.recvCQ, 2, b.qp, access, r)
}
