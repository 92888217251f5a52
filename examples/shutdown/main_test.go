// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
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
	process.Misused(t, "", "-x", "-work much 192.0.2.1:7471", "192.0.2.1:7471 more", "-listen :7471 192.0.2.1:7471")
}

// The server either does a request and tells the client, or never begins it.
func TestGraceful(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	server := process.StartMain(t, "-work", "50ms", "-grace", "1h", "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)
	var clients []*process.Process
	for range 3 {
		clients = append(clients, process.StartMain(t, address))
	}
	for _, client := range clients {
		client.Prints("request 2 is done\n")
	}
	server.Signal(os.Interrupt)
	done := 0
	for _, client := range clients {
		require.Zero(t, client.Wait())
		client.Prints(`the server ends; request \d+ is for another one\n$`)
		require.Empty(t, client.Stderr())
		done += strings.Count(client.Stdout(), "is done\n")
	}
	require.Zero(t, server.Wait())
	server.Prints(fmt.Sprintf("requests done: %d\n$", done))
	require.Empty(t, server.Stderr())
}

// While the server finishes its work, it refuses new clients; when the grace
// period is over, it cuts the work off.
func TestCutOff(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	server := process.StartMain(t, "-work", "1h", "-grace", "5s", "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)
	client := process.StartMain(t, address)
	server.Prints("working for")
	server.Signal(os.Interrupt)
	server.Prints("shutting down")
	late := process.RunMain(t, address)
	require.Equal(t, 1, late.Wait())
	require.Contains(t, late.Stderr(), "shutdown: dial "+address+": ")

	require.Equal(t, 1, server.Wait())
	require.Contains(t, server.Stderr(), "cut off after 5s")
	server.Prints("requests done: 0\n")
	require.Equal(t, 1, client.Wait())
	require.Contains(t, client.Stderr(), "request 1 may or may not be done: connection with "+address+": disconnected")
}

// The second interrupt ends the server at once.
func TestImpatient(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	server := process.StartMain(t, "-work", "1h", "-grace", "1h", "-listen", d.IPv4.String()+":0")
	client := process.StartMain(t, server.Prints(`listening on (\S+)\n`))
	server.Prints("working for")
	server.Signal(os.Interrupt)
	server.Prints("shutting down")
	server.Signal(os.Interrupt)
	require.Equal(t, -1, server.Wait())
	require.Equal(t, 1, client.Wait())
}
