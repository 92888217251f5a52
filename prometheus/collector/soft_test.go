// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package collector

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/softroce"
)

// The device in user space of this process is on the page, with the metrics of
// a card.
func TestSoft(t *testing.T) {
	t.Setenv("VERBENA_NETWORK", fmt.Sprint("prometheus", os.Getpid()))
	if err := softroce.Use(softroce.Config{}); err != nil {
		require.ErrorIs(t, err, os.ErrExist) // chosen by VERBENA_DEVICE
	}
	device, err := ibverbs.Open("soft0")
	require.NoError(t, err)
	defer device.Close()
	pd, err := device.AllocPD()
	require.NoError(t, err)
	defer pd.Close()

	config := Config{Sysfs: sysfs(t, nil), OnError: func(err error) { t.Error(err) }}
	program := filepath.Base(os.Args[0])
	program = program[:min(len(program), 15)] // as the kernel has it
	name := fmt.Sprintf("soft0/%d", os.Getpid())
	page := fmt.Sprintf(`
# HELP rdma_port_active Whether the port can carry data.
# TYPE rdma_port_active gauge
rdma_port_active{device=%q,port="1"} 1
# HELP rdma_port_hw_sent_pkts_total Packets sent.
# TYPE rdma_port_hw_sent_pkts_total counter
rdma_port_hw_sent_pkts_total{device=%[1]q,port="1"} 0
# HELP rdma_protection_domains Protection domains that there are, by the program that has made them.
# TYPE rdma_protection_domains gauge
rdma_protection_domains{device=%[1]q,program=%[2]q} 1
`, name, program)
	require.NoError(t, testutil.CollectAndCompare(New(config), strings.NewReader(page),
		"rdma_port_active", "rdma_port_hw_sent_pkts_total", "rdma_protection_domains"))
	config.NoResources = true
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(New(config)))
	_, err = registry.Gather()
	require.NoError(t, err, "with the names and texts of a card")
	config.NoSoft = true
	n, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.Less(t, testutil.CollectAndCount(New(config)), n)
}
