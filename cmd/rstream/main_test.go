// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket"
)

var tested = programtest.Of(func() *program.Program { return new(options).program() })

func TestParse(t *testing.T) {
	defaults := options{port: 7471, buffer: 512 << 10, inline: 64, keepAlive: 30}
	programtest.Parses(t, (*options).program, defaults, map[string]func(*options){
		"":                               nil,
		"-s host -b 192.0.2.2 -p 7472":   func(o *options) { o.server, o.bind, o.port = "host", "192.0.2.2", 7472 },
		"-S all":                         func(o *options) { o.all = true },
		"-S 4096 -C 10 -I 20":            func(o *options) { o.size, o.transfers, o.iterations = 4096, 10, 20 },
		"-B 65536 -i 0 -k 0":             func(o *options) { o.buffer, o.inline, o.keepAlive = 65536, 0, 0 },
		"-f ip":                          func(o *options) { o.numeric = true },
		"-f ipv6 -f name":                nil,
		"-T s -Tv -T r":                  func(o *options) { o.how = how{tcp: true, verify: true, resolve: true} },
		"-T socket -T verify -T Resolve": func(o *options) { o.how = how{tcp: true, verify: true, resolve: true} },
		"-T b":                           func(o *options) { o.wait = blocking },
		"-T blocking -T async":           func(o *options) { o.wait = asleep },
		"-T a -T nonblocking":            nil,
		"--size=8 --iterations 1 -T v -Tb": func(o *options) {
			o.size, o.iterations, o.verify, o.wait = 8, 1, true, blocking
		},
	})
}

func TestWrongArguments(t *testing.T) {
	tested.WrongArguments(t, "rstream", 1, programtest.WrongPorts)
	tested.WrongArguments(t, "rstream", 1, map[string]string{
		"-S 0":                 "expected all or a number from 1 to 1073741824",
		"-S some":              "expected all or a number from 1 to 1073741824",
		"-C 0":                 "expected a number from 1 to 2147483647",
		"-I -1":                "expected a number from 1 to 2147483647",
		"-f gid":               "expected one of ip, ipv6, name",
		"-T f":                 "a Go program cannot fork",
		"-T fork":              "a Go program cannot fork",
		"-T x":                 "expected s, a, b, n, r or v",
		"-T so":                "expected s, a, b, n, r or v",
		"-f ip -s localhost":   "-s localhost: expected an IP address",
		"-f ipv6 -b localhost": "-b localhost: expected an IP address",
	})
}

func TestHelp(t *testing.T) {
	tested.Help(t, "-S, --size bytes", "or all: measure more sizes", "-T f is refused", "0: do not), from 0 to 32767 (default 30)")
}

func TestWithoutDevice(t *testing.T) {
	tested.WithoutDevice(t, "rstream", "", "-b 192.0.2.1", "-s 192.0.2.1", "-s 192.0.2.1 -T r", "-T r -b 192.0.2.1")
}

// What is not given is C's, if anything is given.
func TestCustom(t *testing.T) {
	for args, want := range map[string]row{
		"-S 64":           {"custom", 64, 1000, 1},
		"-C 5":            {"custom", 1000, 5, 1},
		"-I 7":            {"custom", 1000, 1000, 7},
		"-I 7 -C 5 -S 64": {"custom", 64, 5, 7},
	} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)), args)
		r, asked := o.custom()
		require.True(t, asked, args)
		require.Equal(t, want, r, args)
	}
	for _, args := range []string{"", "-S all"} {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)), args)
		_, asked := o.custom()
		require.False(t, asked, args)
	}
}

func TestConfig(t *testing.T) {
	o := &options{}
	require.NoError(t, o.program().Parse(nil))
	require.Equal(t, rsocket.Config{
		ReadBuffer: 1 << 20, WriteBuffer: 1 << 20, MaxInline: 64, Spin: ibverbs.MaxSpin, KeepAlive: 30 * time.Second,
	}, o.config(o.inline))
	require.NoError(t, o.program().Parse(strings.Fields("-B 4096 -k 0 -T a")))
	require.Equal(t, rsocket.Config{ReadBuffer: 8192, WriteBuffer: 8192, MaxInline: -1, Spin: -1, KeepAlive: -1}, o.config(0))
}
