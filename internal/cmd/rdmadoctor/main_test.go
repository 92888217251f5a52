// SPDX-License-Identifier: Apache-2.0

package rdmadoctor

import (
	"testing"

	"github.com/verbena-go/verbena/internal/testutil/programtest"
)

var main = programtest.Main(Main)

func TestWrongArguments(t *testing.T) {
	main.WrongArguments(t, "rdmadoctor", 2, map[string]string{
		"-x":                  "unknown shorthand flag",
		"-p 0 host":           "expected a number from 1 to 65535",
		"-p 7471":             "-p without a host",
		"host more":           `unexpected argument "more"`,
		"192.0.2.1:7471":      "pass the port as a flag: -p 7471 192.0.2.1",
		"[2001:db8::1]:7471":  "pass the port as a flag: -p 7471 2001:db8::1",
		"-p 1 localhost:7471": "pass the port as a flag: -p 7471 localhost",
	})
}

func TestHelp(t *testing.T) { main.Help(t, "rdmadoctor [-j] [-p port] [host]", "-p, --port port") }
