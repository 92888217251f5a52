//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// A loop that ends leaves the completions that it has not seen.
func TestCompletionsOneAtATime(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.channel = &CompChannel{} // which is not used while there are completions
	f.Set(fakeverbs.Script{Completions: 4})
	var ids []uint64
	for wc, err := range f.cq.Completions(t.Context()) {
		require.NoError(t, err)
		if ids = append(ids, wc.ID()); len(ids) == 2 {
			break
		}
	}
	require.Equal(t, []uint64{0, 1}, ids)
	wc, err := f.cq.WaitOne(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, wc.ID())
	n, err := f.cq.Poll(make([]WC, 9))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A request that failed is an error, after which others follow.
func TestCompletionsThatFailed(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.channel = &CompChannel{}
	f.Set(fakeverbs.Script{Completions: 9, Status: libibverbs.IBV_WC_WR_FLUSH_ERR})
	wc, err := f.cq.WaitOne(t.Context())
	require.ErrorIs(t, err, WCFlushed)
	require.EqualValues(t, 0, wc.ID())
	next := uint64(1)
	for wc, err := range f.cq.Completions(t.Context()) {
		require.ErrorIs(t, err, WCFlushed)
		require.Equal(t, next, wc.ID())
		if next++; next == 9 {
			break
		}
	}

	f.Set(fakeverbs.Script{PollError: -1})
	times := 0
	for wc, err := range f.cq.Completions(t.Context()) {
		require.ErrorContains(t, err, "ibv_poll_cq (fake CQ)")
		require.Zero(t, wc)
		times++
	}
	require.Equal(t, 1, times, "an error of another kind ends the loop")
}
