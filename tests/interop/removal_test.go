// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// The device goes away under a connection: both ends say so and end, which is
// what the kernel waits for.
func TestDeviceIsRemoved(t *testing.T) {
	d := needDevice(t)
	needGuest(t)
	var removal *exec.Cmd
	t.Cleanup(func() { // when the processes have ended, for which it waits
		if removal != nil {
			awaitRemoval(t, removal)
			require.NoError(t, exec.Command("rdma", "link", "add", d.Name, "type", "rxe", "netdev", d.NetDev).Run())
		}
	})
	server := ours.serve(t, "-a", d.IPv4.String())
	client := ours.start(t, "-c", "-v", "-a", d.IPv4.String())
	client.Prints("rdma-ping-3:")
	removal = exec.Command("rdma", "link", "delete", d.Name)
	require.NoError(t, removal.Start())
	client.Wait()
	server.Wait()
	// The end that hears of it first disconnects, which the other may hear first.
	said := client.Stderr() + server.Stderr()
	t.Log(said)
	require.Contains(t, said, "device removed")
}

// awaitRemoval waits for a command that removes a device.
func awaitRemoval(t *testing.T, removal *exec.Cmd) {
	t.Helper()
	removed := make(chan error, 1)
	go func() { removed <- removal.Wait() }()
	require.Eventually(t, func() bool {
		_, _ = rdmacm.Devices() // lets go of the device if a test before has opened it here
		return len(removed) > 0
	}, patience, 10*time.Millisecond)
	require.NoError(t, <-removed)
}
