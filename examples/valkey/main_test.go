// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/internal/servertest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
	servertest.CleanUp()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "192.0.2.1:6379", "-bench", "-bench 192.0.2.1:6379 get", "-bench -turns 0 192.0.2.1:6379")
}

func TestCommands(t *testing.T) {
	s := servertest.Start(t)
	reader := process.StartMain(t, s.Address(), "subscribe", "news")
	reader.Prints("subscribed to news\n")
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"set", "key", "a value"}, "OK\n"},
		{[]string{"get", "key"}, "a value\n"},
		{[]string{"get", "nothing"}, "nil\n"},
		{[]string{"rpush", "list", "a", "b"}, "2\n"},
		{[]string{"lrange", "list", "0", "-1"}, "[a b]\n"},
		{[]string{"publish", "news", "it rains"}, "1\n"},
	} {
		p := process.RunMain(t, append([]string{s.Address()}, tt.args...)...)
		require.Zero(t, p.Wait())
		require.Equal(t, tt.says, p.Stdout())
		require.Empty(t, p.Stderr())
	}
	reader.Prints("it rains\n")
	reader.Signal(os.Interrupt)
	require.Zero(t, reader.Wait())
	require.Empty(t, reader.Stderr())

	wrong := process.RunMain(t, s.Address(), "nonsense")
	require.Equal(t, 1, wrong.Wait())
	require.Contains(t, wrong.Stderr(), "valkey: unknown command 'nonsense'")
}

func TestNobody(t *testing.T) {
	d := testdevice.Require(t)
	for _, args := range [][]string{{d.IPv4.String() + ":1", "get", "key"}, {"-bench", d.IPv4.String() + ":1"}} {
		p := process.RunMain(t, args...)
		require.Equal(t, 1, p.Wait())
		require.Contains(t, p.Stderr(), d.IPv4.String()+":1")
	}
}

func TestBench(t *testing.T) {
	s := servertest.Start(t)
	p := process.RunMain(t, "-bench", "-turns", "1", "-benchmark", servertest.Program(t, "valkey-benchmark"), s.Address())
	require.Zero(t, p.Wait())
	require.Regexp(t, `(?s)^commands in a second .*\nSET 16 B +\d+ +\d+ +\d+\.\d\d \(.*\nGET 1 MiB +\d+ +\d+ +\d+\.\d\d \(.*\n$`, p.Stdout())
}
