// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const actionsFolder = "../.github/actions"

// action is a composite action, as GitHub reads action.yml.
type action struct {
	Name, Description string
	Inputs            map[string]struct {
		Description, Default string
		Required             bool
	}
	Runs struct {
		Using string
		Steps []step
	}
}

// step is one of an action, or of a workflow.
type step struct {
	Name, ID, If, Shell, Run, Uses string
	Env, With                      map[string]string
}

// readYAML reads a file. A key that the type does not have is an error.
func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	require.NoError(t, d.Decode(into), path)
}

func readAction(t *testing.T, name string) action {
	t.Helper()
	var a action
	readYAML(t, filepath.Join(actionsFolder, name, "action.yml"), &a)
	return a
}

// Each action is one that GitHub takes, and the guide tells of it and of all
// that it can be given.
func TestActions(t *testing.T) {
	guide := documents(t)["guide/testing.md"]
	folders, err := os.ReadDir(actionsFolder)
	require.NoError(t, err)
	require.Len(t, folders, 2)
	for _, folder := range folders {
		a := readAction(t, folder.Name())
		require.NotEmpty(t, a.Name)
		require.NotEmpty(t, a.Description)
		require.Equal(t, "composite", a.Runs.Using)
		require.Contains(t, guide, "- uses: verbena-go/verbena/.github/actions/"+folder.Name()+"@main\n")
		for name, input := range a.Inputs {
			require.NotEmpty(t, input.Description, name)
			require.Contains(t, guide, "`"+name+"`", folder.Name())
		}
		for _, s := range a.Runs.Steps {
			require.NotEmpty(t, s.Name)
			if s.Uses != "" {
				require.Regexp(t, `^actions/[a-z-]+@v\d+$`, s.Uses)
				require.Empty(t, s.Run)
				continue
			}
			require.Equal(t, "bash", s.Shell, s.Name)
			require.NotContains(t, s.Run, "${{", "%s: texts of the caller's must not become part of the script: take them from env", s.Name)
		}
	}
}

// The workflow uses the actions that there are, with inputs that they have.
func TestWorkflowUsesActions(t *testing.T) {
	var workflow struct {
		Name        string
		On          any
		Permissions map[string]string
		Env         map[string]string
		Jobs        map[string]struct {
			If      string
			RunsOn  string `yaml:"runs-on"`
			Timeout int    `yaml:"timeout-minutes"`
			Steps   []step
		}
	}
	readYAML(t, "../.github/workflows/ci.yml", &workflow)
	used := map[string]bool{}
	for _, job := range workflow.Jobs {
		for _, s := range job.Steps {
			name, ours := strings.CutPrefix(s.Uses, "./.github/actions/")
			if !ours {
				continue
			}
			used[name] = true
			a := readAction(t, name)
			for input := range s.With {
				require.Contains(t, a.Inputs, input, s.Uses)
			}
		}
	}
	require.Equal(t, []string{"soft-device", "vm"}, slices.Sorted(maps.Keys(used)))
}

// job is what GitHub's runner has of a job: the environment that its steps
// change.
type job struct {
	t    *testing.T
	dir  string            // the runner's own
	env  map[string]string // of the steps to come
	path []string          // before the rest
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{t: t, dir: t.TempDir(), env: map[string]string{"VERBENA_DEVICE": "", "VERBENA_HOSTILE": "", "VERBENA_NETWORK": t.Name(), "LD_LIBRARY_PATH": ""}}
	// Nothing is installed, and nothing done as another user.
	bin := filepath.Join(j.dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "sudo"), []byte("#!/bin/sh\n"), 0o755))
	j.env["DRY_RUN"] = "1"
	j.path = []string{bin}
	return j
}

var expression = regexp.MustCompile(`\$\{\{ ([^}]*) \}\}`)

// fill puts values in the place of GitHub's expressions.
func fill(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	return expression.ReplaceAllStringFunc(text, func(e string) string {
		name, want, compared := strings.Cut(expression.FindStringSubmatch(e)[1], " == ")
		value, ok := values[name]
		require.True(t, ok, "%s in %s", name, text)
		if compared {
			return fmt.Sprint("'"+value+"'" == want)
		}
		return value
	})
}

