package matrix

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cmd/cmtime"
	"github.com/verbena-go/verbena/internal/cmd/mckey"
	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaperf"
	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaxserver"
	"github.com/verbena-go/verbena/internal/cmd/rping"
	"github.com/verbena-go/verbena/internal/cmd/ucmatose"
	"github.com/verbena-go/verbena/internal/cmd/udaddy"
)

// programs are ours, by the names of those that they are to work with.
var programs = map[string]func(args []string, stdout, stderr io.Writer) int{
	"cmtime": cmtime.Main, "mckey": mckey.Main, "rping": rping.Main, "ucmatose": ucmatose.Main, "udaddy": udaddy.Main,
	"rdma_client": rdmaclient.Main, "rdma_server": rdmaserver.Main,
	"rdma_xclient": rdmaxclient.Main, "rdma_xserver": rdmaxserver.Main, "rdmaperf": rdmaperf.Main,
}

// programEnv makes this program be one of those.
const programEnv = "VERBENA_MATRIX_PROGRAM"

// patience is how long anything may take that must happen.
const patience = time.Minute

// side is whose program it is.
type side bool

const (
	ours   side = true
	theirs side = false
)

func (s side) String() string { return map[side]string{ours: "Go", theirs: "C"}[s] }

// process is a program that runs on a host.
type process struct {
	t    testing.TB
	host host
	cmd  *exec.Cmd
	out  *output
	done chan struct{}
}

// output is what a process has printed so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
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

// start runs a program of either side, with C's flags. It is killed if it
// outlives the test.
func (s side) start(t testing.TB, h host, name, args string) *process {
	t.Helper()
	path, words := "stdbuf", append([]string{"-oL", name}, strings.Fields(args)...)
	if s == ours {
		path, words = self(t), strings.Fields(args)
	}
	p := &process{t: t, host: h, cmd: h.command(path, words...), out: new(output), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.Env = append(os.Environ(), programEnv+"="+name)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // if it has not ended
		<-p.done
		if t.Failed() {
			t.Logf("%v %s %s: %v\n%s", s, name, args, p.cmd.ProcessState, p.out)
		}
	})
	return p
}

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// eventually waits for something to come true.
func (p *process) eventually(what string, isTrue func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !isTrue(); time.Sleep(20 * time.Millisecond) {
		require.True(p.t, time.Now().Before(deadline), "%s\n%s", what, p.out)
	}
}

// listens waits until an id listens on the host.
func (p *process) listens() {
	p.t.Helper()
	p.eventually("listens", func() bool { return p.ended() || p.host.sees("state LISTEN", "rdma", "resource", "show", "cm_id") })
}

func (p *process) prints(text string) {
	p.t.Helper()
	p.eventually("prints "+text, func() bool { return strings.Contains(p.out.String(), text) })
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// status waits for the end and returns the exit status, -1 after a signal.
func (p *process) status() int {
	p.t.Helper()
	p.eventually("ends", p.ended)
	return p.cmd.ProcessState.ExitCode()
}

// succeeds waits for the end.
func (p *process) succeeds() {
	p.t.Helper()
	require.Zero(p.t, p.status(), p.out)
}

// fails waits for the end.
func (p *process) fails() {
	p.t.Helper()
	require.NotZero(p.t, p.status(), p.out)
}

func (p *process) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		require.NoError(p.t, err)
	}
	<-p.done
}
