// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// interrupt is what Ctrl-C does.
func interrupt(r *process.Process) { r.Signal(syscall.SIGINT) }

func TestWrongPort(t *testing.T) {
	d := needDevice(t)
	client := ours.run(t, "-c", "-a", d.IPv4.String(), "-p", "7175")
	require.Equal(t, 1, client.Wait())
	require.Equal(t, "rping: dial 192.0.2.1:7175: connection rejected: no program listens on the port\n", client.Stderr())
}

func TestPortInUse(t *testing.T) {
	d := needDevice(t)
	first := theirs.serve(t, "-a", d.IPv4.String())
	second := ours.run(t, "-s", "-a", d.IPv4.String())
	require.Equal(t, 1, second.Wait())
	require.Contains(t, second.Stderr(), "another listener has this address and port")
	first.Signal(syscall.SIGKILL)
	first.Wait()
}

func TestServerIsKilled(t *testing.T) {
	d := needDevice(t)
	for _, mode := range []string{"-v", "-vq"} {
		t.Run(mode, func(t *testing.T) {
			args := []string{"-a", d.IPv4.String(), "-S", "65535"}
			server := theirs.serve(t, args...)
			client := ours.start(t, append(args, "-c", mode)...)
			client.Prints("rdma-ping-3:")
			start := time.Now()
			server.Signal(syscall.SIGKILL)
			require.Equal(t, 1, client.Wait())
			t.Logf("after %v: %s", time.Since(start), client.Stderr())
			require.Regexp(t, `^rping: ping \d+: .*\n$`, client.Stderr())
		})
	}
}

func TestClientIsKilled(t *testing.T) {
	d := needDevice(t)
	server := ours.serve(t, "-P", "-v", "-a", d.IPv4.String())
	client := theirs.start(t, "-c", "-a", d.IPv4.String())
	server.Prints("rdma-ping-3:")
	client.Signal(syscall.SIGKILL)
	client.Wait()
	server.Eventually("the client is gone", func() bool { return server.Stderr() != "" })
	// It serves the next one.
	require.Zero(t, theirs.run(t, "-c", "-V", "-C", "5", "-a", d.IPv4.String()).Wait())
	interrupt(server)
	require.Zero(t, server.Wait())
}

func TestInterruptedServer(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		name, args string
		status     int
	}{{"once", "-v", 130}, {"persistent", "-vP", 0}, {"manual", "-vq", 130}} {
		t.Run(tt.name, func(t *testing.T) {
			server := ours.serve(t, tt.args, "-a", d.IPv4.String())
			client := theirs.start(t, "-c", "-a", d.IPv4.String())
			server.Prints("rdma-ping-3:")
			interrupt(server)
			require.Equal(t, tt.status, server.Wait())
			hears(t, client, "client DISCONNECT EVENT...")
		})
	}
}

func TestInterruptedWhileListening(t *testing.T) {
	d := needDevice(t)
	server := ours.serve(t, "-a", d.IPv4.String())
	interrupt(server)
	require.Equal(t, 130, server.Wait())
	require.Equal(t, "rping: interrupted\n", server.Stderr())
}

func TestInterruptedClient(t *testing.T) {
	d := needDevice(t)
	for _, mode := range []string{"-v", "-vq"} {
		t.Run(mode, func(t *testing.T) {
			server := theirs.serve(t, "-a", d.IPv4.String())
			client := ours.start(t, "-c", mode, "-a", d.IPv4.String())
			client.Prints("rdma-ping-3:")
			interrupt(client)
			require.Equal(t, 130, client.Wait())
			require.Equal(t, "rping: interrupted\n", client.Stderr())
			hears(t, server, "server DISCONNECT EVENT...")
		})
	}
}

// hears waits until a C program has printed that the connection ended. Whether
// it also ends is not asked: on a busy machine it does not always.
func hears(t *testing.T, r *process.Process, event string) {
	t.Helper()
	r.Eventually("hears of it", func() bool { return strings.Contains(r.Stderr(), event) })
}
