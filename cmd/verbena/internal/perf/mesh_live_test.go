// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package perf

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/internal/testutil/process"
)

// agents is a list of agents in processes of their own, on the device in user
// space.
type agents struct {
	processes []*process.Process
	hosts     []string
}

// startAgents starts n agents, with the arguments.
func startAgents(t *testing.T, n int, env []string, args ...string) (a agents) {
	t.Helper()
	port := 20000 + rand.IntN(10000)
	for i := range n {
		cmd := process.Command(t, "agent", append(args, "-p", strconv.Itoa(port+i), "127.0.0.1")...)
		cmd.Env = append(cmd.Env, env...)
		a.processes = append(a.processes, process.Start(t, cmd))
		a.hosts = append(a.hosts, fmt.Sprintf("127.0.0.1:%d", port+i))
	}
	return a
}

// mesh starts a mesh of the agents.
func (a agents) mesh(t *testing.T, env []string, args ...string) *process.Process {
	t.Helper()
	cmd := process.Command(t, "perf", append(args, "-e", "-j", "--mesh", strings.Join(a.hosts, ","))...)
	cmd.Env = append(cmd.Env, env...)
	return process.Start(t, cmd)
}

func decode(t *testing.T, p *process.Process) (r mesh.Result) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(p.Stdout()), &r), p.Output())
	return r
}

var onDevice = []string{"VERBENA_DEVICE=soft", "VERBENA_TOKEN=0123456789abcdef"}

// All pairs are measured on both devices of the hosts, and the agents end when
// they have served one mesh.
func TestMesh(t *testing.T) {
	env := append(onDevice[:2:2], "VERBENA_DEVICES=soft0=127.0.0.1;soft1=127.0.0.2")
	a := startAgents(t, 3, env, "-c", "1")
	svg := filepath.Join(t.TempDir(), "mesh.svg")
	p := a.mesh(t, env, "-n", "20", "-s", "4096", "-q", "2", "--plot", svg)
	require.Zero(t, p.Wait(), p.Output())
	r := decode(t, p)
	require.Equal(t, []string{"soft0 port 1", "soft1 port 1"}, r.Rails)
	require.Len(t, r.Links, 2*6)
	for _, l := range r.Links {
		require.Empty(t, l.Error)
		require.Positive(t, l.Latency)
		require.GreaterOrEqual(t, l.Tail, l.Latency)
		require.Positive(t, l.Bandwidth)
	}
	text, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(text), "bandwidth on soft1 port 1")
	for _, p := range a.processes {
		require.Zero(t, p.Wait(), p.Output())
	}
}

// An agent that is killed or stopped in the middle is named, and those that are
// left measure the other pairs and serve the next mesh.
func TestMeshLosesAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		signal syscall.Signal
		wait   string
	}{"killed": {syscall.SIGKILL, "300"}, "stopped": {syscall.SIGSTOP, "3"}} {
		t.Run(name, func(t *testing.T) {
			a := startAgents(t, 4, onDevice)
			p := a.mesh(t, onDevice, "-D", "1", "-W", tt.wait)
			lost := a.processes[2]
			lost.Prints("coordinates")
			lost.Signal(tt.signal)
			require.Equal(t, 1, p.Wait(), p.Output())
			require.Contains(t, p.Stderr(), "not every pair was measured")
			r := decode(t, p)
			require.NotEmpty(t, r.Hosts[2].Error)
			if tt.signal == syscall.SIGSTOP {
				return // a slow machine does not answer in 3 seconds, either
			}
			measured := 0
			for _, l := range r.Links {
				if l.From != a.hosts[2] && l.To != a.hosts[2] {
					require.Empty(t, l.Error)
					measured++
				}
			}
			require.Equal(t, 6, measured)
			left := agents{nil, append(a.hosts[:2:2], a.hosts[3])}
			again := left.mesh(t, onDevice, "-n", "10")
			require.Zero(t, again.Wait(), again.Output())
		})
	}
}

// An interrupt ends a mesh in the middle, also at the agents, which serve the
// next one.
func TestMeshInterrupted(t *testing.T) {
	a := startAgents(t, 2, onDevice)
	p := a.mesh(t, onDevice, "-D", "3600")
	for _, agent := range a.processes {
		agent.Prints("coordinates")
	}
	p.Signal(syscall.SIGINT)
	require.Equal(t, 130, p.Wait(), p.Output())
	require.Equal(t, "verbena perf: interrupted\n", p.Stderr())
	for _, agent := range a.processes {
		agent.Prints("has ended after")
	}
	again := a.mesh(t, onDevice, "-n", "10")
	require.Zero(t, again.Wait(), again.Output())
	for _, agent := range a.processes {
		agent.Signal(syscall.SIGINT)
		require.Zero(t, agent.Wait(), agent.Output())
	}
}
