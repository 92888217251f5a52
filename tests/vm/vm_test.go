// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// outcome is what one run of rdma-vm left.
type outcome struct {
	status         int
	stdout, stderr string
}

// command returns rdma-vm as it is run here: env adds to, or overrides, the
// environment.
func command(t *testing.T, env []string, argv ...string) *exec.Cmd {
	t.Helper()
	// Longer than the runner's own limit, which is thereby tested: it has to
	// end first.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	runner, err := filepath.Abs("rdma-vm")
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, runner, argv...)
	cmd.Env = append(os.Environ(), "VERBENA_VM_TIMEOUT=240", "VERBENA_VM_VERBOSE=", "VERBENA_VM_HOSTS=1")
	cmd.Env = append(cmd.Env, env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	return cmd
}

func run(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// rdmaVM runs a command in a guest.
func rdmaVM(t *testing.T, env []string, argv ...string) outcome {
	t.Helper()
	return run(t, command(t, env, argv...))
}

// cacheFolder is where rdma-vm looks for kernels.
func cacheFolder(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("VERBENA_CACHE"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../.cache")
	require.NoError(t, err)
	return dir
}

// needVM skips a test where there is no QEMU or no such kernel, unless
// VERBENA_REQUIRE_VM=1 makes that a failure.
func needVM(t *testing.T, kernel string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a VM; CI runs it")
	}
	missing := ""
	if os.Getenv("RDMA_VM") == "1" {
		t.Skip("this is a guest already")
	} else if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		missing = "no qemu-system-x86_64: run scripts/setup vm"
	} else if _, err := os.Stat(filepath.Join(cacheFolder(t), "kernel", kernel, "complete")); err != nil {
		missing = "no " + kernel + " kernel: run tests/vm/fetch-kernel " + kernel
	}
	if missing == "" {
		return
	}
	if os.Getenv("VERBENA_REQUIRE_VM") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
}

// bothKernels runs a test on each kernel.
func bothKernels(t *testing.T, test func(t *testing.T, kernel string)) {
	for _, kernel := range []string{"stable", "current"} {
		t.Run(kernel, func(t *testing.T) {
			needVM(t, kernel)
			test(t, "VERBENA_VM_KERNEL="+kernel)
		})
	}
}

// countingQEMU puts a program before the real QEMU in PATH that counts its
// calls in a file; the shell lines of before run first. It returns the
// environment and the count.
func countingQEMU(t *testing.T, before string) (env []string, calls func() int) {
	t.Helper()
	real, err := exec.LookPath("qemu-system-x86_64")
	require.NoError(t, err)
	dir := t.TempDir()
	log := filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho call >>'" + log + "'\ncalls=$(wc -l <'" + log + "')\n" + before + "\nexec '" + real + "' \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755))
	env = []string{
		"PATH=" + dir + ":" + os.Getenv("PATH"),
		"VERBENA_VM_ACCEL=tcg", // so that the question whether KVM works is not counted
		"VERBENA_VM_KERNEL=stable",
	}
	return env, func() int {
		data, err := os.ReadFile(log)
		require.NoError(t, err)
		return strings.Count(string(data), "call\n")
	}
}

// Everything a command is given, and all that it gives back.
func TestCommand(t *testing.T) {
	bothKernels(t, func(t *testing.T, kernel string) {
		argument := "two words\nand 'a' \"second\" line $HOME \\"
		script := `printf '%s' "$1"; printf '%s' "$VERBENA_TEST_VALUE" >&2; pwd
			echo "$RDMA_VM$VERBENA_REQUIRE_DEVICE $(ulimit -l) $(hostname)"; exit 42`
		cmd := command(t, []string{kernel, "VERBENA_TEST_VALUE=a\nb  c "}, "sh", "-c", script, "-", argument)
		cmd.Dir = "../../scripts"
		dir, err := filepath.Abs(cmd.Dir)
		require.NoError(t, err)

		got := run(t, cmd)
		require.Equal(t, 42, got.status, got.stderr)
		require.Equal(t, argument+dir+"\n11 unlimited rdma-vm\n", got.stdout)
		require.Equal(t, "a\nb  c ", got.stderr)
	})
}

// Where stdout and stderr are one file, as "go test" has it, their order is
// kept. A process left in the background neither holds up the end nor loses
// output.
func TestOneStream(t *testing.T) {
	needVM(t, "stable")
	cmd := command(t, nil, "sh", "-c", "for i in 1 2 3; do echo out $i; echo err $i >&2; done; sleep infinity & echo done")
	both, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\ndone\n", string(both))
}

