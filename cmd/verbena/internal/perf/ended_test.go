// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package perf

import (
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/cmd/verbena/internal/agent"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"
)

// removed is the name of verbena perf with a device that is removed when the
// process's standard input ends.
const removed = "perf, removed"

func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{
		"perf":  process.Program(tested),
		"agent": process.Program(programtest.Of(agent.Program)),
		faulty:  faultyAgent,
		removed: func(args []string, stdout, stderr io.Writer) int {
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				_ = softroce.Remove()
			}()
			return tested(args, stdout, stderr)
		},
	})
	m.Run()
}

// A test for which no sizes are given runs on a device with small queues and
// without inline data. One that asks for more than the device has says so.
func TestSmallDevice(t *testing.T) {
	for args, want := range map[string]string{
		"send_lat":             "",
		"write_bw -n 100 -R":   "",
		"send_lat -n 9 --conn": "",
		"send_lat -r 300":      "RecvQueue 300 is above the device's limit of 256",
		"send_lat -I 8":        "MaxInline 8 may be above the device's limit",
	} {
		t.Run(args, func(t *testing.T) {
			args := append(strings.Fields(args), "-p", strconv.Itoa(20000+rand.IntN(10000)))
			start := func(args ...string) *process.Process {
				cmd := process.Command(t, "perf", args...)
				cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft", "VERBENA_LIMITS=smallest")
				return process.Start(t, cmd)
			}
			server := start(args...)
			server.Prints("bytes")
			client := start(append(args, "127.0.0.1")...)
			if want != "" {
				require.Equal(t, 1, client.Wait(), client.Output())
				require.Contains(t, client.Stderr(), want)
				return
			}
			require.Zero(t, client.Wait(), client.Output())
			require.Zero(t, server.Wait(), server.Output())
		})
	}
}

// If the connection ends while messages are under way, verbena perf prints why,
// and not that the device has flushed its requests, of which it hears first.
func TestSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct {
		program, args string
		end           func(server, client *process.Process)
		want          string // the error, unless the end comes when the ends agree on the next size
	}{
		"the peer is killed, spinning": {
			"perf", "send_lat -a -R", func(_, client *process.Process) { client.Kill() }, "disconnected",
		},
		"the peer is killed, sleeping": {
			"perf", "send_lat -a -R -e", func(_, client *process.Process) { client.Kill() }, "disconnected",
		},
		"the peer is killed while it sends": {
			"perf", "send_bw -a -R", func(_, client *process.Process) { client.Kill() }, "disconnected",
		},
		"the peer is killed, without rdma_cm": {
			"perf", "send_lat -a -e", func(_, client *process.Process) { client.Kill() },
			".*transport retry counter exceeded.*|the peer has closed the control connection: EOF",
		},
		"the device is removed": {
			removed, "send_lat -a -R -e", func(server, _ *process.Process) { _ = server.Stdin.Close() }, "device removed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(strings.Fields(tt.args), "-p", strconv.Itoa(20000+rand.IntN(10000)))
			start := func(program string, args ...string) *process.Process {
				cmd := process.Command(t, program, args...)
				cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft")
				return process.Start(t, cmd)
			}
			server := start(tt.program, args...)
			server.Prints("bytes")
			client := start("perf", append(args, "127.0.0.1")...)
			server.Prints(`(?m)^ *2 +\d`) // the first row; larger messages follow
			tt.end(server, client)
			require.Equal(t, 1, server.Wait(), server.Output())
			require.Regexp(t, "^verbena perf: ((message 0 of \\d+ bytes: )?agree with the peer: .*|"+tt.want+")\n$", server.Stderr())
		})
	}
}
