// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/stat"
)

// sysfs makes files under class/infiniband.
func sysfs(t *testing.T, files map[string]string) stat.Sysfs {
	t.Helper()
	sys := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(sys, "class"), 0o700))
	for name, text := range files {
		path := filepath.Join(sys, "class/infiniband", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return stat.Sysfs(sys)
}

func cards(t *testing.T) stat.Sysfs {
	return sysfs(t, map[string]string{
		"mlx5_0/ports/1/state":                   "4: ACTIVE",
		"mlx5_0/ports/1/rate":                    "100 Gb/sec (4X EDR)",
		"mlx5_0/ports/1/counters/port_rcv_data":  "1000",
		"mlx5_0/ports/1/counters/VL15_dropped":   "1",
		"mlx5_0/ports/1/counters/link_downed":    "2",
		"mlx5_0/ports/1/hw_counters/link_downed": "3",
		"mlx5_0/ports/1/hw_counters/ip4InOctets": "4",
		"mlx5_0/ports/1/cm_tx_retries/req":       "5",
		"mlx5_0/ports/1/cm_tx_retries/dreq":      "6",
		"mlx5_1/ports/1/state":                   "1: DOWN",
		"mlx5_1/ports/1/counters/port_rcv_data":  "1",
		"efa_0/hw_counters/cmds_err":             "7",
		"efa_0/ports/1/hw_counters/tx_bytes":     "8",
	})
}

const page = `
# HELP rdma_collector_success Whether this part of the page could be read.
# TYPE rdma_collector_success gauge
rdma_collector_success{source="counters"} 1
# HELP rdma_device_hw_cmds_err_total Commands that failed.
# TYPE rdma_device_hw_cmds_err_total counter
rdma_device_hw_cmds_err_total{device="efa_0"} 7
# HELP rdma_port_active Whether the port can carry data.
# TYPE rdma_port_active gauge
rdma_port_active{device="mlx5_0",port="1"} 1
rdma_port_active{device="mlx5_1",port="1"} 0
# HELP rdma_port_cm_tx_retries_total Messages of the connection manager sent again, as no answer came in time.
# TYPE rdma_port_cm_tx_retries_total counter
rdma_port_cm_tx_retries_total{device="mlx5_0",message="dreq",port="1"} 6
rdma_port_cm_tx_retries_total{device="mlx5_0",message="req",port="1"} 5
# HELP rdma_port_hw_ip4inoctets Of the driver, which alone knows what it means.
# TYPE rdma_port_hw_ip4inoctets untyped
rdma_port_hw_ip4inoctets{device="mlx5_0",port="1"} 4
# HELP rdma_port_hw_link_downed_total Times that the link went down.
# TYPE rdma_port_hw_link_downed_total counter
rdma_port_hw_link_downed_total{device="mlx5_0",port="1"} 3
# HELP rdma_port_hw_tx_bytes_total Packets sent, in bytes.
# TYPE rdma_port_hw_tx_bytes_total counter
rdma_port_hw_tx_bytes_total{device="efa_0",port="1"} 8
# HELP rdma_port_link_downed_total Times that the link failed and went down; stops at 255.
# TYPE rdma_port_link_downed_total counter
rdma_port_link_downed_total{device="mlx5_0",port="1"} 2
# HELP rdma_port_rate_bytes_per_second How much the link of the port carries.
# TYPE rdma_port_rate_bytes_per_second gauge
rdma_port_rate_bytes_per_second{device="mlx5_0",port="1"} 1.25e+10
# HELP rdma_port_rcv_data_bytes_total Packets received, in bytes, headers included.
# TYPE rdma_port_rcv_data_bytes_total counter
rdma_port_rcv_data_bytes_total{device="mlx5_0",port="1"} 4000
rdma_port_rcv_data_bytes_total{device="mlx5_1",port="1"} 4
# HELP rdma_port_vl15_dropped_total Packets of subnet management received and dropped for lack of room; stops at 65535.
# TYPE rdma_port_vl15_dropped_total counter
rdma_port_vl15_dropped_total{device="mlx5_0",port="1"} 1
`

func TestCounters(t *testing.T) {
	c := New(Config{NoSoft: true, Sysfs: cards(t), NoResources: true})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(page)))
}

