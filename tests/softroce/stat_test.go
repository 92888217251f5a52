// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package softroce

import (
	"encoding/json"
	"fmt"
	"net/netip"
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

func startRping(t *testing.T, args string, env ...string) *process.Process {
	t.Helper()
	cmd := process.Cmd(t, "rping", strings.Fields(args)...)
	cmd.Env = append(append(cmd.Env, "VERBENA_DEVICE=soft"), env...)
	return process.Start(t, cmd)
}

// rpings starts a server, which may have more in its environment, and a client
// that is connected to it.
func rpings(t *testing.T, address, port string, env ...string) (server, client *process.Process) {
	t.Helper()
	at := " -a " + address + " -p " + port
	server = startRping(t, "-s"+at, env...)
	server.Eventually("listens", func() bool { return server.Ended() || stat(t, server.Pid()) != nil })
	server.Eventually("takes a client", func() bool { // it may not listen yet
		client = startRping(t, "-c"+at)
		client.Eventually("is connected or refused", func() bool {
			found := stat(t, client.Pid())
			return client.Ended() || found != nil && len(found.Devices) == 1 && len(found.Devices[0].QueuePairs) == 1 && found.Devices[0].QueuePairs[0].State == "RTS"
		})
		return server.Ended() || !client.Ended()
	})
	return server, client
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
	server, client := rpings(t, "127.0.0.1", "7211")
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

// Each device of a process is shown with what belongs to it.
func TestStatOfTwoDevices(t *testing.T) {
	server, client := rpings(t, "127.0.0.2", "7212", "VERBENA_DEVICES=soft0=127.0.0.1;soft1=127.0.0.2,198.18.77.2")
	var found *softroce.Process
	server.Eventually("has a queue pair", func() bool {
		found = stat(t, server.Pid())
		return found == nil || len(found.Devices) == 2 && len(found.Devices[1].QueuePairs) == 1 && found.Devices[1].QueuePairs[0].State == "RTS"
	})
	require.NotNil(t, found)
	first, second := found.Devices[0], found.Devices[1]
	require.Equal(t, []string{"soft0", "soft1"}, []string{first.Name, second.Name})
	require.NotEqual(t, first.GUID, second.GUID)
	require.Equal(t, []string{"127.0.0.1"}, texts(first.Addresses))
	require.Equal(t, []string{"127.0.0.2", "198.18.77.2"}, texts(second.Addresses))
	require.Empty(t, first.QueuePairs)
	require.Zero(t, first.Objects.ProtectionDomains)
	require.Zero(t, first.Counters.PacketsSent)
	require.Positive(t, second.Objects.ProtectionDomains)
	require.Positive(t, second.Counters.PacketsSent)

	_, text, _ := strings.Cut(runStat(t), fmt.Sprintf("process %d,", server.Pid()))
	require.Regexp(t, `(?s)^[^\n]*\n  soft0, active, GUID \S+, addresses 127\.0\.0\.1\n.*\n  soft1, active, GUID \S+, addresses 127\.0\.0\.2 198\.18\.77\.2\n.*0x`, text)
	client.Kill()
	server.Kill()
}

// texts returns the addresses as text.
func texts(addresses []netip.Addr) (all []string) {
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return all
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
