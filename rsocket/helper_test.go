package rsocket_test

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rsocket"
)

// TestMain lets a test run this program again as its peer.
func TestMain(m *testing.M) {
	process.Become(map[string]process.Program{})
	os.Exit(m.Run())
}

// What these tests use of cmtest everywhere.
const patience = cmtest.Patience

var (
	needDevice   = cmtest.NeedDevice
	bounded      = cmtest.Bounded
	inBackground = cmtest.InBackground
)

// listen returns a listener on the device, closed with the test.
func listen(t testing.TB, config rsocket.Config) *rsocket.Listener {
	t.Helper()
	lc := rsocket.ListenConfig{Config: config}
	ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(needDevice(t).IPv4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// pair returns the two ends of a connection, closed with the test.
func pair(t testing.TB, dialed, accepted rsocket.Config) (client, server *rsocket.Conn) {
	t.Helper()
	ln := listen(t, accepted)
	d := rsocket.Dialer{Config: dialed}
	a, err := d.DialContext(bounded(t), "rdma", ln.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
	b, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	for _, c := range []interface{ SetDeadline(time.Time) error }{a, b} {
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	}
	return a.(*rsocket.Conn), b.(*rsocket.Conn)
}
