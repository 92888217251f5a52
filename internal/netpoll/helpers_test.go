// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

// patience is how long a test waits for what must happen. It is generous,
// because a loaded machine is not a bug.
const patience = time.Minute

func TestMain(m *testing.M) {
	code := m.Run()
	if !becomesTrue(func() bool { return count("", "netpoll.(*FD)") == 0 }) {
		fmt.Fprintf(os.Stderr, "goroutines left in the package:\n%s\n", stacks())
		code = 1
	}
	os.Exit(code)
}

// pipe returns a pipe that is closed when the test ends.
func pipe(tb testing.TB) (r, w int) {
	tb.Helper()
	var p [2]int
	require.NoError(tb, syscall.Pipe(p[:]))
	tb.Cleanup(func() {
		_ = syscall.Close(p[0])
		_ = syscall.Close(p[1])
	})
	return p[0], p[1]
}

// open returns an FD for fd that is closed when the test ends.
func open(tb testing.TB, fd int) *netpoll.FD {
	tb.Helper()
	f, err := netpoll.New(fd, tb.Name())
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, f.Close()) })
	return f
}

// write writes without testify, so that any goroutine may call it.
func write(fd int, b ...byte) {
	for len(b) > 0 {
		n, err := syscall.Write(fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			panic(err)
		}
		b = b[n:]
	}
}

// read reads into buf; done is false on EAGAIN.
func read(fd int, buf []byte) (done bool, err error) {
	for {
		n, err := syscall.Read(fd, buf)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return false, nil
		case err != nil:
			return false, err
		case n == 0:
			return false, io.EOF
		default:
			return true, nil
		}
	}
}

// reader returns a try function that is done when it has read a byte.
func reader(fd int) func() (bool, error) {
	buf := make([]byte, 1)
	return func() (bool, error) { return read(fd, buf) }
}

// never is a try function that finds nothing.
func never() (bool, error) { return false, nil }

// begin calls Wait in a goroutine.
func begin(ctx context.Context, f *netpoll.FD, ready <-chan struct{}, try func() (bool, error)) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f.Wait(ctx, ready, try) }()
	return result
}

// end returns what Wait returned.
func end(tb testing.TB, result <-chan error) error {
	tb.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		require.FailNow(tb, "Wait does not return", "%s", stacks())
		return nil
	}
}

// parked waits until exactly so many goroutines are asleep in Wait.
func parked(tb testing.TB, pollers, waiters int) {
	tb.Helper()
	if !becomesTrue(func() bool {
		return count("[IO wait", "netpoll.(*FD).poll") == pollers &&
			count("[select", "netpoll.(*FD).waitForTurn") == waiters
	}) {
		require.FailNow(tb, "goroutines not parked", "%s", stacks())
	}
}

func becomesTrue(condition func() bool) bool {
	for limit := time.Now().Add(patience); time.Now().Before(limit); runtime.Gosched() {
		if condition() {
			return true
		}
	}
	return false
}

// count returns how many goroutines have the state and the function.
func count(state, function string) (n int) {
	for g := range strings.SplitSeq(stacks(), "\n\n") {
		header, frames, _ := strings.Cut(g, "\n")
		// The line "created by" names a function that is not running.
		frames, _, _ = strings.Cut(frames, "created by ")
		if strings.Contains(header, state) && strings.Contains(frames, function) {
			n++
		}
	}
	return n
}

func stacks() string {
	for buf := make([]byte, 1<<18); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return string(buf[:n])
		}
	}
}
