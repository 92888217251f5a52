// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	for args, want := range map[string]options{
		"":             {7471, peers.Kind{}},
		"-p 7500 -c r": {7500, peers.Kind{}},
		"-cX --port 1": {1, peers.Kind{Extended: true}},
	} {
		o := options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		require.Equal(t, want, o, args)
	}
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rdmaxserver", 1, programtest.WrongPorts)
	tested.WrongArguments(t, "rdmaxserver", 1, programtest.WrongKinds)
}

func TestHelp(t *testing.T) { tested.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaxserver", "-c r", "-c x")
}
