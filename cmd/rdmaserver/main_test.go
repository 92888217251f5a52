// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"":                     {"0.0.0.0", 7471},
		"-s host -p 7500":      {"host", 7500},
		"--server :: --port 1": {"::", 1},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rdmaserver", 1, programtest.WrongPorts)
}

func TestHelp(t *testing.T) { tested.Help(t, "-p, --port port") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaserver", "-s 192.0.2.1")
}
