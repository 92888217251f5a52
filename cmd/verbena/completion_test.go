// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func script(t *testing.T, shell string) string {
	t.Helper()
	status, stdout, stderr := tested.Run("completion " + shell)
	require.Zero(t, status)
	require.Empty(t, stderr)
	return stdout
}

// What bash completes, by the words before the cursor; the last one is being
// entered.
func TestCompleteBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	for _, tt := range []struct {
		words string // those behind verbena
		want  string
	}{
		{"d", "doctor devices"},
		{"softroce ", "run libs stat help"},
		{"softroce l", "libs"},
		{"help so", "softroce"},
		{"help softroce r", "run"},
		{"softroce help ", "run libs stat help"},
		{"perf read", "read_lat read_bw"},
		{"perf send_bw -", "-a --all"},
		{"perf send_bw r", ""},
		{"perf send_bw -p ", ""},
		{"perf send_bw --tx", "--tx-depth"},
		{"doctor ", ""},
		{"completion z", "zsh"},
		{"-", "-h --help --version"},
		{"watch -d -", ""},
		{"no-such ", ""},
	} {
		words := append([]string{"verbena"}, strings.Split(tt.words, " ")...)
		cmd := exec.Command(bash, append([]string{"-c", script(t, "bash") + `
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_verbena
echo "${COMPREPLY[*]}"`, "bash"}, words...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s", &stderr)
		require.Empty(t, stderr.String(), tt.words)
		if tt.words == "perf send_bw -" {
			require.Contains(t, string(out), tt.want)
			continue
		}
		require.Equal(t, tt.want, strings.TrimSpace(string(out)), "%q", tt.words)
	}
}

// The scripts for other shells are correct in their languages, where these are
// installed.
func TestCompletionIsCorrect(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text := script(t, shell)
		for _, n := range nodes(commands()) {
			if n.program != nil {
				require.Contains(t, text, n.key(), shell)
			}
		}
		if _, err := exec.LookPath(shell); err != nil {
			t.Logf("there is no %s", shell)
			continue
		}
		cmd := exec.Command(shell, "-n")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", shell, out)
		require.Empty(t, string(out), shell)
	}
}

// Where no file may follow, fish completes none.
func TestFishCompletesNoFiles(t *testing.T) {
	text := script(t, "fish")
	for _, words := range []string{"help", "softroce help", "completion"} {
		require.Contains(t, text, "complete -c verbena -f -n '__verbena_at "+words+"'\n")
	}
	require.Contains(t, text, "complete -c verbena -f -n '__verbena_alone help' -a ping -d ")
	require.NotContains(t, text, "complete -c verbena -f -n '__verbena_at softroce run'\n", "a program's arguments may be files")
}

func TestCompletionOfUnknownShell(t *testing.T) {
	tested.WrongArguments(t, "verbena completion", 2, map[string]string{
		"completion csh":    `expected one of bash, zsh, fish, found "csh"`,
		"completion":        `expected one of bash, zsh, fish, found ""`,
		"completion bash x": `unexpected argument "x"`,
	})
}
