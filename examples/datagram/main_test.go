// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	process.Misused(t, "", "-x", "192.0.2.1:7471", "-listen :7471 hello", "-listen")
}

func TestDatagrams(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Datagrams)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)

	var clients []*process.Process
	for range 3 { // at the same time
		clients = append(clients, process.StartMain(t, address, "hello", "", "world"))
	}
	for _, client := range clients {
		require.Zero(t, client.Wait())
		require.Equal(t, "HELLO\n\nWORLD\n", client.Stdout())
		require.Empty(t, client.Stderr())
	}
	long := process.RunMain(t, address, strings.Repeat("x", 1<<16))
	require.Equal(t, 1, long.Wait())
	require.Contains(t, long.Stderr(), "bytes: a datagram holds at most")

	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())
	nobody := process.RunMain(t, address, "hello")
	require.Equal(t, 1, nobody.Wait())
	require.Contains(t, nobody.Stderr(), "datagram: dial "+address)
}

// A client whose server stops asks again, then gives up.
func TestNoAnswer(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Datagrams)
	questions := make([]string, 100_000)
	for tries := 5; ; tries-- {
		server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
		address := server.Prints(`listening on (\S+)\n`)
		client := process.StartMain(t, append([]string{address}, questions...)...)
		client.Prints("\n\n\n") // some answers
		server.Signal(os.Interrupt)
		require.Zero(t, server.Wait())
		if client.Wait() == 0 && tries > 1 { // all answers came before the server stopped
			continue
		}
		require.Equal(t, 1, client.Wait())
		require.Contains(t, client.Stderr(), `question "": no answer: context deadline exceeded`)
		return
	}
}

// A server exits even if no client has asked it anything.
func TestInterrupted(t *testing.T) {
	testdevice.Require(t)
	server := process.StartMain(t, "-listen", ":0")
	server.Prints("listening on")
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())
}
