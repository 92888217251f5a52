// SPDX-License-Identifier: Apache-2.0

// Package process runs programs as processes for a test: programs of the
// system, and programs that are functions in the test binary. For those, the
// test starts its own binary again, which then runs the function.
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

// programEnv is the environment variable that names the program which the test
// binary runs instead of its tests.
const programEnv = "VERBENA_TEST_PROGRAM"

// patience limits the time that tests wait. It is long, since an emulated
// machine may be slow.
const patience = 5 * time.Minute

// Exit statuses of a program that does not exist, and of one that returned and
// left something open.
const (
	exitUnknown = 98
	exitLeaked  = 99
)

// Program is a main function that returns the exit status.
type Program = func(args []string, stdout, stderr io.Writer) int

// Become runs one of the programs and exits, if a test has started this process
// for that. Otherwise it returns. TestMain must call it before it runs the
// tests.
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

// only is the name of the program in a test binary of BecomeMain.
const only = "main"

// BecomeMain is like Become, for the main function of the package under test,
// which StartMain and RunMain start. When main returns, it must have closed all
// objects of ibverbs.
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

// Env returns the environment in which the test binary runs a program.
func Env(program string) []string { return append(os.Environ(), programEnv+"="+program) }

// Self returns the path of the test binary.
func Self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// Command returns a command that runs a program of the test binary.
func Command(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Self(t), args...)
	cmd.Env = Env(program)
	return cmd
}

// aloneEnv is the environment variable that names the test which a process of
// Alone runs.
const aloneEnv = "VERBENA_TEST_ALONE"

// Alone runs the calling test again in a process of its own, with env added to
// its environment. In that process it returns true. Otherwise it waits for the
// process, makes the test fail if it failed there, and returns false.
func Alone(t testing.TB, env ...string) bool {
	t.Helper()
	if IsAlone(t) {
		return true
	}
	cmd := exec.Command(Self(t), "-test.run=^"+t.Name()+"$", "-test.v", "-test.paniconexit0")
	cmd.Env = append(append(os.Environ(), aloneEnv+"="+t.Name()), env...)
	p := Run(t, cmd)
	require.Zero(t, p.Wait(), p.Output())
	require.Contains(t, p.Stdout(), "--- PASS: "+t.Name()+" ", p.Output())
	return false
}

// IsAlone reports whether this is a process of Alone for the calling test.
func IsAlone(t testing.TB) bool { return os.Getenv(aloneEnv) == t.Name() }

// Process is a process that a test has started.
type Process struct {
	Stdin          io.WriteCloser
	t              testing.TB
	cmd            *exec.Cmd
	stdout, stderr output
	read           int           // number of bytes of stdout that Line has returned
	done           chan struct{} // closed when the process has ended
}

// Start starts a process whose standard input, output and error are connected
// to the test. The process is killed at the end of the test. If the test fails,
// its log shows what the process has printed.
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
		_ = cmd.Wait() // the error is dropped: the exit status says the same
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if the process has ended
		<-p.done
		if t.Failed() {
			t.Logf("%v: %v\n%s", cmd.Args, cmd.ProcessState, p.Output())
		}
	})
	return p
}

// Run starts a process without input, and waits for its end.
func Run(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := Start(t, cmd)
	_ = p.Stdin.Close() // fails if the process has ended
	p.Wait()
	return p
}

// StartMain starts the program of BecomeMain.
func StartMain(t testing.TB, args ...string) *Process {
	t.Helper()
	return Start(t, Command(t, only, args...))
}

// RunMain starts the program of BecomeMain without input, and waits for its
// end.
func RunMain(t testing.TB, args ...string) *Process {
	t.Helper()
	return Run(t, Command(t, only, args...))
}

// Misused runs the program of BecomeMain once for each of lines, which are
// wrong arguments, and requires that it prints its usage and exits with status
// 2.
func Misused(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		p := RunMain(t, strings.Fields(line)...)
		require.Equal(t, 2, p.Wait(), "%q", line)
		require.Empty(t, p.Stdout(), "%q", line)
		require.Contains(t, p.Stderr(), "usage:", "%q", line)
	}
}

// Pid returns the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Prints waits until the standard output of the process matches a regular
// expression. It returns the first group, or the whole match if there is none.
func (p *Process) Prints(pattern string) string {
	p.t.Helper()
	return p.matches(&p.stdout, pattern)
}

// Says is like Prints for standard error.
func (p *Process) Says(pattern string) string {
	p.t.Helper()
	return p.matches(&p.stderr, pattern)
}

// matches does the work of Prints and Says.
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

// Eventually waits until isTrue returns true. The test fails if it does not
// before the process has ended; what names the condition in the message.
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

// Kill kills the process, if it has not ended, and waits for its end.
func (p *Process) Kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	p.Wait()
}

// Wait waits for the end of the process and returns the exit status, or -1 if a
// signal has killed it.
func (p *Process) Wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		require.Fail(p.t, "the process does not end", "%v", p.cmd.Args)
	}
	return p.cmd.ProcessState.ExitCode()
}

// EndedBy returns the signal that has killed the process, or 0 if it has ended
// by itself.
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
