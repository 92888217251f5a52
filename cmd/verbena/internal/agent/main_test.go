// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(Program)

func TestHelp(t *testing.T) { tested.Help(t, "verbena agent [flags] [ADDRESS]", "VERBENA_TOKEN") }

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "verbena agent", 2, map[string]string{
		"-p 0":         "expected a number from 1 to 65535",
		"-c -1":        "expected a number from 0 to",
		"one two":      `unexpected argument "two"`,
		"--no-such":    "unknown flag",
		"-d":           "flag needs an argument",
		"127.0.0.1 :2": `unexpected argument ":2"`,
	})
}

func TestNoToken(t *testing.T) {
	t.Setenv("VERBENA_TOKEN", "")
	status, stdout, stderr := tested.Run("")
	require.Equal(t, 1, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "export VERBENA_TOKEN=$(openssl rand -hex 16)")
}

func TestWithoutDevice(t *testing.T) {
	t.Setenv("VERBENA_TOKEN", "0123456789abcdef")
	tested.WithoutDevice(t, "verbena agent", "-p 18599", "-d none")
}
