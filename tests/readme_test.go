// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readmeProgram(t *testing.T) string {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.Len(t, blocks, 1)
	return blocks[0][1]
}

// What README shows of a program is part of an Example, too.
func TestReadmeShowsTheExample(t *testing.T) {
	example, err := os.ReadFile("../rdmacm/example_test.go")
	require.NoError(t, err)
	_, code, found := strings.Cut(readmeProgram(t), "\n// greet ")
	require.True(t, found)
	require.Contains(t, code, "rdmacm.Dial")
	require.Contains(t, string(example), strings.TrimSpace(code))
}

// The program in README runs as README says.
func TestReadmeProgramRuns(t *testing.T) {
	main := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(main, []byte(readmeProgram(t)), 0o600))
	cmd := exec.Command("go", "run", main)
	cmd.Env = append(os.Environ(), "VERBENA_DEVICE=soft", "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "hello over RDMA\n", string(out))
}
