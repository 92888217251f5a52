// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	defaults := options{connections: 1, count: 10, size: 100, space: 0x111}
	programtest.Parses(t, (*options).program, defaults, map[string]func(*options){
		"-m 239.1.2.3": func(o *options) { o.group = "239.1.2.3" },
		"-M ff0e::1 -b 192.0.2.1 -sol -c 2 -C 1000 -S 1 -p 0x2": func(o *options) {
			o.unmapped, o.bind, o.sender, o.sendOnly, o.noLoopback = "ff0e::1", "192.0.2.1", true, true, true
			o.connections, o.count, o.size, o.space = 2, 1000, 1, 2
		},
		"-c0 -C0 -S0": func(o *options) { o.connections, o.count, o.size = 0, 0, 0 },
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "mckey", 1, map[string]string{
		"":                        "either -m or -M must be given",
		"-s":                      "either -m or -M must be given",
		"-m 239.1.2.3 -M ff0e::1": "either -m or -M must be given",
		"-M ff0e::1":              "-M needs -b",
		"-m 239.1.2.3 -C -1":      "expected a number from 0 to 65536",
		"-m 239.1.2.3 -c 65537":   "expected a number from 0 to 65536",
		"-m 239.1.2.3 -S 4097":    "expected a number from 0 to 4096",
		"-m 239.1.2.3 -p 65536":   "out of range",
		"239.1.2.3":               "unexpected argument",
	})
}

func TestFails(t *testing.T) {
	for args, text := range map[string]string{
		"-m unknown.invalid":          "mckey: look up the group: lookup unknown.invalid",
		"-m 192.0.2.1":                "mckey: join 192.0.2.1: rdma_join_multicast (192.0.2.1): the address is not that of a multicast group",
		"-M 239.1.2.3.4 -b 192.0.2.1": `"239.1.2.3.4"`,
	} {
		status, stdout, stderr := tested.Run(args)
		require.Equal(t, 1, status, args)
		require.Equal(t, "mckey: starting server\nmckey: joining\n", stdout)
		require.Contains(t, stderr, text)
	}
}

func TestLookup(t *testing.T) {
	for _, text := range []string{"239.1.2.3", "ff0e::1", "ff02::1%eth0"} {
		addr, err := lookup(t.Context(), text)
		require.NoError(t, err)
		require.Equal(t, netip.MustParseAddr(text), addr)
	}
	addr, err := lookup(t.Context(), "localhost") // a name, if not that of a group
	require.NoError(t, err)
	require.True(t, addr.IsLoopback())
}

func TestHelp(t *testing.T) { tested.Help(t, "-M, --unmapped GID") }

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "mckey", "-m 239.1.2.3 -b 127.0.0.1")
}
