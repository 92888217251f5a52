// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"bytes"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// end is what came of a verbena perf.
type end struct {
	status int
	stderr string
}

func rdmaPerf(args ...string) <-chan end {
	ended := make(chan end, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		status := rdmaperf.Main(append([]string{"write_bw", "-e", "-R", "-p", "18614"}, args...), &stdout, &stderr)
		ended <- end{status, stderr.String()}
	}()
	return ended
}

// An interrupt ends verbena perf in the middle of a run, even while the kernel holds
// its queue pair. The device never completes anything.
func TestInterruptedWhileHeld(t *testing.T) {
	_, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	stop() // the runtime's goroutine for signals stays
	open(t)
	verbs := fakelib.OpenProvider(t)
	before := len(ibverbs.OpenObjects())
	reached, release := verbs.Hold("ibv_destroy_qp")
	server := rdmaPerf()
	client := rdmaPerf("127.0.0.1")
	require.Eventually(t, func() bool {
		select {
		case e := <-client: // too early
			require.Contains(t, e.stderr, "connection refused")
			client = rdmaPerf("127.0.0.1")
		default:
		}
		return slices.Contains(verbs.Names(), "ibv_post_send")
	}, 20*time.Second, 10*time.Millisecond)

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
	reached()
	var said []string
	for _, ended := range []<-chan end{server, client} {
		e := <-ended
		require.Equal(t, 130, e.status, e.stderr)
		said = append(said, e.stderr)
	}
	slices.Sort(said)
	require.Equal(t, "verbena perf: interrupted\n", said[0])
	require.True(t, strings.HasPrefix(said[1], "verbena perf: interrupted, and "), said[1])
	release()
	require.Eventually(t, func() bool { return len(ibverbs.OpenObjects()) == before }, 20*time.Second, 10*time.Millisecond)
}
