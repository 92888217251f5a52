package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// patience is how long anything may take that must happen.
const patience = 20 * time.Second

// TestMain lets a test run this program again as its peer.
func TestMain(m *testing.M) {
	if address := os.Getenv(victimEnv); address != "" {
		victim(address)
	}
	if address := os.Getenv(crowdEnv); address != "" {
		crowd(address)
	}
	if order := os.Getenv(soakEnv); order != "" {
		soakClients(order)
	}
	if role := os.Getenv(peerEnv); role != "" {
		playPeer(strings.Fields(role))
	}
	if job := os.Getenv(farEnv); job != "" {
		far(job)
	}
	os.Exit(m.Run())
}

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind.
func needDevice(t testing.TB) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	warmUp(t, d.IPv4)
	testdevice.NoLeaks(t)
	return d
}

var warm sync.Once

// warmUp makes librdmacm open what it then keeps.
func warmUp(t testing.TB, ip netip.Addr) {
	t.Helper()
	warm.Do(func() {
		ch, err := rdmacm.NewEventChannel()
		require.NoError(t, err)
		id, err := ch.NewID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		require.NoError(t, id.BindAddr(netip.AddrPortFrom(ip, 0)))
		_, err = id.Context()
		require.NoError(t, err)
		require.NoError(t, id.Close())
		require.NoError(t, ch.Close())
	})
}

// bounded returns a context that ends with the test or when patience does.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// listenOn returns a listener on a free port, closed with the test.
func listenOn(t testing.TB, ip netip.Addr) *rdmacm.Listener {
	t.Helper()
	ln, err := rdmacm.Listen(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// accepted is what came of a request.
type accepted struct {
	conn *rdmacm.Conn
	req  *rdmacm.Request
	err  error
}

// acceptOne accepts the next request in the background.
func acceptOne(ctx context.Context, ln *rdmacm.Listener, config *rdmacm.Config) <-chan accepted {
	result := make(chan accepted, 1)
	go func() {
		var a accepted
		if a.req, a.err = ln.Accept(ctx); a.err == nil {
			a.conn, a.err = a.req.Accept(ctx, config)
		}
		result <- a
	}()
	return result
}

// connect returns the two ends of a connection, closed with the test.
func connect(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.Config) (client, server *rdmacm.Conn) {
	t.Helper()
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	result := acceptOne(ctx, ln, serverConfig)
	client, err = rdmacm.Dial(ctx, ln.Addr().String(), clientConfig)
	require.NoError(t, err)
	a := <-result
	require.NoError(t, a.err)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, a.conn.Close())
	})
	return client, a.conn
}

// alloc returns memory of a connection that the peer may read and write.
func alloc(t testing.TB, conn *rdmacm.Conn, size int) *ibverbs.MR {
	t.Helper()
	mr, err := conn.Alloc(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	return mr
}

// padded returns private data as the peer sees it.
func padded(data []byte, size int) []byte {
	return append(append([]byte(nil), data...), make([]byte, size-len(data))...)
}

// transport's maxima on InfiniBand and RoCE
const (
	maxRequestData = 56
	maxReplyData   = 196
	maxRejectData  = 148
)
