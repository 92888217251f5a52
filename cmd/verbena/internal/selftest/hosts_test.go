// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package selftest

import (
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/ping"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/report"
	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{
		"selftest": process.Program(tested),
		"ping":     func(args []string, stdout, stderr io.Writer) int { return ping.Program().Main(args, stdout, stderr) },
	})
	os.Exit(m.Run())
}

// start starts a selftest of its own on the device in user space.
func start(t *testing.T, args ...string) *process.Process {
	t.Helper()
	skipInVM(t)
	cmd := process.Command(t, "selftest", args...)
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_LIMITS=")
	return process.Start(t, cmd)
}

// somePort is a port of the server.
func somePort() string { return strconv.Itoa(20000 + rand.IntN(10000)) }

// some are the checks of connections.
const some = "connections.,datagrams.,sockets.,transfers.,soak.,figures."

// Two processes make the checks on the device of the tests, and in user space
// over UDP.
func TestTwoProcesses(t *testing.T) {
	d := testdevice.Require(t)
	for name, at := range map[string]struct {
		server, client string // addresses
		udp            bool
	}{
		"on the device": {d.IPv4.String(), d.IPv4.String(), false},
		"over UDP":      {ownnetwork.Addr(1).String(), ownnetwork.Addr(2).String(), true},
	} {
		t.Run(name, func(t *testing.T) {
			start := func(address string, args ...string) *process.Process {
				cmd := process.Command(t, "selftest", args...)
				cmd.Env = append(cmd.Env, "VERBENA_LIMITS=") // a device without connections has none here
				if at.udp {
					skipInVM(t)
					cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft:udp="+address)
				}
				return process.Start(t, cmd)
			}
			port, file := somePort(), t.TempDir()+"/report"
			server := start(at.server, "-L", "-n", "1", "-p", port, at.server)
			server.Prints("listening on")
			client := start(at.client, "-w", "60", "-t", "1200", "-s", "0", "-r", some, "-p", port, "-o", file, at.server)
			require.Zero(t, client.Wait(), client.Output())
			require.Zero(t, server.Wait(), server.Output())
			r, err := report.Read(t.Context(), file)
			require.NoError(t, err)
			require.True(t, r.Two)
			for _, result := range r.Results {
				require.NotEqual(t, check.NotRun, result.Outcome, "%s: %s", result.Check, result.Found)
			}
		})
	}
}

// The server serves one client after the other, and ends after as many as it
// was told.
func TestTwoEnds(t *testing.T) {
	port := somePort()
	server := start(t, "-L", "-n", "2", "-p", port, "127.0.0.1")
	server.Prints("listening on")
	file := t.TempDir() + "/report"
	client := start(t, "-w", "60", "-s", "0", "-r", some, "-p", port, "-o", file, "127.0.0.1")
	require.Zero(t, client.Wait(), client.Output())
	require.Contains(t, client.Stdout(), "ends on two hosts")
	r, err := report.Read(t.Context(), file)
	require.NoError(t, err)
	require.True(t, r.Two)
	client = start(t, "-w", "60", "-r", "connections.messages", "-p", port, "127.0.0.1")
	require.Zero(t, client.Wait(), client.Output())
	require.Zero(t, server.Wait(), server.Output())
	require.Equal(t, 2, strings.Count(server.Stdout(), "connected\n"), server.Stdout())
	require.Equal(t, 2, strings.Count(server.Stdout(), "ended\n"), server.Stdout())
}

// endless is a check that goes on until something happens.
var endless = []string{"-t", "600", "-s", "500", "-w", "60", "-r", "soak."}

// A server whose client is killed serves the next one; meanwhile, it refuses
// others.
func TestClientKilled(t *testing.T) {
	port := somePort()
	server := start(t, "-L", "-n", "2", "-p", port, "127.0.0.1")
	server.Prints("listening on")
	client := start(t, append(endless, "-p", port, "127.0.0.1")...)
	server.Prints("connected")
	second := start(t, "-p", port, "127.0.0.1")
	require.Equal(t, exitAlone, second.Wait())
	require.Contains(t, second.Stderr(), "another client has a session")
	third := start(t, "-W", "600", "-w", "60", "-r", "connections.messages", "-p", port, "127.0.0.1")
	third.Says("waiting for the server: .*another client has a session")
	client.Kill()
	server.Prints("ended") // as the kernel does, the device tells the peers of a process that has died
	require.Zero(t, third.Wait(), third.Output())
	require.Zero(t, server.Wait(), server.Output())
}

