// SPDX-License-Identifier: Apache-2.0

// Package ibsim runs tests on a simulated InfiniBand fabric: ibsim of Debian's
// package ibsim-utils, whose library umad2sim takes the place of the kernel
// behind libibumad.
package ibsim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Fabric is a fabric that ibsim simulates.
type Fabric struct {
	name    string // name of ibsim's sockets
	cmd     *exec.Cmd
	process *os.Process
	console io.WriteCloser
	output  *os.File
}

// limit bounds how long a test waits for ibsim, or for a program.
const limit = 2 * time.Minute

// Environment variables of a test that runs on the simulated fabric: the test's
// name, and ibsim's process ID.
const (
	inside = "VERBENA_IBSIM_TEST"
	pid    = "VERBENA_IBSIM_PID"
)

// Descriptors of ibsim's console in a test that runs on the simulated fabric.
const (
	consoleFD = 3
	outputFD  = 4
)

// Require skips the test where ibsim or one of the programs is missing, and
// fails instead if VERBENA_REQUIRE_IBSIM is 1.
func Require(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range append([]string{"ibsim", "ibsim-run"}, programs...) {
		if _, err := find(program); err != nil {
			if os.Getenv("VERBENA_REQUIRE_IBSIM") == "1" {
				t.Fatalf("VERBENA_REQUIRE_IBSIM is 1, but: %v", err)
			}
			t.Skipf("%v; scripts/test setup installs it", err)
		}
	}
}

// find returns the path of a program. It looks in PATH, in /usr/sbin, and in
// the folder to which scripts/test setup downloads programs.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	for _, folder := range []string{"/usr/sbin", filepath.Join(opensm(), "usr/sbin")} {
		if path, err := exec.LookPath(filepath.Join(folder, program)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// opensm returns the folder with the downloaded opensm, which is not installed:
// it would run on the machine's own fabric.
func opensm() string {
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		_, file, _, _ := runtime.Caller(0)
		cache = filepath.Join(filepath.Dir(file), "../../../.cache")
	}
	return filepath.Join(cache, "opensm")
}

var fabrics atomic.Int64

// Start simulates the fabric that net describes, in the form that ibnetdiscover
// prints and ibsim reads. The simulation ends with the test.
func Start(t testing.TB, net string) *Fabric {
	t.Helper()
	Require(t)
	file := filepath.Join(t.TempDir(), "net")
	require.NoError(t, os.WriteFile(file, []byte(net), 0o600))
	ibsim, err := find("ibsim")
	require.NoError(t, err)
	f := &Fabric{name: fmt.Sprintf("verbena-%d-%d", os.Getpid(), fabrics.Add(1))}
	f.cmd = exec.Command(ibsim, "-s", "-N", "20000", "-S", "5000", "-P", "200000", file)
	f.cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+f.name)
	f.console, err = f.cmd.StdinPipe()
	require.NoError(t, err)
	var write *os.File
	f.output, write, err = os.Pipe()
	require.NoError(t, err)
	f.cmd.Stdout, f.cmd.Stderr = write, nil
	require.NoError(t, f.cmd.Start())
	f.process = f.cmd.Process
	require.NoError(t, write.Close())
	t.Cleanup(func() {
		f.Kill()
		_ = f.output.Close()
	})
	f.prompt(t)
	return f
}

// Kill ends the simulation at once.
func (f *Fabric) Kill() {
	_ = f.process.Kill()
	if f.cmd != nil {
		_ = f.cmd.Wait()
	}
}

// prompt returns what ibsim prints before its prompt.
func (f *Fabric) prompt(t testing.TB) string {
	t.Helper()
	require.NoError(t, f.output.SetReadDeadline(time.Now().Add(limit)))
	var text bytes.Buffer
	buffer := make([]byte, 4096)
	for !strings.HasSuffix(text.String(), "sim> ") {
		n, err := f.output.Read(buffer)
		text.Write(buffer[:n])
		require.NoError(t, err, "ibsim printed no prompt, but %q", text.String())
	}
	return strings.TrimSuffix(text.String(), "sim> ")
}

