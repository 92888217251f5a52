// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"
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
	process.Misused(t, "", "-x", "-n many 192.0.2.1:7471", "192.0.2.1:7471 more", "-listen :7471 192.0.2.1:7471")
}

// Clients have no threads of their own, at either end.
func TestManyClients(t *testing.T) {
	d, all := testdevice.Require(t), 200 // with Soft-RoCE in an emulated guest, a thousand take minutes
	d.Have(t, testdevice.Immediate)
	if testdevice.Soft() {
		all = 1000
	}
	many := strconv.Itoa(all)
	server := process.StartMain(t, "-listen", d.IPv4.String()+":0")
	address := server.Prints(`listening on (\S+)\n`)
	clients := process.StartMain(t, "-n", many, address)
	few := func(threads string) {
		n, err := strconv.Atoi(threads)
		require.NoError(t, err)
		require.Less(t, n, all/2, "threads of %d clients; on a busy machine, goroutines have some for a moment", all)
	}
	few(clients.Prints(many + ` clients connected in .*, (\d+) threads\n`))
	clients.Prints(many + ` clients answered in `) // where goroutines post, they have threads for a moment on a busy machine
	require.Zero(t, clients.Wait())
	t.Log(clients.Stdout())
	server.Prints(`100 clients, (\d+) threads\n`)
	few(server.Prints(many + ` clients, (\d+) threads\n`))
	t.Log(server.Stdout())
	server.Signal(os.Interrupt)
	require.Zero(t, server.Wait())
	require.Empty(t, server.Stderr())
	require.Equal(t, 1, process.RunMain(t, "-n", "50", address).Wait(), "no program listens")
	require.Zero(t, process.RunMain(t, "-n", "0", address).Wait())
}

func TestEach(t *testing.T) {
	for _, atOnce := range []int{1, 3, 200} {
		var sum atomic.Int64
		require.NoError(t, each(100, atOnce, func(i int) error { sum.Add(int64(i)); return nil }))
		require.EqualValues(t, 99*100/2, sum.Load())
	}
	failed := errors.New("failed")
	calls := 0
	require.Equal(t, failed, each(100, 1, func(int) error { calls++; return failed }))
	require.Equal(t, 1, calls)
	require.NoError(t, each(0, 0, nil))
}
