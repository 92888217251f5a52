// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

// The device in user space has two devices, each with an address.
func TestMain(m *testing.M) {
	if testdevice.Soft() {
		err := softroce.Use(softroce.Config{Devices: []softroce.DeviceConfig{
			{Name: "soft0", Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.1")}},
			{Name: "soft1", Addresses: []netip.Addr{netip.MustParseAddr("10.77.0.2")}},
		}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	process.Become(map[string]process.Program{"victim": victim, "answerer": answerer})
	os.Exit(testdevice.Main(m))
}

// bounded returns a context that ends hangs.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+soakTime())
	t.Cleanup(cancel)
	return ctx
}

var warm sync.Once

// needDevice skips the test if there is no device, and makes it fail if it
// leaves anything open. What is opened only once is opened before.
func needDevice(t testing.TB) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	warm.Do(func() {
		e, err := transfer.New(transfer.Config{})
		require.NoError(t, err)
		require.NoError(t, e.Close())
	})
	testdevice.NoLeaks(t)
	return d
}

// newEngine returns an engine, which the test closes.
func newEngine(t testing.TB, config transfer.Config) *transfer.Engine {
	t.Helper()
	e, err := transfer.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// connect connects two engines, and returns each as the other's peer.
func connect(t testing.TB, from, to *transfer.Engine) (dialed, accepted *transfer.Peer) {
	t.Helper()
	ctx := bounded(t)
	ln, err := to.Listen(ctx, ":0", transfer.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	dialed, err = from.Dial(ctx, at(t, ln), transfer.DialConfig{})
	require.NoError(t, err)
	accepted, err = ln.Accept(ctx)
	require.NoError(t, err)
	return dialed, accepted
}

// at returns an address of the listener.
func at(t testing.TB, ln *transfer.Listener) string {
	t.Helper()
	return netip.AddrPortFrom(firstAddr(t), ln.Addr().Port()).String()
}

// firstAddr returns an address of the first device.
func firstAddr(t testing.TB) netip.Addr {
	t.Helper()
	if addr := testdevice.Require(t).IPv4; addr.IsValid() {
		return addr
	}
	return netip.MustParseAddr("10.77.0.1") // the device in user space
}