// Do makes ibsim execute console commands, and returns what it prints.
func (f *Fabric) Do(t testing.TB, commands ...string) string {
	t.Helper()
	var text strings.Builder
	for _, command := range commands {
		_, err := io.WriteString(f.console, command+"\n")
		require.NoError(t, err)
		text.WriteString(f.prompt(t))
	}
	return text.String()
}

// Command returns the command that runs a program on the simulated fabric. host
// is the node on which it runs; if it is empty, that is the first node of the
// fabric.
func (f *Fabric) Command(t testing.TB, host, program string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := find(program)
	require.NoError(t, err)
	run, err := find("ibsim-run")
	require.NoError(t, err)
	cmd := exec.Command(run, append([]string{path}, args...)...)
	cmd.Dir = t.TempDir() // umad2sim makes folders in it
	// ibsim-run would append its library to LD_PRELOAD, but misspells the
	// variable.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
	cmd.Env = append(cmd.Env, "IBSIM_SOCKNAME="+f.name)
	if host != "" {
		cmd.Env = append(cmd.Env, "SIM_HOST="+host)
	}
	return cmd
}

// Run runs a program on the simulated fabric, and returns what it prints. The
// test fails if the program fails.
func (f *Fabric) Run(t testing.TB, host, program string, args ...string) string {
	t.Helper()
	cmd := f.Command(t, host, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, run(cmd), "%v: %s%s", cmd.Args, &stdout, &stderr)
	return stdout.String()
}

// run runs a program within the limit.
func run(cmd *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	return cmd.Wait()
}

// Within runs the calling test again, in a process of its own, and calls f in
// that process. The process runs on the node host of a simulated fabric; if
// host is empty, on the first node. A test may call Within only once, and a
// subtest may not call it, since umad2sim knows one fabric for each process.
func Within(t *testing.T, net, host string, f func(t *testing.T, fabric *Fabric)) {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		number, err := strconv.Atoi(os.Getenv(pid))
		require.NoError(t, err)
		process, err := os.FindProcess(number)
		require.NoError(t, err)
		f(t, &Fabric{
			name: os.Getenv("IBSIM_SOCKNAME"), process: process,
			console: os.NewFile(consoleFD, "console"), output: nonblocking(outputFD),
		})
		return
	}
	fabric := Start(t, net)
	cmd := fabric.Command(t, host, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout="+limit.String())
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0", inside+"="+t.Name(), fmt.Sprintf("%s=%d", pid, fabric.process.Pid))
	read, write, err := os.Pipe() // connects the test to ibsim's console
	require.NoError(t, err)
	go func() {
		_, _ = io.Copy(fabric.console, read)
		_ = read.Close()
	}()
	cmd.ExtraFiles = []*os.File{write, fabric.output}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err = run(cmd)
	require.NoError(t, write.Close())
	require.NoError(t, err, "%s", &output)
	require.Contains(t, output.String(), "--- PASS: "+t.Name()+" ", "%s", &output)
	if testing.Verbose() {
		t.Logf("%s", &output)
	}
}

// AssignLIDs runs opensm once on a host. opensm gives LIDs to the ports, fills
// in the forwarding tables, and makes the links active.
func (f *Fabric) AssignLIDs(t testing.TB, host string) {
	t.Helper()
	Require(t, "opensm")
	cmd := f.Command(t, host, "opensm", "--once", "--log_file", "opensm.log")
	libraries, err := filepath.Glob(filepath.Join(opensm(), "usr/lib/*"))
	require.NoError(t, err)
	cmd.Env = append(cmd.Env, "OSM_CACHE_DIR="+cmd.Dir, "OSM_TMP_DIR="+cmd.Dir, "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, run(cmd), "%s", &output)
	require.Contains(t, output.String(), "Entering MASTER state")
}
