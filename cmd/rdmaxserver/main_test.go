// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	programtest.Parses(t, (*options).program, options{port: 7471}, map[string]func(*options){
		"":             nil,
		"-p 7500 -c r": func(o *options) { o.port = 7500 },
		"-cX --port 1": func(o *options) { o.port, o.kind = 1, peers.Kind{Extended: true} },
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rdmaxserver", 1, programtest.WrongPorts)
	tested.WrongArguments(t, "rdmaxserver", 1, programtest.WrongKinds)
}

func TestHelp(t *testing.T) { tested.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaxserver", "-c r", "-c x")
}
