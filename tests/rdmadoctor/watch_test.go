package rdmadoctor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// watch is a running rdmawatch.
type watch struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of standard output, closed at its end
	stderr chan string // lines of standard error, closed at its end
}

// startWatch returns when the program watches.
func startWatch(t *testing.T, args ...string) *watch {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	cmd.Env = append(os.Environ(), programEnv+"=rdmawatch")
	w := &watch{t: t, cmd: cmd, lines: make(chan string, 1000), stderr: make(chan string, 1000)}
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for scanner, lines := range map[*bufio.Scanner]chan string{bufio.NewScanner(stdout): w.lines, bufio.NewScanner(stderr): w.stderr} {
		go func() {
			defer close(lines)
			for scanner.Scan() {
				lines <- scanner.Text()
			}
		}()
	}
	require.Contains(t, w.line(w.stderr), "rdmawatch: watching ")
	return w
}

func (w *watch) line(lines chan string) string {
	w.t.Helper()
	select {
	case line := <-lines:
		return line
	case <-time.After(patience):
		require.Fail(w.t, "no more lines")
		return ""
	}
}

// sees reads lines until those have come that end so, in any order.
func (w *watch) sees(ends ...string) {
	w.t.Helper()
	for len(ends) > 0 {
		line := w.line(w.lines)
		w.t.Log(line)
		stamp, _, _ := strings.Cut(line, " ")
		_, err := time.Parse(time.RFC3339Nano, stamp)
		require.NoError(w.t, err, "%q, waiting for %q", line, ends)
		ends = slices.DeleteFunc(ends, func(end string) bool { return strings.HasSuffix(line, end) })
	}
}

// ends reads the rest and returns the exit status.
func (w *watch) ends() int {
	w.t.Helper()
	for line := range w.stderr {
		require.Fail(w.t, "on standard error: "+line)
	}
	for line := range w.lines {
		w.t.Log(line)
	}
	_ = w.cmd.Wait()
	return w.cmd.ProcessState.ExitCode()
}

func TestWatchPorts(t *testing.T) {
	needGuest(t)
	w := startWatch(t, "-d", "rxe0")
	system(t, "ip link set rdma0 down")
	w.sees(" rxe0 1 port error")
	system(t, "ip link set rdma0 up")
	w.sees(" rxe0 1 port active")
	system(t, address6)
	w.sees(" rxe0 1 GID table change")
	require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
	require.Zero(t, w.ends())
	healthy(t, self(t))
}

// Devices come and go; one that is not to be watched is not told of.
func TestWatchDevices(t *testing.T) {
	needGuest(t)
	all, one := startWatch(t), startWatch(t, "-d", "rxe0")
	system(t, `
		ip link add rdma9 type veth peer name rdma10
		ip address add 203.0.113.1/24 dev rdma9
		ip link set rdma10 up
		ip link set rdma9 up
		rdma link add rxe9 type rxe netdev rdma9`)
	all.sees(" rxe9 - device added")
	system(t, "rdma link delete rxe9")
	all.sees(" rxe9 1 RDMA_CM_EVENT_DEVICE_REMOVAL", " rxe9 - device removed")
	system(t, "rdma link add rxe9 type rxe netdev rdma9") // of a name that was there
	all.sees(" rxe9 - device added")
	system(t, "ip link delete rdma9") // and the device with it
	all.sees(" rxe9 1 RDMA_CM_EVENT_DEVICE_REMOVAL", " rxe9 - device removed")
	for _, w := range []*watch{all, one} {
		require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
	}
	require.Zero(t, all.ends())
	require.NotContains(t, <-one.lines, "rxe9")
	require.Zero(t, one.ends())
}

// With a number of events it ends by itself, and with JSON each line is an
// object.
func TestWatchCount(t *testing.T) {
	needGuest(t)
	w := startWatch(t, "-j", "-c", "2", "-d", "rxe0", "-d", "rxe9")
	system(t, "ip link set rdma0 down; ip link set rdma0 up;"+address6)
	for range 2 {
		var e struct {
			Time          time.Time
			Device, Event string
			Port          int
		}
		decoder := json.NewDecoder(bytes.NewBufferString(w.line(w.lines)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&e))
		require.Equal(t, "rxe0", e.Device)
		require.Equal(t, 1, e.Port)
		require.NotEmpty(t, e.Event)
		require.False(t, e.Time.IsZero())
	}
	require.Zero(t, w.ends())
	healthy(t, self(t))
}
