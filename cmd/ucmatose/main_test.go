// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/rdmacm"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	defaults := options{space: rdmacm.PortSpaceTCP, connections: 1, count: 10, size: 100, port: 7471}
	programtest.Parses(t, (*options).program, defaults, map[string]func(*options){
		"":                nil,
		"-s 192.0.2.1":    func(o *options) { o.server = "192.0.2.1" },
		"-mb::1 -f ipv6":  func(o *options) { o.migrate, o.bind, o.hints.Flags = true, "::1", rdmacm.AddrNumericHost },
		"-fip -P ib":      func(o *options) { o.hints.Flags, o.space = rdmacm.AddrNumericHost, rdmacm.PortSpaceIB },
		"-f gid -f name":  nil,
		"-c 65535 -C 0":   func(o *options) { o.connections, o.count = math.MaxUint16, 0 },
		"-S 0 -p 1 -t 32": func(o *options) { o.size, o.port, o.tos = 0, 1, 32 },
		"-a 31":           func(o *options) { o.ackExponent = 31 },
		"-f gid": func(o *options) {
			o.hints = rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost | rdmacm.AddrFamily, Family: rdmacm.FamilyIB}
		},
		"--server=a --bind=b --port=2 --connections=3 --count=4 --size=5 --tos=6 --ack-timeout=7 --migrate --port-space=ib --format=ip": func(o *options) {
			*o = options{
				server: "a", bind: "b", port: 2, connections: 3, count: 4, size: 5, tos: 6, ackExponent: 7, migrate: true,
				space: rdmacm.PortSpaceIB, hints: rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost},
			}
		},
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "ucmatose", 1, map[string]string{
		"-c 0":     "expected a number from 1 to 65535",
		"-C -1":    "expected a number from 0 to 65535",
		"-S large": "expected a number from 0 to 1073741824",
		"-p 65536": "expected a number from 1 to 65535",
		"-t 256":   "expected a number from 0 to 255",
		"-a 32":    "expected a number from 0 to 31",
		"-f mac":   "expected one of gid, ip, ipv6, name",
		"-P udp":   "expected one of ib, tcp",
		"-x":       "unknown shorthand flag",
		"more":     `unexpected argument "more"`,
	})
}

func TestHelp(t *testing.T) { tested.Help(t, "--port-space") }

func TestFails(t *testing.T) {
	for _, args := range []string{"-s localhost -f ip", "-b localhost -f ip", "-s fe80::1 -b localhost -f gid"} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 1, status)
		require.Equal(t, "test complete\nreturn status 1\n", stdout)
		require.NotEmpty(t, stderr)
	}
}
