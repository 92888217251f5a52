// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	programtest.Parses(t, (*options).program, options{"0.0.0.0", 7471}, map[string]func(*options){
		"":                     nil,
		"-s host -p 7500":      func(o *options) { o.address, o.port = "host", 7500 },
		"--server :: --port 1": func(o *options) { o.address, o.port = "::", 1 },
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rdmaserver", 1, programtest.WrongPorts)
}

func TestHelp(t *testing.T) { tested.Help(t, "-p, --port port") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaserver", "-s 192.0.2.1")
}
