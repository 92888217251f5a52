// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Cmd returns a command that starts a program of the directory cmd. It builds
// the program if necessary. Under go test -short, it skips the test.
func Cmd(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(CmdPath(t, program), args...)
	cmd.Env = os.Environ()
	return cmd
}

// CmdPath returns the path of a program of the directory cmd, which it builds
// if necessary. Under go test -short, it skips the test.
func CmdPath(t testing.TB, program string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: builds programs of the folder cmd; CI runs it")
	}
	folder, err := Build(program)
	require.NoError(t, err)
	return filepath.Join(folder, program)
}

// built has the directory of each program that was built, by name.
var built struct {
	mu      sync.Mutex
	folders map[string]string
}

// Build builds programs of the directory cmd, with the race detector if the
// test binary has it, and returns the directory with the programs. In the VM,
// which is too slow to build, it returns the directory in which
// scripts/programs has built them before.
func Build(programs ...string) (folder string, err error) {
	built.mu.Lock()
	defer built.mu.Unlock()
	var missing []string
	for _, program := range programs {
		if built.folders[program] == "" {
			missing = append(missing, program)
		}
	}
	if len(missing) == 0 {
		return built.folders[programs[0]], nil
	}
	top, err := moduleFolder()
	if err != nil {
		return "", err
	}
	if os.Getenv("RDMA_VM") != "" {
		folder = filepath.Join(top, "bin", "programs")
	} else if folder, err = build(top, missing); err != nil {
		return "", err
	}
	if built.folders == nil {
		built.folders = map[string]string{}
	}
	for _, program := range missing {
		built.folders[program] = folder
	}
	return folder, nil
}

// moduleFolder returns the root directory of this module. Tests run in it or
// below it.
func moduleFolder() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for folder := here; ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "scripts", "programs")); err == nil {
			return folder, nil
		}
		if folder == filepath.Dir(folder) {
			return "", fmt.Errorf("%s is not in a checkout of this module", here)
		}
	}
}

// build builds programs. It also calls os.Stat for each of their source files,
// so that go test repeats tests when one of these has changed.
func build(top string, programs []string) (folder string, err error) {
	args := programs
	if race {
		args = append([]string{"-race"}, programs...)
	}
	folder, err = printed(top, filepath.Join("scripts", "programs"), args...)
	if err != nil {
		return "", err
	}
	const files = "{{if .Module}}{{if .Module.Main}}{{$dir := .Dir}}" +
		`{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}{{range .CgoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}` +
		`{{range .CFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}{{range .HFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}` +
		"{{end}}{{end}}"
	args = []string{"list", "-deps", "-f", files}
	for _, program := range programs {
		args = append(args, "./cmd/"+program)
	}
	sources, err := printed(top, "go", args...)
	if err != nil {
		return "", err
	}
	for source := range strings.FieldsSeq(sources) {
		if _, err := os.Stat(source); err != nil {
			return "", err
		}
	}
	return folder, nil
}

// printed runs a command in a directory and returns its standard output without
// the last newline.
func printed(folder, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	if strings.Contains(name, string(filepath.Separator)) {
		cmd = exec.Command(filepath.Join(folder, name), args...)
	}
	cmd.Dir = folder
	text, err := cmd.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(failed.Stderr))
	}
	return strings.TrimSuffix(string(text), "\n"), err
}
