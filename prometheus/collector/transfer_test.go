// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package collector

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

// The page has what an engine has moved, also if it has dialed an address
// twice.
func TestTransfer(t *testing.T) {
	t.Setenv("VERBENA_NETWORK", fmt.Sprint("prometheus", os.Getpid()))
	if err := softroce.Use(softroce.Config{}); err != nil {
		require.ErrorIs(t, err, os.ErrExist) // chosen by VERBENA_DEVICE
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	server, err := transfer.New(transfer.Config{})
	require.NoError(t, err)
	defer server.Close()
	_, err = server.Alloc(4096, transfer.RegionConfig{Name: "memory", Access: transfer.ReadAccess | transfer.WriteAccess})
	require.NoError(t, err)
	ln, err := server.Listen(ctx, "127.0.0.1:0", transfer.ListenConfig{})
	require.NoError(t, err)
	client, err := transfer.New(transfer.Config{})
	require.NoError(t, err)
	defer client.Close()
	for range 2 {
		peer, err := client.Dial(ctx, ln.Addr().String(), transfer.DialConfig{})
		require.NoError(t, err)
		memory, err := peer.Region(ctx, "memory")
		require.NoError(t, err)
		batch := peer.NewBatch(2)
		require.NoError(t, batch.Write(memory, 0, make([]byte, 100)))
		require.NoError(t, batch.Read(make([]byte, 1000), memory, 0))
		require.NoError(t, batch.Notify([]byte("moved")))
		require.NoError(t, batch.Submit(ctx))
		require.NoError(t, batch.Wait(ctx))
	}

	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(NewTransfer(client)))
	page := fmt.Sprintf(`
# HELP rdma_transfer_connections Data connections that are up.
# TYPE rdma_transfer_connections gauge
rdma_transfer_connections{device="soft0",peer=%q} 2
# HELP rdma_transfer_notifications_sent_total Notifications that the peer has.
# TYPE rdma_transfer_notifications_sent_total counter
rdma_transfer_notifications_sent_total{peer=%[1]q} 2
# HELP rdma_transfer_read_bytes_total Bytes that were read from the peer.
# TYPE rdma_transfer_read_bytes_total counter
rdma_transfer_read_bytes_total{device="soft0",peer=%[1]q} 2000
# HELP rdma_transfer_requests_total Requests that are done.
# TYPE rdma_transfer_requests_total counter
rdma_transfer_requests_total{peer=%[1]q} 4
# HELP rdma_transfer_up Whether there is a control connection to the peer.
# TYPE rdma_transfer_up gauge
rdma_transfer_up{peer=%[1]q} 1
# HELP rdma_transfer_written_bytes_total Bytes that were written to the peer.
# TYPE rdma_transfer_written_bytes_total counter
rdma_transfer_written_bytes_total{device="soft0",peer=%[1]q} 200
`, ln.Addr())
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(page), "rdma_transfer_connections", "rdma_transfer_notifications_sent_total",
		"rdma_transfer_read_bytes_total", "rdma_transfer_requests_total", "rdma_transfer_up", "rdma_transfer_written_bytes_total"))
}
