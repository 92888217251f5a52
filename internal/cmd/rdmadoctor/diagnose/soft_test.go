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

// TestDeviceOnNetwork has a peer that is an address of its own, where nobody listens.
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
