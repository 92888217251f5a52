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

// Cmd returns how a program of the folder cmd is started. It builds the program
// if that is not up to date, and skips the test under go test -short.
func Cmd(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(CmdPath(t, program), args...)
	cmd.Env = os.Environ()
	return cmd
}

// CmdPath returns the path of a program of the folder cmd, and builds it as Cmd
// does. It skips the test under go test -short.
func CmdPath(t testing.TB, program string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: builds programs of the folder cmd; CI runs it")
	}
	folder, err := Build(program)
	require.NoError(t, err)
	return filepath.Join(folder, program)
}

// built has the folder of each program, by its name.
var built struct {
	mu      sync.Mutex
	folders map[string]string
}

// Build builds programs of the folder cmd, with the race detector if this test
// has it, and returns the folder that has them. In the VM, which has no time
// for that, scripts/programs has built them before it starts.
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

// moduleFolder returns the folder of this module, in which or below which every
// test runs.
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

// build builds programs and looks at each of their sources, so that go test
// runs the tests again when one has changed.
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

// printed runs a command in a folder and returns what it prints, without the
// last newline.
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
