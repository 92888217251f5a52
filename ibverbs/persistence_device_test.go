package ibverbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// late makes a connected pair with an operation that not every kernel and
// library has; without it, nil, and the error must say that.
func late(t *testing.T, r *rig, op libibverbs.QpCreateSendOpsFlags, access ibverbs.AccessFlags) (a, b *end) {
	t.Helper()
	cq := r.cq(1, nil)
	qp, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, SendOps: op})
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Logf("not here: %v", err)
		return nil, nil
	}
	require.NoError(t, qp.Close())
	mr, err := r.pd.Alloc(64, access)
	if err != nil {
		t.Logf("not with this kernel: %v", err)
		return nil, nil
	}
	require.NoError(t, mr.Close())
	return r.opPair(rcOps|op, access)
}

func TestAtomicWrite(t *testing.T) {
	r := open(t)
	a, b := late(t, r, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE, fullAccess)
	if a == nil {
		return
	}
	data := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.AtomicWrite(1, b.mr.Remote().Sub(64, 8), data, ibverbs.SendSignaled)
	})
	wc := collect(t, a.sendCQ, 1)[0]
	if wc.Err() != nil { // the library has it, the kernel has not
		t.Logf("not with this kernel: %v", wc.Err())
		require.ErrorIs(t, wc.Err(), ibverbs.WCLocalQPOperation)
		return
	}
	require.Equal(t, ibverbs.WCAtomicWrite, wc.Opcode())
	require.Equal(t, data[:], b.mr.Sub(64, 8).Bytes())
}

func TestFlushMemory(t *testing.T) {
	r := open(t)
	a, b := late(t, r, libibverbs.IBV_QP_EX_WITH_FLUSH, fullAccess|ibverbs.AccessFlushGlobal)
	if a == nil {
		return
	}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		to := b.mr.Remote().Sub(64, 1000)
		return errors.Join(s.Write(1, to, 0, a.mr.Sub(0, 1000)), s.Flush(2, to, ibverbs.FlushGlobal, ibverbs.SendSignaled),
			s.FlushRegion(3, to, ibverbs.FlushGlobal, ibverbs.SendSignaled))
	})
	for i, wc := range collectOK(t, a.sendCQ, 2) {
		require.Equal(t, ibverbs.WCFlush, wc.Opcode())
		require.EqualValues(t, i+2, wc.ID())
	}
	require.Equal(t, a.mr.Sub(0, 1000).Bytes(), b.mr.Sub(64, 1000).Bytes())

	// A region must allow it.
	plain := r.alloc(64, anyAccess)
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Flush(4, plain.Remote(), ibverbs.FlushGlobal, 0) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 4, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
}
