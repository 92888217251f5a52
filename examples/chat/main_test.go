// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-name", "-name north hello", "-name north -group everybody", "-x")
}

func join(t *testing.T, local netip.Addr, args ...string) *process.Process {
	t.Helper()
	p := process.StartMain(t, append([]string{"-local", local.String()}, args...)...)
	p.Says("joined")
	return p
}

func say(t *testing.T, p *process.Process, line string) {
	t.Helper()
	_, err := fmt.Fprintln(p.Stdin, line)
	require.NoError(t, err)
}

func TestChat(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	for _, with := range []struct {
		local netip.Addr
		group string
	}{{d.IPv4, "239.86.69.67"}, {d.IPv6, "ff1e::5643"}} {
		t.Run(with.group, func(t *testing.T) {
			var all []*process.Process
			for _, name := range []string{"north", "south", "west"} {
				all = append(all, join(t, with.local, "-name", name, "-group", with.group))
			}
			north, south, west := all[0], all[1], all[2]
			say(t, north, "hello")
			for _, p := range []*process.Process{south, west} {
				p.Prints("^north: hello\n")
			}
			say(t, south, "good evening")
			for _, p := range []*process.Process{north, west} {
				p.Prints("south: good evening\n")
			}
			say(t, west, strings.Repeat("x", 5000))
			west.Says("line of 5006 bytes: a datagram holds at most")
			say(t, west, "bye")
			require.NoError(t, west.Stdin.Close())
			require.Zero(t, west.Wait())
			south.Prints("west: bye\n")
			north.Prints("west: bye\n")
			south.Signal(os.Interrupt)
			require.Zero(t, south.Wait())
			require.NoError(t, north.Stdin.Close())
			require.Zero(t, north.Wait())
			require.Equal(t, "south: good evening\nwest: bye\n", north.Stdout(), "and not what north has said")
		})
	}
}

func TestNoGroup(t *testing.T) {
	d := testdevice.Require(t)
	for args, text := range map[string]string{
		"-group 192.0.2.77": "is not",
		"-group ff1e::1":    "not of the same address family",
	} {
		p := process.RunMain(t, append([]string{"-name", "north", "-local", d.IPv4.String()}, strings.Fields(args)...)...)
		require.Equal(t, 1, p.Wait())
		require.Contains(t, p.Stderr(), text)
	}
}
