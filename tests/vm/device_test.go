// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packages makes a folder as scripts/device does, with shell scripts in the
// place of the tests, and returns what runs them as in the guest. There, rdma
// has a process's objects twice, and then no more.
func packages(t *testing.T, scripts map[string]string) (folder string, guest func() string) {
	t.Helper()
	folder = t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755))
	}
	list := ""
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
		write(name+".test", "#!/bin/sh\n"+scripts[name])
		list += "example.com/" + name + " " + filepath.Join(folder, name) + " " + name + ".test\n"
	}
	list = strings.Replace(list, "b.test\n", "b-race.test -test.run=^(TestA|TestB)$\n", 1)
	require.NoError(t, os.Rename(filepath.Join(folder, "b.test"), filepath.Join(folder, "b-race.test")))
	write("list", list)
	write("results", "")
	write("rdma", `#!/bin/sh
		echo call >>"`+folder+`/calls"
		[ "$(wc -l <"`+folder+`/calls")" -gt 2 ] || echo "link rxe0/1 lqpn 17 pid 5 comm test"
		echo "link rxe0/1 lqpn 1 type GSI comm [ib_core]"`)
	return folder, func() string {
		cmd := exec.Command("../../scripts/device", "guest", folder, "-test.v")
		cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
		got := run(t, cmd)
		require.Zero(t, got.status, got.stderr)
		return regexp.MustCompile(`(?m) \d+s( under .*)?$`).ReplaceAllString(got.stdout, "$1")
	}
}

func results(t *testing.T, folder string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, "results"))
	require.NoError(t, err)
	return string(b)
}

// Packages run in their own folders, with the flags, and when the one before
// has left nothing behind.
func TestDevicePackages(t *testing.T) {
	where := `echo "$(basename "$PWD") $*"`
	folder, guest := packages(t, map[string]string{"a": where, "b": where, "c": where})
	require.Equal(t, "a -test.v\nok example.com/a\n"+
		"b -test.run=^(TestA|TestB)$ -test.v\nok example.com/b under the race detector\nc -test.v\nok example.com/c\n", guest())
	require.Equal(t, "ok\nok\nok\n", results(t, folder))
	calls, err := os.ReadFile(filepath.Join(folder, "calls"))
	require.NoError(t, err)
	require.Len(t, calls, len("call\n")*2*(3+1), "it looks twice after the first package")
}

// After a package that has failed, or died, the next guest goes on with the
// others.
func TestDevicePackageFails(t *testing.T) {
	folder, guest := packages(t, map[string]string{"a": "echo bad; exit 3", "b": "kill -9 $$", "c": "echo good"})
	require.Equal(t, "bad\nFAIL example.com/a\n", guest())
	require.Equal(t, "FAIL example.com/b under the race detector\n", guest())
	require.Equal(t, "good\nok example.com/c\n", guest())
	require.Equal(t, "FAIL\nFAIL\nok\n", results(t, folder))
}

// crashes names a file with the number of runs of TestCrash that are still to
// crash the guest.
const crashes = "VERBENA_TEST_CRASHES"

// TestCrash is not a test of its own: TestDeviceKernelCrashes has
// scripts/device run it in a guest.
func TestCrash(t *testing.T) {
	file := os.Getenv(crashes)
	if os.Getenv("RDMA_VM") == "" || file == "" {
		t.Skip("crashes the kernel: TestDeviceKernelCrashes runs it in a guest")
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	left, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	if left > 0 {
		require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(left-1)), 0o600))
		require.NoError(t, os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0o200))
	}
}

// A package during which the guest's kernel crashes is tested once more, in
// another guest. After a second crash it has failed.
func TestDeviceKernelCrashes(t *testing.T) {
	needVM(t, "stable")
	require.NoError(t, os.MkdirAll("../../bin", 0o755))
	for times, status := range map[int]int{1: 0, 2: 1} {
		t.Run(strconv.Itoa(times), func(t *testing.T) {
			dir, err := os.MkdirTemp("../../bin", "crashes") // which the guest can write
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
			file, err := filepath.Abs(filepath.Join(dir, "left"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(times)), 0o600))
			cmd := exec.Command("../../scripts/device", "-run", "^TestCrash$", "./tests/vm")
			cmd.Env = append(os.Environ(), crashes+"="+file, "VERBENA_VM_TIMEOUT=180")
			got := run(t, cmd)
			require.Equal(t, status, got.status, got.stderr)
			require.Contains(t, got.stdout, "device: the guest's kernel crashed while this ran, which is tested once more: ")
			require.Equal(t, status == 0, strings.Contains(got.stdout, "ok github.com/verbena-go/verbena/tests/vm "), got.stdout)
			require.Equal(t, times, strings.Count(got.stderr, "rdma-vm: the guest's kernel crashed\n"), got.stderr)
			left, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "0", string(left))
		})
	}
}
