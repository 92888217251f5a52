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
	programtest.Parses(t, (*options).program, options{server: program.Server{Port: 7471}}, map[string]func(*options){
		"-s host -p 7500 -c r": func(o *options) { o.server = program.Server{Address: "host", Port: 7500} },
		"-c x -s ::":           func(o *options) { o.server.Address, o.kind = "::", peers.Kind{Extended: true} },
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongServer(t, "rdmaxclient")
	tested.WrongArguments(t, "rdmaxclient", 1, programtest.WrongKinds)
}

func TestHelp(t *testing.T) { tested.Help(t, "-c, --connection kind", "(default r)") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaxclient", "-s 192.0.2.1 -c r", "-s 192.0.2.1 -c x")
}
