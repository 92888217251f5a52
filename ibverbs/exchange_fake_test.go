//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

func TestExchange(t *testing.T) {
	f := newFakeDevice(t)
	mr := fakeMR(t, 64, 1)
	send := filled(t, mr, 3)
	recv, err := NewRecvBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(7, mr.All()))
	require.NoError(t, recv.Recv(8, mr.All()))
	empty, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	wcs := make([]WC, 8)
	for name, tt := range map[string]struct {
		recv            *RecvBatch
		send            *SendBatch
		least, empty, n int
		posted          int // receives and requests
	}{
		"both":             {recv, send, 1, 20, 3, 5},
		"receives alone":   {recv, nil, 1, 0, 3, 2},
		"requests alone":   {nil, send, 3, 20, 3, 3},
		"empty receives":   {empty, send, 1, 0, 3, 3},
		"nothing but poll": {nil, nil, 2, 100, 3, 0},
	} {
		for _, qp := range []*QP{f.qp, f.ex} {
			f.Set(fakeverbs.Script{EmptyPolls: tt.empty, Completions: tt.n})
			n, err := qp.Exchange(tt.recv, tt.send, f.cq, wcs, tt.least, MaxSpin)
			require.NoError(t, err, name)
			require.Equal(t, tt.n, n, name)
			require.Equal(t, tt.posted, f.Requests(), name)
		}
	}
}

// Time that is up is no error, and what has come is not lost.
func TestExchangeRunsOutOfTime(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 8)
	f.Set(fakeverbs.Script{Completions: 2})
	n, err := f.qp.Exchange(nil, nil, f.cq, wcs, 3, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = f.qp.Exchange(nil, nil, f.cq, wcs, 1, 0)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestExchangeFails(t *testing.T) {
	f := newFakeDevice(t)
	mr := fakeMR(t, 64, 1)
	send := filled(t, mr, 3)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(7, mr.All()))
	wcs := make([]WC, 8)

	f.Set(fakeverbs.Script{Completions: 3, PostError: int(syscall.ENOMEM)})
	n, err := f.qp.Exchange(recv, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_post_recv")
	require.Zero(t, n)
	require.Zero(t, f.Requests(), "the requests were not posted")

	n, err = f.qp.Exchange(nil, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_post_send")
	require.Zero(t, n)

	f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
	_, err = f.qp.Exchange(recv, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.EFAULT)

	for _, least := range []int{-1, 0, 9} {
		_, err = f.qp.Exchange(recv, send, f.cq, wcs, least, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = f.qp.Exchange(&RecvBatch{}, &SendBatch{}, f.cq, nil, 1, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = f.qp.Exchange(recv, send, &CQ{}, wcs, 1, 0)
	require.ErrorIs(t, err, os.ErrInvalid)
}