// The device works. Writes outside the repository stay in the guest, writes
// into it reach the host.
func TestDeviceAndWrites(t *testing.T) {
	bothKernels(t, func(t *testing.T, kernel string) {
		outside := t.TempDir()
		inside, err := os.MkdirTemp(".", "writes-*.tmp")
		require.NoError(t, err)
		defer os.RemoveAll(inside)
		got := rdmaVM(t, []string{kernel}, "sh", "-c", `rdma link show rxe0/1 && ip -o addr show dev rdma0 &&
			for a in 192.0.2.1 2001:db8::1; do ping -c 1 -W 5 $a >/dev/null || ip route get $a || exit 1; done
			echo x >"$1/f" && cat "$1/f" && echo y >"$2/f"`, "-", outside, inside)
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, got.stdout, "state ACTIVE")
		require.Contains(t, got.stdout, "192.0.2.1/24")
		require.Contains(t, got.stdout, "2001:db8::1/64")
		require.Regexp(t, "\nx\n$", got.stdout)
		require.NoFileExists(t, filepath.Join(outside, "f"))
		data, err := os.ReadFile(filepath.Join(inside, "f"))
		require.NoError(t, err)
		require.Equal(t, "y\n", string(data))
	})
}

func TestTimeLimit(t *testing.T) {
	needVM(t, "stable")
	t.Parallel() // it mostly waits
	limit := 30
	limited := func() outcome {
		return rdmaVM(t, []string{fmt.Sprint("VERBENA_VM_TIMEOUT=", limit)}, "sh", "-c", "echo before; exec sleep infinity")
	}
	got := limited()
	for ; got.stdout == "" && limit < 120; got = limited() {
		limit *= 2 // a busy machine has not started the command within the limit
	}
	require.Equal(t, 125, got.status)
	require.Equal(t, "before\n", got.stdout, "what was printed before must not be lost")
	require.Contains(t, got.stderr, fmt.Sprintf("no result within %d seconds (VERBENA_VM_TIMEOUT)", limit))
}

func TestOutputLimit(t *testing.T) {
	bothKernels(t, func(t *testing.T, kernel string) {
		got := rdmaVM(t, []string{kernel, "VERBENA_VM_MAX_OUTPUT=10000"}, "yes")
		require.Equal(t, 125, got.status)
		require.Equal(t, strings.Repeat("y\n", 5000), got.stdout)
		require.Contains(t, got.stderr, "output cut off after 10000 bytes (VERBENA_VM_MAX_OUTPUT)")
	})
}

// A guest that dies after it has started is not run a second time.
func TestPanicAfterStart(t *testing.T) {
	needVM(t, "stable")
	env, calls := countingQEMU(t, "")
	// What is still in the pipe dies with the guest, so this one waits for its
	// output to be out.
	got := rdmaVM(t, env, "sh", "-c", "echo before; until [ -s /run/rdma-vm/stdout ]; do :; done; "+
		"echo c >/proc/sysrq-trigger; exec sleep infinity")
	require.Equal(t, 126, got.status)
	require.Equal(t, "before\n", got.stdout)
	require.Contains(t, got.stderr, "Kernel panic")
	require.Contains(t, got.stderr, "the guest's kernel crashed")
	require.Equal(t, 1, calls())
}

// A guest that dies before it has started is tried once more. Here the kernel
// of the first boot is given a command line on which it panics: there is no
// such init.
func TestDeathBeforeStart(t *testing.T) {
	needVM(t, "stable")
	const broken = `[ "$calls" -gt LIMIT ] || exec REAL -nodefaults -display none -no-reboot -m 256M \
		-kernel "$(echo "$*" | sed 's/.*-kernel \([^ ]*\).*/\1/')" -serial stdio -append "console=ttyS0 panic=-1 quiet"`
	real, err := exec.LookPath("qemu-system-x86_64")
	require.NoError(t, err)
	for _, test := range []struct {
		limit  string // so many boots die
		status int
		stdout string
	}{
		{"1", 7, "hello\n"},
		{"9", 125, ""},
	} {
		t.Run("deaths="+test.limit, func(t *testing.T) {
			env, calls := countingQEMU(t, strings.NewReplacer("LIMIT", test.limit, "REAL", "'"+real+"'").Replace(broken))
			got := rdmaVM(t, env, "sh", "-c", "echo hello; exit 7")
			require.Equal(t, test.status, got.status, got.stderr)
			require.Equal(t, test.stdout, got.stdout)
			require.Contains(t, got.stderr, "Kernel panic")
			require.Contains(t, got.stderr, "the guest died before it had started: trying once more")
			require.Equal(t, 2, calls())
		})
	}
}

// A guest that hangs before it has started is tried once more, too.
func TestHangBeforeStart(t *testing.T) {
	needVM(t, "stable")
	t.Parallel() // it mostly waits
	env, calls := countingQEMU(t, `[ "$calls" -gt 1 ] || exec sleep infinity`)
	got := rdmaVM(t, append(env, "VERBENA_VM_START_LIMIT=60"), "sh", "-c", "echo hello; exit 7")
	require.Equal(t, 7, got.status, got.stderr)
	require.Equal(t, "hello\n", got.stdout)
	require.Contains(t, got.stderr, "the guest died before it had started: trying once more")
	require.Equal(t, 2, calls())
}