// use runs the steps of an action that are shell, as GitHub's runner does.
func (j *job) use(name string, with map[string]string) {
	j.t.Helper()
	a := readAction(j.t, name)
	values := map[string]string{}
	for input, about := range a.Inputs {
		values["inputs."+input] = about.Default
	}
	for input, value := range with {
		require.Contains(j.t, a.Inputs, input)
		values["inputs."+input] = value
	}
	folder, err := filepath.Abs(filepath.Join(actionsFolder, name))
	require.NoError(j.t, err)
	for _, s := range a.Runs.Steps {
		for _, value := range s.With {
			fill(j.t, value, values)
		}
		if s.Uses != "" || s.If != "" && fill(j.t, s.If, values) != "true" {
			continue
		}
		env := map[string]string{"GITHUB_ACTION_PATH": folder, "RUNNER_TEMP": j.dir}
		files := map[string]string{}
		for _, name := range []string{"GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT"} {
			files[name] = filepath.Join(j.dir, name)
			env[name] = files[name]
			require.NoError(j.t, os.WriteFile(files[name], nil, 0o600))
		}
		for name, value := range s.Env {
			env[name] = fill(j.t, value, values)
		}
		script := filepath.Join(j.dir, "script")
		require.NoError(j.t, os.WriteFile(script, []byte(s.Run), 0o600))
		j.run(j.dir, env, "bash", "--noprofile", "--norc", "-eo", "pipefail", script)

		for name, value := range j.lines(files["GITHUB_ENV"]) {
			j.env[name] = value
		}
		for name, value := range j.lines(files["GITHUB_OUTPUT"]) {
			values["steps."+s.ID+".outputs."+name] = value
		}
		paths, err := os.ReadFile(files["GITHUB_PATH"])
		require.NoError(j.t, err)
		j.path = append(strings.Fields(string(paths)), j.path...)
	}
}

// lines reads what a step has left for the others, a name and a value in each
// line.
func (j *job) lines(file string) map[string]string {
	j.t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(j.t, err)
	values := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		name, value, ok := strings.Cut(s.Text(), "=")
		require.True(j.t, ok, s.Text())
		values[name] = value
	}
	return values
}

// run runs a command as a step of the job, and returns what it prints.
func (j *job) run(dir string, env map[string]string, command ...string) string {
	j.t.Helper()
	cmd := exec.CommandContext(j.t.Context(), "/usr/bin/env", command...) // looks in the job's path
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(append(slices.Clone(j.path), os.Getenv("PATH")), ":"))
	for _, some := range []map[string]string{j.env, env} {
		for name, value := range some {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(j.t, err, "%v:\n%s", command, out)
	return string(out)
}

// newTested makes a module of its own with the tests that the guide shows.
func newTested(t *testing.T) consumer {
	t.Helper()
	c := newConsumer(t)
	for _, b := range blocks(documents(t)["guide/testing.md"]) {
		if b.language == "go" && fileName.MatchString(b.text) {
			require.NoError(t, os.Remove(filepath.Join(c.dir, "main.go")))
			require.NoError(t, os.WriteFile(filepath.Join(c.dir, fileName.FindStringSubmatch(b.text)[1]), []byte(b.text), 0o600))
			c.run(nil, "go", "mod", "tidy")
			return c
		}
	}
	require.Fail(t, "the guide has no test")
	return c
}

// modules is with what Go uses the module of a consumer.
var modules = map[string]string{"GOFLAGS": "-mod=mod", "GOWORK": "off", "CGO_ENABLED": "1"}

func TestSoftDeviceAction(t *testing.T) {
	notShort(t, "builds a consumer's tests")
	c := newTested(t)
	j := newJob(t)
	j.use("soft-device", map[string]string{"hostile": "a seed"})
	require.Equal(t, "soft", j.env["VERBENA_DEVICE"])
	require.Equal(t, "a seed", j.env["VERBENA_HOSTILE"])
	require.Empty(t, j.env["LD_LIBRARY_PATH"])
	out := j.run(c.dir, modules, "go", "test", "-count", "1", "-v", ".")
	require.Contains(t, out, "--- PASS: TestEcho")
	require.Contains(t, out, "--- PASS: TestLoss")
}

// A program that knows nothing of Verbena finds the device.
func TestSoftDeviceActionForC(t *testing.T) {
	notShort(t, "builds the C libraries of the device in user space")
	if _, err := exec.LookPath("ibv_devices"); err != nil {
		t.Skip("rdma-core's programs are not here: ", err)
	}
	j := newJob(t)
	j.use("soft-device", map[string]string{"c-programs": "true"})
	require.Contains(t, j.run(t.TempDir(), nil, "ibv_devices"), "soft0")
	require.Contains(t, j.run(t.TempDir(), nil, "verbena", "softroce", "-h"), "run a program on the device in user space")
}

// The tests of a module that is not this one run in a guest, on the kernel's
// device.
func TestVMAction(t *testing.T) {
	notShort(t, "starts a VM")
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		var err error
		cache, err = filepath.Abs("../.cache")
		require.NoError(t, err)
	}
	_, err := exec.LookPath("qemu-system-x86_64")
	if err == nil {
		_, err = os.Stat(filepath.Join(cache, "kernel/stable/complete"))
	}
	if err != nil {
		require.NotEqual(t, "1", os.Getenv("VERBENA_REQUIRE_VM"), err)
		t.Skip("no VM here (scripts/setup vm and tests/vm/fetch-kernel stable): ", err)
	}
	c := newTested(t)
	j := newJob(t)
	j.env["VERBENA_CACHE"] = cache
	j.use("vm", nil)
	require.Equal(t, "stable", j.env["VERBENA_VM_KERNEL"])
	out := j.run(c.dir, modules, "go", "test", "-count", "1", "-v", "-exec", "rdma-vm", ".")
	require.Contains(t, out, "--- PASS: TestEcho")
}
