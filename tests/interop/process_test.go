package interop

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/mckey"
	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxserver"
	"github.com/verbena-go/verbena/internal/cmd/rping"
	"github.com/verbena-go/verbena/internal/cmd/ucmatose"
	"github.com/verbena-go/verbena/internal/cmd/udaddy"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything may take that must happen.
const patience = 30 * time.Second

// programEnv makes this program be one of those that the tests start.
const programEnv = "VERBENA_INTEROP_PROGRAM"

func TestMain(m *testing.M) {
	switch os.Getenv(programEnv) {
	case "":
		os.Exit(m.Run())
	case "udaddy":
		os.Exit(udaddy.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "mckey":
		os.Exit(mckey.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "rdmaclient":
		os.Exit(rdmaclient.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "rdmaserver":
		os.Exit(rdmaserver.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "rdmaxclient":
		os.Exit(rdmaxclient.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "rdmaxserver":
		os.Exit(rdmaxserver.Main(os.Args[1:], os.Stdout, os.Stderr))
	case "datagrams":
		os.Exit(datagramsMain(os.Args[1], os.Stdout))
	case "ucmatose":
		os.Exit(ucmatose.Main(os.Args[1:], os.Stdout, os.Stderr))
	default:
		os.Exit(rping.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind, in this process or in the kernel.
func needDevice(t *testing.T) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	for _, program := range []string{"rping", "rdma"} {
		_, err := exec.LookPath(program)
		require.NoError(t, err)
	}
	testdevice.NoLeaks(t)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return len(resources(t, "cm_id")) == 0 }, patience, 20*time.Millisecond)
		for _, qp := range resources(t, "qp") {
			require.NotContains(t, qp, "type RC")
			require.NotContains(t, qp, "type UD")
		}
	})
	return d
}

// resources returns what the kernel says of the objects of a kind, one line
// each.
func resources(t *testing.T, kind string) []string {
	t.Helper()
	out, err := exec.Command("rdma", "resource", "show", kind).Output()
	require.NoError(t, err)
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

// program is one that a test starts.
type program struct {
	name    string
	self    bool // this test binary
	command string
}

var (
	ours   = program{"Go", true, "rping"}
	theirs = program{"C", false, "rping"}
)

// process is a program that runs.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{}
	status         int // valid when done is closed; -1 after a signal
}

// output is what a process has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the program. It is killed if it outlives the test.
func (p program) start(t *testing.T, args ...string) *process {
	t.Helper()
	path := p.command
	if p.self {
		var err error
		path, err = os.Executable()
		require.NoError(t, err)
	}
	r := &process{
		t: t, cmd: exec.Command(path, args...),
		stdout: new(output), stderr: new(output), done: make(chan struct{}),
	}
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	r.cmd.Env = append(os.Environ(), programEnv+"="+p.command)
	require.NoError(t, r.cmd.Start())
	go func() {
		defer close(r.done)
		err := r.cmd.Wait()
		r.status = r.cmd.ProcessState.ExitCode()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // if it has not ended
		<-r.done
		if t.Failed() {
			t.Logf("%s %s %s: status %d\n%s%s", p.name, p.command, strings.Join(args, " "), r.status, r.stdout, r.stderr)
		}
	})
	return r
}

// run runs the program to its end.
func (p program) run(t *testing.T, args ...string) *process {
	t.Helper()
	r := p.start(t, args...)
	r.wait()
	return r
}

// serve starts the program as a server and returns when it listens.
func (p program) serve(t *testing.T, args ...string) *process {
	t.Helper()
	r := p.start(t, append([]string{"-s"}, args...)...)
	r.listens()
	return r
}

// listens waits until the process does.
func (r *process) listens() {
	r.t.Helper()
	r.eventually("listens", func() bool {
		return slices.ContainsFunc(resources(r.t, "cm_id"), func(id string) bool {
			_, after, _ := strings.Cut(id, " pid ")
			thread, _, _ := strings.Cut(after, " ") // the one that made it, not the process
			_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%s", r.cmd.Process.Pid, thread))
			return strings.Contains(id, "state LISTEN") && err == nil
		})
	})
}

// eventually waits for something to come true while the process runs.
func (r *process) eventually(what string, isTrue func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !isTrue(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-r.done:
			if isTrue() {
				return
			}
			require.Failf(r.t, "the process has ended", "before this: %s", what)
		default:
		}
		require.True(r.t, time.Now().Before(deadline), what)
	}
}

// prints waits until the process has printed the text on standard output.
func (r *process) prints(text string) {
	r.t.Helper()
	r.eventually("prints "+text, func() bool { return strings.Contains(r.stdout.String(), text) })
}

func (r *process) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait returns the exit status.
func (r *process) wait() int {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		require.Fail(r.t, "the process does not end", "%v", r.cmd.Args)
	}
	return r.status
}

func (r *process) signal(s syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
}
