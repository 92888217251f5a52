// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestExitStatus(t *testing.T) {
	for _, args := range []string{"-c -a unknown.invalid", "-s -a unknown.invalid"} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 1, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "unknown.invalid")
	}
}

func TestHelp(t *testing.T) {
	tested.Help(t, "--size bytes        bytes of each ping, from 23 to 65535 (default 64)")
}

func TestWithoutDevice(t *testing.T) { tested.WithoutDevice(t, "rping", "-c -a 192.0.2.1") }
