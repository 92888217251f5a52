// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package collector

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
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
	require.NoError(t, testutil.GatherAndCompare(only(t, New(config), name), strings.NewReader(page),
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

// only gathers the metrics of one device. The kernel may have others.
func only(t *testing.T, c prometheus.Collector, device string) prometheus.Gatherer {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	isOther := func(m *dto.Metric) bool {
		return !slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "device" && l.GetValue() == device })
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := registry.Gather()
		for _, family := range all {
			family.Metric = slices.DeleteFunc(family.Metric, isOther)
		}
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 }), err
	})
}