// On a signal the runner takes QEMU down and removes its temporary folder.
func TestInterrupt(t *testing.T) {
	needVM(t, "stable")
	tmp := t.TempDir()
	cmd := command(t, []string{"TMPDIR=" + tmp}, "sh", "-c", "echo ready; exec sleep infinity")
	// QEMU holds the writing end of stderr as well, so that Wait returns only
	// once it is gone.
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 6)
	_, err = stdout.Read(line)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(line))
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 130, exit.ExitCode())
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// Runs side by side share the start-up image and nothing else.
func TestTwoAtOnce(t *testing.T) {
	needVM(t, "stable")
	for _, n := range []string{"3", "4"} {
		t.Run(n, func(t *testing.T) {
			t.Parallel()
			got := rdmaVM(t, nil, "sh", "-c", "echo "+n+"; exit "+n)
			require.Equal(t, n+"\n", got.stdout)
			require.Equal(t, n, string(rune('0'+got.status)))
		})
	}
}

// rdma-core's rping between two network namespaces, each with a device of its
// own.
func TestTwoHosts(t *testing.T) {
	needVM(t, "current")
	const script = `
		for a in 198.51.100 2001:db8:1:; do
			case $a in *:) here=$a:1 there=$a:2 ;; *) here=$a.1 there=$a.2 ;; esac
			ip netns exec ns1 rping -s -a $there -C 5 -S 100 -V & server=$!
			until rdma resource show cm_id | grep -q LISTEN || ip netns exec ns1 rdma resource show cm_id | grep -q LISTEN; do
				kill -0 $server || exit 1
			done
			timeout 60 rping -c -a $there -I $here -C 5 -S 100 -v -V || exit 1
			wait $server || exit 1
		done`
	got := rdmaVM(t, []string{"VERBENA_VM_KERNEL=current", "VERBENA_VM_HOSTS=2"}, "sh", "-c", script)
	require.Zero(t, got.status, got.stderr)
	require.Equal(t, 10, strings.Count(got.stdout, "ping data: rdma-ping-"), got.stdout)
}

func TestTwoHostsNeedCurrentKernel(t *testing.T) {
	needVM(t, "stable")
	got := rdmaVM(t, []string{"VERBENA_VM_KERNEL=stable", "VERBENA_VM_HOSTS=2"}, "true")
	require.Equal(t, 125, got.status)
	require.Contains(t, got.stderr, "VERBENA_VM_KERNEL=current")
}

// What is missing is named, together with what mends it. None of this needs
// QEMU.
func TestMissingPieces(t *testing.T) {
	bash, err := exec.LookPath("bash")
	require.NoError(t, err)
	// Only the tools that rdma-vm needs before it looks for QEMU.
	path := t.TempDir()
	for _, tool := range []string{"readlink", "mkdir"} {
		file, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(file, filepath.Join(path, tool)))
	}
	require.NoError(t, os.Symlink(bash, filepath.Join(path, "bash")))

	t.Run("qemu", func(t *testing.T) {
		got := rdmaVM(t, []string{"PATH=" + path}, "true")
		require.Equal(t, 125, got.status)
		require.Contains(t, got.stderr, "qemu-system-x86_64 not found: run scripts/setup vm")
	})
	t.Run("command", func(t *testing.T) {
		got := rdmaVM(t, nil)
		require.Equal(t, 125, got.status)
		require.Contains(t, got.stderr, "no command given")
	})
	for kernel, want := range map[string]string{
		"stable":     "run tests/vm/fetch-kernel stable",
		"current":    "run tests/vm/fetch-kernel current",
		"trixie":     "run tests/vm/fetch-kernel trixie",
		"/no/kernel": "no kernel /no/kernel",
	} {
		t.Run("kernel "+kernel, func(t *testing.T) {
			needVM(t, "stable") // for the tools only
			got := rdmaVM(t, []string{"VERBENA_CACHE=" + t.TempDir(), "VERBENA_VM_KERNEL=" + kernel}, "true")
			require.Equal(t, 125, got.status)
			require.Contains(t, got.stderr, want)
		})
	}
}

// Whatever is no suite is refused before anybody is asked for it. The suites of
// the two names are the same kernels.
func TestFetchKernel(t *testing.T) {
	fetch := func(args ...string) outcome { return run(t, exec.Command("./fetch-kernel", args...)) }
	for _, args := range [][]string{{}, {""}, {"-x"}, {"../x"}, {"Trixie"}, {"trixie", "sid"}} {
		got := fetch(args...)
		require.Equal(t, 1, got.status, args)
		require.Contains(t, got.stderr, "usage: fetch-kernel stable|current|SUITE", args)
	}
	needVM(t, "stable")
	for name, suite := range map[string]string{"stable": "bookworm", "current": "sid"} {
		needVM(t, name)
		got := fetch(suite)
		require.Zero(t, got.status, got.stderr)
		require.Equal(t, fetch(name).stdout, got.stdout)
		link, err := os.Readlink(filepath.Join(cacheFolder(t), "kernel", suite))
		require.NoError(t, err)
		require.Equal(t, name, link)
	}
}
