// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/verbena-go/verbena/softroce"
)

// The test runs itself, since the device is chosen once for a program.
func TestSoftDevice(t *testing.T) {
	if os.Getenv(variable) != "soft" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSoftDevice$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=soft")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: TestSoftDevice")
		return
	}
	report := Run(t.Context(), Peer{})
	require.True(t, report.Works)
	var text strings.Builder
	report.Text(&text)
	require.Regexp(t, `(?s)^ok   device: VERBENA_DEVICE=soft: soft0, .*\nok   connection: to itself at 127.0.0.1: a message and an RDMA write arrived\nRDMA works here.\n$`, text.String())

	report = Run(t.Context(), Peer{Host: "192.0.2.1"})
	require.True(t, report.Works)
	require.Empty(t, report.Peer, "which was not looked at")
	require.Equal(t, Skipped, report.Findings[2].Status)
}

// TestDeviceOnNetwork has a peer that is an address of its own, where no
// program listens.
func TestDeviceOnNetwork(t *testing.T) {
	const network = "soft:udp=127.77.0.1"
	if os.Getenv(variable) != network {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeviceOnNetwork$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+network)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Contains(t, string(out), "--- PASS: TestDeviceOnNetwork")
		return
	}
	report := Run(t.Context(), Peer{})
	require.True(t, report.Works)
	var text strings.Builder
	report.Text(&text)
	require.Regexp(t, `(?s)^ok   device: VERBENA_DEVICE=soft:udp=127.77.0.1: soft0, .* reaches other machines by UDP\n.*`+
		`ok   connection: to itself at 127.77.0.1: a message and an RDMA write arrived\nRDMA works here.\n$`, text.String())
}

func TestReceiveBuffer(t *testing.T) {
	const (
		user = "CapEff:\t0000000000000000\n"
		root = "CapEff:\t000001ffffffffff\n"
		all  = "         0          0 4294967295\n"
	)
	for name, tt := range map[string]struct {
		most, status, users string
		want                Finding
	}{
		"enough":     {"4194304\n", user, all, Finding{Status: OK, Found: "4 MiB"}},
		"root":       {"212992\n", root, all, Finding{Status: OK, Found: "4 MiB, as no limit applies to this user"}},
		"unreadable": {"", user, all, Finding{Status: Skipped, Found: "not checked: net.core.rmem_max cannot be read, which is the machine's, not a container's"}},
		"little": {"212992\n", root, "0 100000 65536\n", Finding{
			Status:   Warn,
			Found:    "208 KiB for what arrives: while several queue pairs receive at once, packets may get lost, and transfers wait until they are sent again",
			Remedy:   "let sockets have 4 MiB",
			Commands: []string{"sysctl -w net.core.rmem_max=4194304"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(t, map[string]string{"proc/sys/net/core/rmem_max": tt.most, "proc/self/status": tt.status, "proc/self/uid_map": tt.users})
			require.Equal(t, tt.want, receiveBuffer(t.Context(), m))
		})
	}
}
