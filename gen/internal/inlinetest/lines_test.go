// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// executed is what gcov says.
type executed struct {
	Files []struct {
		File  string
		Lines []struct {
			Line     int    `json:"line_number"`
			Function string `json:"function_name"`
			Count    int
			Branches []struct{ Count int }
		}
	}
}

// coverage returns the options with which the C compiler counts lines, nil if
// it cannot, or not for gcov.
func coverage(t *testing.T) []string {
	t.Helper()
	dir, options := t.TempDir(), []string{"--coverage"}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "empty.c"), []byte("int main(void) { return 0; }\n"), 0o600))
	for _, command := range []*exec.Cmd{
		exec.Command(cc(t), append(options, "-o", "empty.o", "-c", "empty.c")...),
		exec.Command(cc(t), append(options, "-o", "empty", "empty.o")...),
		exec.Command("gcov", append(gcovOptions, "empty.o")...),
	} {
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Logf("%s: %v\n%s", command, err, out)
			return nil
		}
	}
	return options
}

var gcovOptions = []string{"--json-format", "--stdout", "--branch-probabilities"}

// everyLine fails if the program, which was compiled and run in dir, never
// came to a line of a function of ours, or of the header's functions.
func everyLine(t *testing.T, dir string) {
	tested := map[string]bool{}
	for _, f := range Tested(input(t)) {
		tested[f.Name] = true
	}
	isOurs := func(file, function string) bool {
		return filepath.Base(file) == "stubs.c" && !strings.HasPrefix(function, "verbena_") && !strings.HasPrefix(function, "stub_")
	}
	isReal := func(_, function string) bool { return tested[function] }
	for _, part := range []struct {
		name    string
		object  string
		counted func(file, function string) bool
	}{
		{"ours in libibverbs", "libibverbs", isOurs},
		{"ours in librdmacm", "librdmacm", isOurs},
		{"the headers'", "real", isReal},
	} {
		lines, reached, branches, taken := 0, 0, 0, 0
		for _, file := range gcov(t, dir, part.object).Files {
			for _, line := range file.Lines {
				if !part.counted(file.File, line.Function) {
					continue
				}
				lines++
				if line.Count > 0 {
					reached++
				} else {
					t.Errorf("%s: line %d of %s is never reached", line.Function, line.Line, file.File)
				}
				for _, b := range line.Branches {
					branches++
					if b.Count > 0 {
						taken++
					} else {
						t.Logf("%s: a branch in line %d is never taken", line.Function, line.Line)
					}
				}
			}
		}
		require.NotZero(t, lines)
		t.Logf("%s: %d of %d lines reached, %d of %d branches taken", part.name, reached, lines, taken, branches)
	}
}

func gcov(t *testing.T, dir, object string) executed {
	t.Helper()
	cmd := exec.Command("gcov", append(gcovOptions, object+".o")...)
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	var e executed
	require.NoError(t, json.NewDecoder(bytes.NewReader(out)).Decode(&e))
	return e
}
