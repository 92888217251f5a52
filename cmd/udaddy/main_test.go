// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/rdmacm"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	defaults := options{format: "name", space: "udp", connections: 1, count: 10, size: 100}
	programtest.Parses(t, (*options).program, defaults, map[string]func(*options){
		"": nil,
		"-s host -b 192.0.2.1 -f gid -P ipoib -c 3 -C 5 -S 1024 -t 0x20 -p 0x111": func(o *options) {
			o.server, o.bind, o.format, o.space = "host", "192.0.2.1", "gid", "ipoib"
			o.connections, o.count, o.size, o.tos, o.spaceNumber = 3, 5, 1024, 32, 273
		},
		"-c0 -C0 -S0":                  func(o *options) { o.connections, o.count, o.size = 0, 0, 0 },
		"-c65536 -C65536 -S4096 -t255": func(o *options) { o.connections, o.count, o.size, o.tos = 65536, 65536, 4096, 255 },
	})
}

func TestHints(t *testing.T) {
	const ip, gid = rdmacm.AddrNumericHost, rdmacm.AddrNumericHost | rdmacm.AddrFamily
	for args, want := range map[string]rdmacm.AddrInfo{
		"":                    {PortSpace: rdmacm.PortSpaceUDP},
		"-f name -P udp":      {PortSpace: rdmacm.PortSpaceUDP},
		"-f ip":               {PortSpace: rdmacm.PortSpaceUDP, Flags: ip},
		"-f IPv6 -P IPoIB":    {PortSpace: rdmacm.PortSpaceIPoIB, Flags: ip},
		"-f gid":              {PortSpace: rdmacm.PortSpaceUDP, Flags: gid, Family: rdmacm.FamilyIB},
		"-p 0x2 -P udp":       {PortSpace: rdmacm.PortSpaceIPoIB},
		"-P ipoib -p 273":     {PortSpace: rdmacm.PortSpaceUDP},
		"-P ipoib -p 0 -f ip": {PortSpace: rdmacm.PortSpaceIPoIB, Flags: ip},
	} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		got, err := o.hints()
		require.NoError(t, err, args)
		require.Equal(t, want, got, args)
	}
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "udaddy", 1, map[string]string{
		"-x":          "unknown shorthand flag",
		"-c":          "flag needs an argument",
		"-c -1":       "expected a number from 0 to 65536",
		"-C 65537":    "expected a number from 0 to 65536",
		"-S 4097":     "expected a number from 0 to 4096",
		"-t 256":      "out of range",
		"-p tcp":      "invalid syntax",
		"-f dns":      `-f "dns": expected name, ip, ipv6 or gid`,
		"-P tcp":      `-P "tcp": expected udp or ipoib`,
		"192.0.2.1":   `unexpected argument "192.0.2.1"`,
		"-p 262 -f x": "expected name",
	})
}

func TestHelp(t *testing.T) { tested.Help(t, "-S, --size bytes") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "udaddy", "-s 192.0.2.1", "")
}
