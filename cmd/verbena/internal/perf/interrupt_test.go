// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package perf

import (
	"bytes"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// end is what came of a verbena perf.
type end struct {
	status int
	stderr string
}

func writeBandwidth(port string, args ...string) <-chan end {
	ended := make(chan end, 1)
	go func() {
		var stdout, stderr bytes.Buffer
		status := Program().Main(append([]string{"write_bw", "-e", "-R", "-p", port}, args...), &stdout, &stderr)
		ended <- end{status, stderr.String()}
	}()
	return ended
}

// An interrupt ends verbena perf in the middle of a run, even while the kernel
// holds its queue pair. The device never completes anything.
func TestInterruptedWhileHeld(t *testing.T) {
	if !fakelib.RunCM(t) {
		return
	}
	_, stop := signal.NotifyContext(t.Context(), os.Interrupt)
	stop()                     // the runtime's goroutine for signals stays
	_, err := rdmacm.Devices() // which stay open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	verbs := fakelib.OpenProvider(t)
	fakelib.OpenCM(t)
	before := len(ibverbs.OpenObjects())
	reached, release := verbs.Hold("ibv_destroy_qp")
	ln, err := net.Listen("tcp", ":0") // finds a port
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	server := writeBandwidth(port)
	client := writeBandwidth(port, "127.0.0.1")
	require.Eventually(t, func() bool {
		select {
		case e := <-client: // too early
			require.Contains(t, e.stderr, "connection refused")
			client = writeBandwidth(port, "127.0.0.1")
		default:
		}
		return slices.Contains(verbs.Names(), "ibv_post_send")
	}, time.Minute, 10*time.Millisecond)

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
	require.Eventually(t, func() bool { return len(ibverbs.OpenObjects()) == before }, time.Minute, 10*time.Millisecond)
}
