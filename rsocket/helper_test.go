// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// poolEnv says that the tests' connections share a pool.
const poolEnv = "VERBENA_TEST_POOL"

// sharedPool is that pool, or nil.
var sharedPool *rsocket.Pool

// shared returns a config with the pool, if there is one and the config has
// none.
func shared(config rsocket.Config) rsocket.Config {
	config.Pool = cmp.Or(config.Pool, sharedPool)
	return config
}

// TestMain lets a test run this program again as its peer.
func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{"c": peer(runC), "victim": peer(victim), "crowd": peer(crowd), "far": peer(far), "ccrowd": peer(cCrowd), "doomed": peer(doomed)})
	if os.Getenv(poolEnv) != "" {
		sharedPool = new(rsocket.Pool)
	}
	os.Exit(m.Run())
}

// peer returns a program that says how f ended.
func peer(f func(args []string) error) process.Program {
	return func(args []string, _, stderr io.Writer) int {
		if err := f(args); err != nil {
			fmt.Fprintln(stderr, args, err)
			return 1
		}
		return 0
	}
}

// What these tests use of cmtest everywhere.
const patience = cmtest.Patience

var (
	bounded      = cmtest.Bounded
	inBackground = cmtest.InBackground
)

// checked are the tests that look for leaks.
var checked sync.Map

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind.
func needDevice(t testing.TB) testdevice.Device {
	t.Helper()
	if _, again := checked.LoadOrStore(t, true); again { // a pool may have more now than when the test began
		return testdevice.Require(t)
	}
	d := cmtest.NeedDevice(t)
	if sharedPool != nil {
		d.Have(t, testdevice.SRQs)
	}
	return d
}

// needPool skips the test if the device has no pools.
func needPool(t testing.TB) {
	t.Helper()
	needDevice(t).Have(t, testdevice.SRQs)
}

// listen returns a listener on the device, closed with the test.
func listen(t testing.TB, config rsocket.Config) *rsocket.Listener {
	t.Helper()
	if config.Pool != nil {
		needPool(t)
	}
	lc := rsocket.ListenConfig{Config: shared(config)}
	ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(needDevice(t).IPv4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// pair returns the two ends of a connection, closed with the test.
func pair(t testing.TB, dialed, accepted rsocket.Config) (client, server *rsocket.Conn) {
	t.Helper()
	return pairOn(t, listen(t, accepted), dialed)
}

// pairOn is pair on a listener.
func pairOn(t testing.TB, ln *rsocket.Listener, dialed rsocket.Config) (client, server *rsocket.Conn) {
	t.Helper()
	if dialed.Pool != nil {
		needPool(t)
	}
	d := rsocket.Dialer{Config: shared(dialed)}
	conn, err := d.DialContext(bounded(t), "rdma", ln.Addr().String())
	require.NoError(t, err)
	return closedWith(t, conn), acceptOne(t, ln)
}

// acceptOne returns the next connection, closed with the test.
func acceptOne(t testing.TB, ln *rsocket.Listener) *rsocket.Conn {
	t.Helper()
	require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
	conn, err := ln.Accept()
	require.NoError(t, err)
	return closedWith(t, conn)
}

// closedWith gives a connection a deadline, and closes it with the test.
func closedWith(t testing.TB, conn net.Conn) *rsocket.Conn {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*rsocket.Conn)
}

// echo sends a few bytes both ways.
func echo(t testing.TB, a, b net.Conn) {
	t.Helper()
	for from, to := range map[net.Conn]net.Conn{a: b, b: a} {
		_, err := from.Write([]byte("hello"))
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = io.ReadFull(to, got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	}
}
