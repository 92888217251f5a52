// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"context"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/transfer"
)

// own returns those of the engines that are this process's.
func own(ctx context.Context, t *testing.T) []transfer.EngineStats {
	t.Helper()
	all, err := transfer.Engines(ctx)
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(e transfer.EngineStats) bool { return e.PID != os.Getpid() })
}

// Other processes can ask an engine for its counters, from New until Close, if
// its config says so.
func TestEngines(t *testing.T) {
	if runtime.GOOS != "linux" {
		_, err := transfer.Engines(t.Context())
		require.Error(t, err)
		return
	}
	needDevice(t)
	ctx := bounded(t)
	require.Empty(t, own(ctx, t))
	newEngine(t, transfer.Config{})
	require.Empty(t, own(ctx, t))
	a, b := newEngine(t, transfer.Config{Publish: true}), newEngine(t, transfer.Config{Publish: true})
	_, err := b.Alloc(4096, transfer.RegionConfig{Name: "memory", Access: transfer.WriteAccess})
	require.NoError(t, err)
	dialed, accepted := connect(t, a, b)
	remote, err := dialed.Region(ctx, "memory")
	require.NoError(t, err)
	batch := dialed.NewBatch(1)
	require.NoError(t, batch.Write(remote, 0, make([]byte, 100)))
	require.NoError(t, batch.Submit(ctx))
	require.NoError(t, batch.Wait(ctx))

	comm, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)
	byPeer := map[string]transfer.PeerStats{}
	for _, e := range own(ctx, t) {
		require.Equal(t, strings.TrimSpace(string(comm)), e.Program)
		require.Equal(t, a.Devices(), e.Devices)
		require.Empty(t, e.Error)
		require.Len(t, e.Peers, 1)
		byPeer[e.Peers[0].Peer] = e.Peers[0]
	}
	require.Len(t, byPeer, 2)
	for _, p := range []*transfer.Peer{dialed, accepted} {
		require.Equal(t, p == dialed, byPeer[p.Address()].Dialed)
		require.Equal(t, p.Incarnation(), byPeer[p.Address()].Incarnation)
	}
	written := uint64(0)
	for _, d := range byPeer[dialed.Address()].Devices {
		written += d.Written
	}
	require.EqualValues(t, 100, written)
	require.EqualValues(t, 1, byPeer[dialed.Address()].Requests)
	require.Zero(t, byPeer[accepted.Address()].Requests)

	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "again")
	require.Len(t, own(ctx, t), 1)
	require.NoError(t, a.Close())
	require.Empty(t, own(ctx, t))
	var none context.Context
	_, err = transfer.Engines(none)
	require.ErrorIs(t, err, syscall.EINVAL)
}
