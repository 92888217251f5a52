// SPDX-License-Identifier: Apache-2.0

// Package process runs programs as processes for a test: those of the system,
// and those that are in the test binary itself, which becomes one of them when
// a test has started it.
package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// programEnv says which program of the test binary's a process is.
const programEnv = "VERBENA_TEST_PROGRAM"

// patience bounds hangs. It is long, as an emulated machine may have little
// time.
const patience = 5 * time.Minute

// The statuses of a program that is not there, and of one that has returned and
// left something open.
const (
	exitUnknown = 98
	exitLeaked  = 99
)

// Program is a main function that returns the exit status.
type Program = func(args []string, stdout, stderr io.Writer) int

// Become makes this process one of the programs, if a test has started it as
// that. It does not return then. TestMain calls it before it runs the tests.
func Become(programs map[string]Program) {
	name := os.Getenv(programEnv)
	if name == "" {
		return
	}
	program := programs[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "this test binary has no program %q\n", name)
		os.Exit(exitUnknown)
	}
	os.Exit(program(os.Args[1:], os.Stdout, os.Stderr))
}

// only is the name of the program of a test binary that has one.
const only = "main"

// BecomeMain is Become for the package's own main function, which StartMain and
// RunMain start. If it returns, it must have closed every object.
func BecomeMain(main func()) {
	Become(map[string]Program{only: func(_ []string, _, stderr io.Writer) int {
		main()
		if left := ibverbs.OpenObjects(); len(left) > 0 {
			fmt.Fprintf(stderr, "%d objects were not closed:\n%s\n", len(left), strings.Join(left, "\n"))
			return exitLeaked
		}
		return 0
	}})
}

// Env returns the environment in which the test binary becomes a program.
func Env(program string) []string { return append(os.Environ(), programEnv+"="+program) }

// Self returns the path of the test binary.
func Self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// Command returns how a program of the test binary is started.
func Command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Self(t), args...)
	cmd.Env = Env(program)
	return cmd
}

// aloneEnv names the test that a process of Alone runs.
const aloneEnv = "VERBENA_TEST_ALONE"

// Alone runs a test again in a process of its own, with more in its
// environment, and returns true there. Otherwise it returns false, and the test
// has failed if it has failed there.
func Alone(t testing.TB, env ...string) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	cmd := exec.Command(Self(t), "-test.run=^"+t.Name()+"$", "-test.v", "-test.paniconexit0")
	cmd.Env = append(append(os.Environ(), aloneEnv+"="+t.Name()), env...)
	p := Run(t, cmd)
	require.Zero(t, p.Wait(), p.Output())
	require.Contains(t, p.Stdout(), "--- PASS: "+t.Name()+" ", p.Output())
	return false
}

// Process is a process that runs or has ended.
type Process struct {
	Stdin          io.WriteCloser
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr output
	read           int // of stdout, by Line
	done           chan struct{}
}

// Start starts a process, with its input and output connected to the test. It
// is killed if it outlives the test; if the test fails, the log has what it
// printed.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	var err error
	p.Stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the status says how it went
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if it has not ended
		<-p.done
		if t.Failed() {
			t.Logf("%v: %v\n%s", cmd.Args, cmd.ProcessState, p.Output())
		}
	})
	return p
}

// Run runs a process to its end, without input.
func Run(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := Start(t, cmd)
	_ = p.Stdin.Close() // it may have ended
	p.Wait()
	return p
}

// StartMain starts the program that BecomeMain was given.
func StartMain(t testing.TB, args ...string) *Process {
	t.Helper()
	return Start(t, Command(t, only, args...))
}

// RunMain runs that program to its end, without input.
func RunMain(t testing.TB, args ...string) *Process {
	t.Helper()
	return Run(t, Command(t, only, args...))
}

// Misused runs that program with arguments that are wrong, as many times as
// there are lines, and checks that it says so.
func Misused(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		p := RunMain(t, strings.Fields(line)...)
		require.Equal(t, 2, p.Wait(), "%q", line)
		require.Empty(t, p.Stdout(), "%q", line)
		require.Contains(t, p.Stderr(), "usage:", "%q", line)
	}
}

// Pid returns the number of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

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
	var found []string
	p.Eventually("prints "+pattern, func() bool {
		found = re.FindStringSubmatch(o.String())
		return found != nil
	})
	return found[min(1, len(found)-1)]
}

// Line waits for the next line on standard output, and returns it.
func (p *Process) Line() (line string) {
	p.t.Helper()
	p.Eventually("prints another line", func() (ok bool) {
		line, _, ok = strings.Cut(p.Stdout()[p.read:], "\n")
		return ok
	})
	p.read += len(line) + 1
	return line
}

// Eventually waits until something is true, which it must be at the latest when
// the process has ended.
func (p *Process) Eventually(what string, isTrue func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ended := p.Ended()
		if isTrue() {
			return
		}
		require.False(p.t, ended, "the process has ended, and not yet: %s\n%v", what, p.cmd.Args)
		require.True(p.t, time.Now().Before(deadline), "not yet: %s\n%v", what, p.cmd.Args)
	}
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal to a process that has not ended.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// Kill ends the process, if it has not ended yet.
func (p *Process) Kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	p.Wait()
}

// Wait waits for the end and returns the exit status; -1 means that a signal
// has ended the process.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.Fail(p.t, "the process does not end", "%v", p.cmd.Args)
	}
	return p.cmd.ProcessState.ExitCode()
}

// EndedBy returns the signal that has ended the process, 0 if none has.
func (p *Process) EndedBy() syscall.Signal {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return 0
	}
	return status.Signal()
}

// Stdout returns what the process has printed on standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process has printed on standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Output returns Stdout and then Stderr.
func (p *Process) Output() string { return p.Stdout() + p.Stderr() }

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
