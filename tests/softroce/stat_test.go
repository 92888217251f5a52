// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package softroce

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/softroce"

	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
)

func startRping(t *testing.T, args string) *process.Process {
	t.Helper()
	cmd := process.Cmd(t, "rping", strings.Fields(args)...)
	cmd.Env = append(cmd.Env, "VERBENA_DEVICE=soft")
	return process.Start(t, cmd)
}

// runStat returns what verbena softroce stat prints.
func runStat(t *testing.T, args ...string) string {
	t.Helper()
	p := process.Run(t, process.Cmd(t, "verbena", append([]string{"softroce", "stat"}, args...)...))
	require.Zero(t, p.Wait())
	require.Empty(t, p.Stderr())
	return p.Stdout()
}

// stat returns what verbena softroce stat prints about the process as JSON, nil
// if nothing.
func stat(t *testing.T, pid int) *softroce.Process {
	t.Helper()
	var all []softroce.Process
	require.NoError(t, json.Unmarshal([]byte(runStat(t, "-j")), &all))
	require.True(t, slices.IsSortedFunc(all, func(a, b softroce.Process) int { return a.PID - b.PID }))
	i := slices.IndexFunc(all, func(p softroce.Process) bool { return p.PID == pid })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// connected returns the queue pair of a process that has one, which it waits
// for.
func connected(t *testing.T, p *process.Process) (d softroce.Process) {
	t.Helper()
	p.Eventually("is connected", func() bool {
		found := stat(t, p.Pid())
		if found == nil || len(found.Devices) != 1 || len(found.Devices[0].QueuePairs) != 1 || found.Devices[0].QueuePairs[0].State != "RTS" {
			return p.Ended()
		}
		d = *found
		return true
	})
	require.Len(t, d.Devices, 1)
	return d
}

// Two processes are seen with their connection, and then one of them after the
// other not any more.
func TestStat(t *testing.T) {
	server := startRping(t, "-s -a 127.0.0.1 -p 7211")
	server.Eventually("listens", func() bool { return server.Ended() || stat(t, server.Pid()) != nil })
	var client *process.Process
	server.Eventually("takes a client", func() bool { // it may not listen yet
		client = startRping(t, "-c -a 127.0.0.1 -p 7211")
		client.Eventually("is connected or refused", func() bool {
			found := stat(t, client.Pid())
			return client.Ended() || found != nil && len(found.Devices) == 1 && len(found.Devices[0].QueuePairs) == 1 && found.Devices[0].QueuePairs[0].State == "RTS"
		})
		return server.Ended() || !client.Ended()
	})
	s, c := connected(t, server), connected(t, client)
	for _, p := range []softroce.Process{s, c} {
		require.NotEmpty(t, p.Program)
		require.Equal(t, os.Getenv("VERBENA_NETWORK"), p.Network)
		require.Equal(t, "soft0", p.Devices[0].Name)
		require.Equal(t, "active", p.Devices[0].State)
		require.Regexp(t, "^[0-9a-f]{4}(:[0-9a-f]{4}){3}$", p.Devices[0].GUID)
		require.NotEmpty(t, p.Devices[0].Addresses)
		require.Equal(t, "RC", p.Devices[0].QueuePairs[0].Type)
		require.NotZero(t, p.Devices[0].Objects.ProtectionDomains)
		require.NotZero(t, p.Devices[0].Objects.MemoryRegions)
	}
	sq, cq := s.Devices[0].QueuePairs[0], c.Devices[0].QueuePairs[0]
	require.Equal(t, cq.Number, sq.Peer.Number)
	require.Equal(t, sq.Number, cq.Peer.Number)
	require.Equal(t, "127.0.0.1", cq.Peer.Address.String())
	before := c.Devices[0].Counters
	client.Eventually("sends", func() bool {
		now := connected(t, client).Devices[0].Counters
		return now.PacketsSent > before.PacketsSent && now.PacketsReceived > before.PacketsReceived
	})

	require.Contains(t, runStat(t), fmt.Sprintf("%#x at 127.0.0.1", sq.Number))

	// One that is stopped does not answer.
	require.NoError(t, syscall.Kill(client.Pid(), syscall.SIGSTOP))
	client.Eventually("has stopped", func() bool { // not all of its threads at once
		found := stat(t, client.Pid())
		return found != nil && len(found.Devices) == 0 && found.Error == "the process does not answer"
	})
	require.NoError(t, syscall.Kill(client.Pid(), syscall.SIGCONT))

	client.Kill()
	require.Nil(t, stat(t, client.Pid()))
	server.Kill()
	require.Nil(t, stat(t, server.Pid()))
}

// Other users see nothing of it.
func TestStatOfOthers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	server := startRping(t, "-s -a 127.0.0.1 -p 7212")
	server.Eventually("is there", func() bool { return server.Ended() || stat(t, server.Pid()) != nil })
	text, err := os.ReadFile(process.CmdPath(t, "verbena"))
	require.NoError(t, err)
	folder, err := os.MkdirTemp("/tmp", "stat") // which others can go into
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	require.NoError(t, os.Chmod(folder, 0o755))
	copied := filepath.Join(folder, "verbena")
	require.NoError(t, os.WriteFile(copied, text, 0o755))
	cmd := exec.Command(copied, "softroce", "stat", "-j")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait())
	require.Equal(t, "[]\n", p.Stdout())
	require.NotNil(t, stat(t, server.Pid()))
}
