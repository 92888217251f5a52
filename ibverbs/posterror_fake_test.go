//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// Only what the queue pair was made with is called, whatever there seems to be.
func TestExtendedPostRefuses(t *testing.T) {
	mr := fakeMR(t, 64, 1)
	remote := RemoteBuffer{Addr: 8, Len: 8}
	for name, tt := range map[string]struct {
		op    libibverbs.QpCreateSendOpsFlags
		clear func(qp *libibverbs.QpEx)
		add   func(b *SendBatch) error
	}{
		"send": {
			libibverbs.IBV_QP_EX_WITH_SEND, func(qp *libibverbs.QpEx) { qp.WrSend = nil },
			func(b *SendBatch) error { return b.Send(9, 0) },
		},
		"flush": {
			libibverbs.IBV_QP_EX_WITH_FLUSH, func(qp *libibverbs.QpEx) { qp.WrFlush = nil },
			func(b *SendBatch) error { return b.Flush(9, remote, FlushGlobal, 0) },
		},
		"atomic write": {
			libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE, func(qp *libibverbs.QpEx) { qp.WrAtomicWrite = nil },
			func(b *SendBatch) error { return b.AtomicWrite(9, remote, [8]byte{}, 0) },
		},
		"setter": {
			0, func(qp *libibverbs.QpEx) { qp.WrSetSge = nil },
			func(b *SendBatch) error { return b.Send(9, 0, mr.All()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDevice(t)
			b, err := NewSendBatch(3, 1)
			require.NoError(t, err)
			require.NoError(t, b.SendImm(1, 0, 0))
			require.NoError(t, tt.add(b))
			require.NoError(t, b.SendImm(3, 0, 0))
			check := func() {
				f.Set(fakeverbs.Script{})
				n, err := f.ex.PostSend(b)
				require.Zero(t, n)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				var post *PostError
				require.ErrorAs(t, err, &post)
				require.Equal(t, PostError{Index: 1, ID: 9, None: true, Err: post.Err}, *post)
				require.ErrorContains(t, err, "request 1 of the batch (ID 9), none was posted: ")
				calls := ops(f.Calls())
				require.Equal(t, fakeverbs.Abort, calls[len(calls)-1])
				require.NotContains(t, calls, fakeverbs.Complete)
			}
			if tt.op != 0 {
				f.ex.sendOps = fakeOps &^ tt.op
				check()
			}
			f.ex.sendOps = fakeOps
			tt.clear(f.QP())
			check()
		})
	}
}

func TestPostErrors(t *testing.T) {
	f := newFakeDevice(t)
	b := filled(t, fakeMR(t, 64, 1), 4)
	recv, err := NewRecvBatch(4, 0)
	require.NoError(t, err)
	for i := range uint64(4) {
		require.NoError(t, recv.Recv(i))
	}
	for _, tt := range []struct {
		post     func() (int, error)
		code, at int
		want     PostError
		text     string
	}{
		{
			func() (int, error) { return f.qp.PostSend(b) }, int(syscall.ENOMEM), 2,
			PostError{Index: 2, ID: 2},
			"request 2 of the batch (ID 2), the ones before it were posted: ibv_post_send (fake QP): cannot allocate memory",
		},
		{
			func() (int, error) { return f.qp.PostSend(b) }, -int(syscall.EINVAL), 0,
			PostError{Index: 0, ID: 0},
			"request 0 of the batch (ID 0): ibv_post_send (fake QP): invalid argument",
		},
		{
			func() (int, error) { return f.qp.PostRecv(recv) }, int(syscall.ENOMEM), 3,
			PostError{Index: 3, ID: 3},
			"request 3 of the batch (ID 3), the ones before it were posted: ibv_post_recv (fake QP): cannot allocate memory",
		},
		{
			func() (int, error) { return f.ex.PostSend(b) }, int(syscall.ENOSPC), 0,
			PostError{Index: -1, None: true},
			"the batch, none was posted: ibv_wr_complete (fake QP): no space left on device",
		},
		{
			func() (int, error) {
				n, _, err := f.qp.PostSendAndSpin(b, f.cq, make([]WC, 1), MaxSpin)
				return n, err
			},
			int(syscall.ENOMEM), 1,
			PostError{Index: 1, ID: 1},
			"request 1 of the batch (ID 1), the ones before it were posted: ibv_post_send (fake QP)",
		},
	} {
		f.Set(fakeverbs.Script{PostError: tt.code, FailAt: tt.at, Completions: 9})
		n, err := tt.post()
		require.Equal(t, max(tt.want.Index, 0), n)
		require.ErrorContains(t, err, tt.text)
		require.ErrorIs(t, err, syscall.Errno(max(tt.code, -tt.code)))
		var post *PostError
		require.ErrorAs(t, err, &post)
		tt.want.Err = post.Err
		require.Equal(t, tt.want, *post)
		require.Zero(t, f.Polls(), "after a failure")
	}
}

// Flushes and atomic writes have no place in ibv_post_send.
func TestExtendedRequestsNeedExtendedQP(t *testing.T) {
	f := newFakeDevice(t)
	remote := RemoteBuffer{Addr: 8, Len: 8}
	b, err := NewSendBatch(3, 0)
	require.NoError(t, err)
	for range 2 {
		b.Reset()
		f.Set(fakeverbs.Script{})
		require.NoError(t, b.Send(1, 0))
		require.NoError(t, b.AtomicWrite(2, remote, [8]byte{}, 0))
		require.NoError(t, b.Flush(3, remote, FlushGlobal, 0))
		n, err := f.qp.PostSend(b)
		require.Zero(t, n)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "request 1 of the batch (ID 2), none was posted: ibv_post_send")
		require.Empty(t, f.Calls())
	}
	b.Reset()
	require.NoError(t, b.Send(1, 0))
	_, err = f.qp.PostSend(b)
	require.NoError(t, err)
}
