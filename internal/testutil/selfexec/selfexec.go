// Package selfexec runs the program that a test belongs to, as processes: the
// test binary is the program when a test has started it.
package selfexec

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// programEnv is set for processes that are the program.
const programEnv = "VERBENA_SELFEXEC"

// patience is how long anything may take that must happen.
const patience = 2 * time.Minute

// exitLeaked is the status of a program that has returned and left something open.
const exitLeaked = 99

// Main is for TestMain: it runs the tests, or the program's main function if a
// test has started this process.
func Main(m *testing.M, main func()) {
	if os.Getenv(programEnv) == "" {
		os.Exit(m.Run())
	}
	main()
	if left := ibverbs.OpenObjects(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d objects were not closed:\n%s\n", len(left), strings.Join(left, "\n"))
		os.Exit(exitLeaked)
	}
	os.Exit(0)
}

// Process is the program, running.
type Process struct {
	Stdin          io.WriteCloser
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr output
	done           chan struct{}
}

// Start starts the program. It is killed if it outlives the test.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &Process{t: t, cmd: exec.Command(self, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), programEnv+"=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.Stdin, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the status says how it went
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // if it has not ended
		<-p.done
		if t.Failed() {
			t.Logf("%s: %v\n%s%s", strings.Join(args, " "), p.cmd.ProcessState, &p.stdout, &p.stderr)
		}
	})
	return p
}

// Run runs the program to its end, without input.
func Run(t testing.TB, args ...string) *Process {
	t.Helper()
	p := Start(t, args...)
	require.NoError(t, p.Stdin.Close())
	p.Wait()
	return p
}

// Misused runs the program with arguments that are wrong, as many times as there
// are lines, and checks that it says so.
func Misused(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		p := Run(t, strings.Fields(line)...)
		require.Equal(t, 2, p.Wait(), "%q", line)
		require.Empty(t, p.Stdout(), "%q", line)
		require.Contains(t, p.Stderr(), "usage:", "%q", line)
	}
}

// Prints waits until what the process has printed on standard output matches a
// regular expression, and returns its first group, or else the whole match.
func (p *Process) Prints(pattern string) string {
	p.t.Helper()
	return p.matches(&p.stdout, pattern)
}

// Says is Prints for standard error.
func (p *Process) Says(pattern string) string {
	p.t.Helper()
	return p.matches(&p.stderr, pattern)
}

func (p *Process) matches(o *output, pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ended := p.ended()
		if found := re.FindStringSubmatch(o.String()); found != nil {
			return found[min(1, len(found)-1)]
		}
		require.False(p.t, ended, "the process has ended, and did not print %q", pattern)
		require.True(p.t, time.Now().Before(deadline), "the process does not print %q", pattern)
	}
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// Wait returns the exit status; -1 means that a signal has ended the process.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.Fail(p.t, "the process does not end", "%v", p.cmd.Args)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Stdout returns what the process has printed on standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process has printed on standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

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