// A client whose server is killed says so, and ends.
func TestServerKilled(t *testing.T) {
	port := somePort()
	server := start(t, "-L", "-p", port, "127.0.0.1")
	server.Prints("listening on")
	client := start(t, append(endless, "-p", port, "127.0.0.1")...)
	server.Prints("connected")
	server.Kill()
	require.Equal(t, exitAlone, client.Wait())
	require.Contains(t, client.Stderr(), "the server has ended or vanished")
}

// An interruption ends both ends.
func TestInterruptedEnds(t *testing.T) {
	port := somePort()
	server := start(t, "-L", "-p", port, "127.0.0.1")
	server.Prints("listening on")
	client := start(t, append(endless, "-p", port, "127.0.0.1")...)
	server.Prints("connected")
	client.Signal(os.Interrupt)
	require.Equal(t, 130, client.Wait(), client.Output())
	server.Prints("ended\n")
	client = start(t, append(endless, "-p", port, "127.0.0.1")...)
	server.Prints("(?s)connected.*connected")
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait(), server.Output())
	require.Equal(t, exitAlone, client.Wait())
	require.Contains(t, client.Stderr(), "the server has ended or vanished")
}

// Without a server, the client says what to do.
func TestNoServer(t *testing.T) {
	client := start(t, "-w", "60", "-p", somePort(), "127.0.0.1")
	require.Equal(t, exitAlone, client.Wait())
	require.Contains(t, client.Stderr(), "does verbena selftest -L run there?")
	require.NotContains(t, client.Stderr(), "waiting for the server")
}

// A device that cannot have the session is no missing server.
func TestUnusableDevice(t *testing.T) {
	for why, tt := range map[string]struct {
		server string
		env    []string
	}{
		"not supported":     {"127.0.0.1", []string{"VERBENA_DEVICE=soft", "VERBENA_LIMITS=efa"}},
		"has no IP address": {"::1", []string{"VERBENA_DEVICE=soft:udp=127.0.0.1", "VERBENA_LIMITS="}},
	} {
		skipInVM(t)
		cmd := process.Command(t, "selftest", "-W", "600", "-p", somePort(), tt.server)
		cmd.Env = append(cmd.Env, tt.env...)
		client := process.Start(t, cmd)
		require.Equal(t, 1, client.Wait(), client.Output())
		require.Contains(t, client.Stderr(), why)
		require.NotContains(t, client.Stderr(), "waiting for the server")
	}
}

// A server whose device has no connections is not said to be another program.
func TestUnusableServer(t *testing.T) {
	skipInVM(t)
	port := somePort()
	cmd := process.Command(t, "selftest", "-L", "-p", port, "127.0.0.1")
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_LIMITS=rc=0")
	server := process.Start(t, cmd)
	server.Prints("listening on")
	client := start(t, "-p", port, "127.0.0.1")
	require.Equal(t, exitAlone, client.Wait(), client.Output())
	require.Contains(t, client.Stderr(), "or cannot accept connections, and prints why")
	server.Prints("refused: accept: .*not supported")
}

// A client that is told to wait for its server starts before it, and ends with
// an interruption.
func TestServerIsLate(t *testing.T) {
	port := somePort()
	args := []string{"-W", "600", "-w", "60", "-r", "connections.messages", "-p", port, "127.0.0.1"}
	client := start(t, args...)
	client.Says("waiting for the server: .*does verbena selftest -L run there?")
	server := start(t, "-L", "-n", "1", "-p", port, "127.0.0.1")
	require.Zero(t, client.Wait(), client.Output())
	require.Zero(t, server.Wait(), server.Output())
	client = start(t, args...)
	client.Says("waiting for the server")
	client.Signal(os.Interrupt)
	require.Equal(t, 130, client.Wait(), client.Output())
}

// A client does not wait where another program listens.
func TestOtherServer(t *testing.T) {
	port := somePort()
	cmd := process.Command(t, "ping", "-l", "-p", port, "127.0.0.1")
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_LIMITS=")
	process.Start(t, cmd).Prints("listening on")
	client := start(t, "-W", "600", "-w", "60", "-p", port, "127.0.0.1")
	require.Equal(t, exitAlone, client.Wait(), client.Output())
	require.Contains(t, client.Stderr(), "is not verbena selftest -L of this version")
	require.NotContains(t, client.Stderr(), "waiting for the server")
}
