// SPDX-License-Identifier: Apache-2.0

//go:build !race

package perf

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// On the network of all machines, a message and its acknowledgement take one
// system call each to send. The queue of refusals is looked at only when a host
// has refused something.
func TestUDPCounts(t *testing.T) {
	if !testdevice.Soft() {
		t.Skip("counts what the device in user space takes")
	}
	if _, err := exec.LookPath("perf"); err != nil {
		t.Skip("needs perf")
	}
	const sends, refusals = "syscalls:sys_enter_sendmmsg", "syscalls:sys_enter_recvmsg"
	m := measurement{"send", false}
	var counts [2]map[string]float64
	const n = 500
	for k := range counts { // what the start takes is in both
		port := nextPort()
		file := filepath.Join(t.TempDir(), "counts")
		args := []string{"-s", "64", "-e", "--netpoll", "-n", strconv.Itoa((k + 1) * n), "-p", strconv.Itoa(port)}
		on := func(i byte, more ...string) *exec.Cmd {
			cmd := ours.command(t, m, append(args, more...)...)
			cmd.Env = append(cmd.Environ(), "VERBENA_DEVICE=soft:udp="+ownnetwork.Addr(i).String())
			return cmd
		}
		server := process.Start(t, on(1))
		server.Eventually("listens", func() bool { return listens(port) })
		client := on(2, ownnetwork.Addr(1).String())
		counted := exec.Command("perf", append([]string{"stat", "-x,", "-o", file, "-e", sends + "," + refusals, "--"}, client.Args...)...)
		counted.Env = client.Env
		require.Zero(t, process.Run(t, counted).Wait())
		require.Zero(t, server.Wait())
		counts[k] = readCounts(t, file)
	}
	each := func(what string) float64 { return (counts[1][what] - counts[0][what]) / n }
	t.Logf("for each message and its answer: %.2f of %s, %.2f of %s", each(sends), sends, each(refusals), refusals)
	require.LessOrEqual(t, each(sends), 2.1)
	require.LessOrEqual(t, each(refusals), 0.1)
}
