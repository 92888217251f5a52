// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestWrongArguments(t *testing.T) { tested.WrongServer(t, "rdmaclient") }

func TestHelp(t *testing.T) { tested.Help(t, "-p, --port port") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rdmaclient", "-s 192.0.2.1")
}
