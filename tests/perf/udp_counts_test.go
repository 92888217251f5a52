// SPDX-License-Identifier: Apache-2.0

//go:build !race

package perf

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	testdevice.Require(t)
	if !testdevice.Soft() {
		t.Skip("counts what the device in user space takes")
	}
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("needs strace: scripts/setup count")
	}
	const sends, refusals = "sendmmsg", "recvmsg"
	m := measurement{"send", false}
	var counts [2]map[string]float64
	const n = 500
	for k := range counts { // what the start takes is in both
		port := nextPort()
		file := filepath.Join(t.TempDir(), "counts")
		// With -u 18, an end that stands still for some seconds is not given
		// up.
		args := []string{"-s", "64", "-e", "--netpoll", "-u", "18", "-n", strconv.Itoa((k + 1) * n), "-p", strconv.Itoa(port)}
		on := func(i byte, more ...string) *exec.Cmd {
			cmd := ours.command(t, m, append(args, more...)...)
			cmd.Env = append(cmd.Environ(), "VERBENA_DEVICE=soft:udp="+ownnetwork.Addr(i).String())
			return cmd
		}
		server := process.Start(t, on(1))
		server.Eventually("listens", func() bool { return listens(port) })
		client := on(2, ownnetwork.Addr(1).String())
		counted := exec.Command("strace", append([]string{"-f", "--seccomp-bpf", "-c", "-U", "name,calls", "-e", "trace=" + sends + "," + refusals, "-o", file, "--"}, client.Args...)...)
		counted.Env = client.Env
		require.Zero(t, process.Run(t, counted).Wait())
		require.Zero(t, server.Wait())
		counts[k] = readCalls(t, file)
	}
	each := func(what string) float64 { return (counts[1][what] - counts[0][what]) / n }
	t.Logf("for each message and its answer: %.2f of %s, %.2f of %s", each(sends), sends, each(refusals), refusals)
	require.Positive(t, each(sends))
	require.LessOrEqual(t, each(sends), 2.1)
	require.LessOrEqual(t, each(refusals), 0.1)
}

// readCalls returns how often strace saw each system call.
func readCalls(t *testing.T, file string) map[string]float64 {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, calls, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if n, err := strconv.ParseFloat(strings.TrimSpace(calls), 64); err == nil { // or it is a heading
				all[name] = n
			}
		}
	}
	return all
}
