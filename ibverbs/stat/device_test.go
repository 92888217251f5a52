// SPDX-License-Identifier: Apache-2.0

package stat_test

import (
	"encoding/json"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs/stat"
)

// fake makes a sysfs with files under class/infiniband.
func fake(t *testing.T, files map[string]string) stat.Sysfs {
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

// card has a port of mlx5, and one without counters.
func card(t *testing.T) stat.Sysfs {
	return fake(t, map[string]string{
		"mlx5_0/ports/1/state":                             "4: ACTIVE",
		"mlx5_0/ports/1/rate":                              "100 Gb/sec (4X EDR)",
		"mlx5_0/ports/1/link_layer":                        "Ethernet",
		"mlx5_0/ports/1/counters/port_rcv_data":            "1000",
		"mlx5_0/ports/1/counters/port_xmit_packets":        "18446744073709551615",
		"mlx5_0/ports/1/counters/port_xmit_wait":           "N/A (no PMA)",
		"mlx5_0/ports/1/hw_counters/lifespan":              "10",
		"mlx5_0/ports/1/hw_counters/out_of_sequence":       "7",
		"mlx5_0/ports/1/hw_counters/from_the_next_release": "8",
		"mlx5_0/ports/1/hw_counters/strange":               "-1",
		"mlx5_0/ports/1/cm_tx_retries/req":                 "3",
		"mlx5_0/ports/2/state":                             "1: DOWN",
		"mlx5_0/ports/10/rate":                             "what",
		"mlx5_0/ports/other/state":                         "",
		"efa_0/hw_counters/submitted_cmds":                 "5",
		"efa_0/ports/1/hw_counters/tx_bytes":               "12",
	})
}

func TestDevices(t *testing.T) {
	devices, err := card(t).Devices()
	require.NoError(t, err)
	require.Len(t, devices, 2)
	none := []stat.Counter{}
	efa, mlx5 := devices[0], devices[1]
	require.Equal(t, "efa_0", efa.Name)
	require.Equal(t, []stat.Counter{{stat.Hardware, "submitted_cmds", 5, stat.Commands, "Commands given to the device."}}, efa.Counters)
	require.Equal(t, []stat.Counter{{stat.Hardware, "tx_bytes", 12, stat.Bytes, "Packets sent, in bytes."}}, efa.Ports[0].Counters)

	require.Equal(t, stat.Device{Name: "mlx5_0", Counters: none, Ports: []stat.Port{
		{
			Port: 1, State: "ACTIVE", LinkLayer: "Ethernet", Rate: 100e9, Lifespan: 10 * time.Millisecond, Counters: []stat.Counter{
				{stat.Standard, "port_rcv_data", 4000, stat.Bytes, "Packets received, in bytes, headers included."},
				{stat.Standard, "port_xmit_packets", math.MaxUint64, stat.Packets, "Packets sent, also with errors."},
				{stat.Hardware, "from_the_next_release", 8, stat.Unknown, ""},
				{stat.Hardware, "out_of_sequence", 7, stat.Packets, "Packets received before one that is missing: packets were lost or reordered."},
				{stat.CMRetried, "req", 3, stat.Messages, "Requests to connect sent again, as no answer came in time."},
			},
		},
		{Port: 2, State: "DOWN", Counters: none},
		{Port: 10, Counters: none},
	}}, mlx5)

	found, is := mlx5.Ports[0].Counter("req")
	require.True(t, is)
	require.Equal(t, uint64(3), found.Value)
	_, is = mlx5.Ports[0].Counter("port_xmit_wait")
	require.False(t, is, "a counter without a value")
}

// JSON has numbers with all of their digits, and lists that are not null.
func TestJSON(t *testing.T) {
	devices, err := card(t).Devices()
	require.NoError(t, err)
	b, err := json.Marshal(devices)
	require.NoError(t, err)
	require.Contains(t, string(b), `{"group":"counters","name":"port_xmit_packets","value":18446744073709551615,"unit":"packets","description":"`)
	require.Contains(t, string(b), `{"group":"hw_counters","name":"from_the_next_release","value":8,"unit":""}`)
	require.NotContains(t, string(b), "null")
	var back []stat.Device
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, devices, back)
}

func TestNoDevices(t *testing.T) {
	devices, err := fake(t, nil).Devices()
	require.NoError(t, err)
	require.Empty(t, devices)

	_, err = stat.Sysfs(filepath.Join(t.TempDir(), "missing")).Devices()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "stat: list the RDMA devices: ")

	for _, name := range []string{"", ".", "..", "mlx5_1", "../net", "mlx5_0/ports"} {
		_, err = card(t).Device(name)
		require.ErrorIs(t, err, fs.ErrNotExist, name)
		require.ErrorContains(t, err, name)
	}
}

// A device that cannot be read does not hide the others.
func TestUnreadableDevice(t *testing.T) {
	sys := card(t)
	all, err := sys.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	require.NoError(t, os.Symlink("loop", filepath.Join(string(sys), "class", "infiniband", "loop")))
	found, err := sys.Devices()
	require.ErrorIs(t, err, syscall.ELOOP)
	require.ErrorContains(t, err, "stat: read the counters of loop: ")
	require.Equal(t, all, found)
}

// A counter that goes, as the optional ones do, takes nothing else along.
func TestCounterGone(t *testing.T) {
	sys := card(t)
	want, err := sys.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, want)
	gone := filepath.Join(string(sys), "class", "infiniband", want[0].Name, "ports", "1", "hw_counters", "gone")
	require.NoError(t, os.Symlink("nothing", gone))
	found, err := sys.Devices()
	require.NoError(t, err)
	require.Equal(t, want, found)
}