// promtool would find nothing to say of the names.
func TestNames(t *testing.T) {
	problems, err := testutil.CollectAndLint(New(Config{NoSoft: true, Sysfs: cards(t)}))
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Devices may have any names, and programs too.
func TestNoUTF8(t *testing.T) {
	c := New(Config{NoSoft: true, NoResources: true, Sysfs: sysfs(t, map[string]string{
		"a\xff/hw_counters/cmds_err": "7", "a\xff/ports/1/state": "4: ACTIVE", "a\xff/ports/1/hw_counters/tx_bytes": "8", "b/ports/1/cm_tx_msgs/\xff": "9",
	})})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP rdma_device_hw_cmds_err_total Commands that failed.
# TYPE rdma_device_hw_cmds_err_total counter
rdma_device_hw_cmds_err_total{device="a?"} 7
# HELP rdma_port_active Whether the port can carry data.
# TYPE rdma_port_active gauge
rdma_port_active{device="a?",port="1"} 1
`), "rdma_device_hw_cmds_err_total", "rdma_port_active"))
	require.NoError(t, testutil.CollectAndCompare(objects{stat.Resources{ProtectionDomains: []stat.ProtectionDomain{
		{Device: "d", Owner: stat.Owner{Program: "\xff"}}, {Device: "d", Owner: stat.Owner{Program: "\xfe"}},
	}}}, strings.NewReader(`
# HELP rdma_protection_domains Protection domains that there are, by the program that has made them.
# TYPE rdma_protection_domains gauge
rdma_protection_domains{device="d",program="?"} 2
`)))
}

// What cannot be read is said, on the page and to the program.
func TestErrors(t *testing.T) {
	var said []error
	c := New(Config{NoSoft: true, Sysfs: "/nowhere", NoResources: true, OnError: func(err error) { said = append(said, err) }})
	const failed = "# HELP rdma_collector_success Whether this part of the page could be read.\n" +
		"# TYPE rdma_collector_success gauge\nrdma_collector_success{source=\"counters\"} 0\n"
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(failed)))
	require.Len(t, said, 1)
	require.ErrorContains(t, said[0], "/nowhere")
	require.NoError(t, testutil.CollectAndCompare(New(Config{NoSoft: true, Sysfs: "/nowhere", NoResources: true}), strings.NewReader(failed)))
	require.Equal(t, stat.Default, New(Config{}).config.Sysfs)
}

// objects collects objects alone.
type objects struct{ stat.Resources }

func (objects) Describe(chan<- *prometheus.Desc) {}

func (o objects) Collect(to chan<- prometheus.Metric) { collectResources(to, o.Resources) }

const objectsPage = `
# HELP rdma_completion_queues Completion queues that there are, by the program that has made them.
# TYPE rdma_completion_queues gauge
rdma_completion_queues{device="d",program="[ib_core]"} 1
# HELP rdma_connection_ids Ids of rdma_cm that there are, listeners included, by the program that has made them.
# TYPE rdma_connection_ids gauge
rdma_connection_ids{device="d",program="?",state="LISTEN"} 1
# HELP rdma_memory_region_bytes Length of all memory regions, by the program that has made them.
# TYPE rdma_memory_region_bytes gauge
rdma_memory_region_bytes{device="d",program="rping"} 80
# HELP rdma_memory_regions Memory regions that there are, by the program that has made them.
# TYPE rdma_memory_regions gauge
rdma_memory_regions{device="d",program="rping"} 2
# HELP rdma_protection_domains Protection domains that there are, by the program that has made them.
# TYPE rdma_protection_domains gauge
rdma_protection_domains{device="d",program=""} 1
# HELP rdma_queue_pairs Queue pairs that there are, by the program that has made them.
# TYPE rdma_queue_pairs gauge
rdma_queue_pairs{device="d",program="rping",state="RTS",type="RC"} 2
rdma_queue_pairs{device="e",program="rping",state="ERR",type="UD"} 1
`

// Processes of one program are counted together.
func TestResources(t *testing.T) {
	rping := func(pid int) stat.Owner { return stat.Owner{PID: pid, Program: "rping", Thread: pid + 1} }
	require.NoError(t, testutil.CollectAndCompare(objects{stat.Resources{
		QueuePairs: []stat.QueuePair{
			{Device: "d", Type: "RC", State: "RTS", Owner: rping(1)},
			{Device: "d", Type: "RC", State: "RTS", Owner: rping(2)},
			{Device: "e", Type: "UD", State: "ERR", Owner: rping(2)},
		},
		CompletionQueues:  []stat.CompletionQueue{{Device: "d", Owner: stat.Owner{Kernel: "ib_core"}}},
		MemoryRegions:     []stat.MemoryRegion{{Device: "d", Length: 16, Owner: rping(1)}, {Device: "d", Length: 64, Owner: rping(1)}},
		ProtectionDomains: []stat.ProtectionDomain{{Device: "d"}},
		ConnectionIDs:     []stat.ConnectionID{{Device: "d", State: "LISTEN", Owner: stat.Owner{PID: 1, Program: "\xff"}}},
	}}, strings.NewReader(objectsPage)))
}

// In the guest of tests/vm, the page has its device, and the kernel's own
// objects on it.
func TestGuest(t *testing.T) {
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("runs in tests/vm's guest, with its device")
	}
	c := New(Config{OnError: func(err error) { t.Error(err) }})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		"rdma_collector_success{source=\"counters\"} 1\n", "rdma_collector_success{source=\"resources\"} 1\n",
		"rdma_port_active{device=\"rxe0\",port=\"1\"} 1\n", "\nrdma_port_hw_sent_pkts_total{device=\"rxe0\",port=\"1\"} ",
		"rdma_queue_pairs{device=\"rxe0\",program=\"[ib_core]\",state=\"RTS\",type=\"GSI\"} 1\n",
	} {
		require.Contains(t, answer.Body.String(), line)
	}
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
}
