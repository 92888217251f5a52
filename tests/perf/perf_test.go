package perf

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testdevice"
)

const iterations = "30"

// Either end may be perftest's.
func TestPerftest(t *testing.T) {
	d := testdevice.Require(t)
	for _, m := range []measurement{
		{"send", false},
		{"write", false},
		{"read", false},
		{"fetchadd", false},
		{"cmpswap", false},
		{"send", true},
		{"write", true},
		{"read", true},
		{"fetchadd", true},
	} {
		for _, pair := range [][2]program{{ours, theirs}, {theirs, ours}} {
			t.Run(m.String()+", "+pair[0].name+" client", func(t *testing.T) {
				for _, r := range run(t, d, pair[0], pair[1], m, "-n", iterations) {
					require.Equal(t, 30, r.Iterations)
					require.Positive(t, r.Typical+r.Average)
				}
			})
		}
	}
	for _, args := range []string{"-c UD", "-c UC", "-c UD -e", "-e", "-s 4000"} {
		t.Run("send latency "+args, func(t *testing.T) {
			m := measurement{"send", false}
			run(t, d, ours, theirs, m, append(strings.Fields(args), "-n", iterations)...)
			run(t, d, theirs, ours, m, append(strings.Fields(args), "-n", iterations)...)
		})
	}
}

// What perftest's programs of this version do not have, or do otherwise.
func TestBothEndsOurs(t *testing.T) {
	d := testdevice.Require(t)
	for _, tt := range []struct {
		m    measurement
		args string
		rows int
	}{
		{measurement{"writeimm", false}, "", 1},
		{measurement{"writeimm", true}, "-s 1000", 1},
		{measurement{"writeimm", false}, "-c UC -e", 1},
		{measurement{"send", false}, "-a -c UD", 10},
		{measurement{"write", false}, "-R", 1},
		{measurement{"send", false}, "-R -e", 1},
		{measurement{"send", false}, "-e --netpoll", 1},
		{measurement{"read", true}, "-e --netpoll", 1},
		{measurement{"read", true}, "-R -e", 1},
		{measurement{"write", true}, "-l 4 -t 16 -s 512", 1},
		{measurement{"send", true}, "-l 8 -Q 16 -t 32 -r 64 -s 100", 1},
		{measurement{"fetchadd", true}, "", 1},
		{measurement{"cmpswap", false}, "", 1},
	} {
		t.Run(tt.m.String()+" "+tt.args, func(t *testing.T) {
			rows := run(t, d, ours, ours, tt.m, append(strings.Fields(tt.args), "-n", "32")...)
			require.Len(t, rows, tt.rows)
		})
	}
}

// A sweep of sizes over all programs that have one, between which both ends keep
// in step.
func TestSweep(t *testing.T) {
	d := testdevice.Require(t)
	m := measurement{"send", false}
	for _, pair := range [][2]program{{ours, theirs}, {theirs, ours}} {
		rows := run(t, d, pair[0], pair[1], m, "-a", "-n", "5")
		require.Len(t, rows, 23)
		require.Equal(t, 8<<20, rows[22].Bytes)
	}
}

// A peer that is killed, and one that is not there, end the other one.
func TestPeerGoes(t *testing.T) {
	d := testdevice.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, m := range []measurement{{"write", false}, {"send", false}, {"send", true}} {
		command := append(ours.command(m), "-n", "1000000", "-p", "18599")
		server := exec.CommandContext(ctx, command[0], command[1:]...)
		server.Env = append(server.Environ(), selfEnv+"=1")
		require.NoError(t, server.Start())
		require.Eventually(t, func() bool { return listens(18599) }, patience, tick)
		client := exec.CommandContext(ctx, command[0], append(command[1:], d.IPv4.String())...)
		client.Env = server.Env
		var out strings.Builder
		client.Stderr = &out
		require.NoError(t, client.Start())
		ended := make(chan error, 1)
		go func() { ended <- client.Wait() }()
		require.Eventually(t, func() bool { return connected(t) || len(ended) > 0 }, patience, tick)
		require.NoError(t, server.Process.Kill())
		require.Error(t, server.Wait())
		var failed *exec.ExitError
		require.ErrorAs(t, <-ended, &failed, m)
		require.Equal(t, 1, failed.ExitCode(), "%v: %s", m, &out)
		require.Contains(t, out.String(), "rdmaperf: ")
	}
}
