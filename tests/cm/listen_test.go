// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// The kernel leaves requests unanswered for which its backlog has no room. So a
// program that reads requests at once, to reject those that are too many for
// the program, asks for as many there as the system allows.
func TestBacklogs(t *testing.T) {
	c := open(t)
	addr := netip.MustParseAddrPort(address)
	for name, tt := range map[string]struct {
		listen func(t *testing.T) (done func() error)
		want   int64
	}{
		"id": {func(t *testing.T) func() error {
			return openIDs(t).listener.Close
		}, 1},
		"id, as many as the system allows": {func(t *testing.T) func() error {
			i := openIDs(t)
			c.Forget()
			require.NoError(t, i.listener.Listen(0))
			return func() error { return nil }
		}, 0},
		"endpoint": {func(t *testing.T) func() error {
			ep, err := endpoint.New(rdmacm.PortSpaceTCP)
			require.NoError(t, err)
			require.NoError(t, ep.ID().BindAddr(addr))
			require.NoError(t, ep.Listen(1))
			return ep.Close
		}, 0},
		"handled id": {func(t *testing.T) func() error {
			requests := make(chan *handled.ID, 1)
			id, err := handled.New(rdmacm.PortSpaceTCP, func(request *handled.ID, _ *rdmacm.Event) error {
				requests <- request
				return syscall.ECANCELED
			})
			require.NoError(t, err)
			require.NoError(t, id.ID().BindAddr(addr))
			require.NoError(t, id.Listen(1))
			return func() error {
				<-(<-requests).Done()
				return id.Shutdown(bounded(t))
			}
		}, 0},
		"listener": {func(t *testing.T) func() error {
			ln, err := rdmacm.Listen(bounded(t), address, &rdmacm.ListenConfig{Backlog: 1})
			require.NoError(t, err)
			return ln.Close
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.Forget()
			done := tt.listen(t)
			for _, call := range c.Calls() {
				if call.Name() == "rdma_listen" {
					require.Equal(t, tt.want, call.Arg(1))
				}
			}
			require.Contains(t, c.Names(), "rdma_listen")
			require.NoError(t, done())
		})
	}
}

// A request that cannot be destroyed is still the listener's to close.
func TestCloseRequestsOverLibraries(t *testing.T) {
	c := open(t)
	for name, listen := range map[string]func(*testing.T) interface{ Close() error }{
		"listener": func(t *testing.T) interface{ Close() error } {
			ln, err := rdmacm.Listen(bounded(t), address, nil)
			require.NoError(t, err)
			return ln
		},
		"endpoint": func(t *testing.T) interface{ Close() error } {
			ep, err := endpoint.New(rdmacm.PortSpaceTCP)
			require.NoError(t, err)
			require.NoError(t, ep.ID().BindAddr(netip.MustParseAddrPort(address)))
			require.NoError(t, ep.Listen(0))
			return ep
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.Forget()
			ln := listen(t)
			require.Eventually(t, func() bool {
				names := c.Names()
				read := slices.Index(names, "rdma_ack_cm_event")
				return read >= 0 && slices.Contains(names[read:], "rdma_get_cm_event")
			}, time.Minute, time.Millisecond, "the next event is looked for, so the listener has the request")
			for range 2 { // of the listener and the request
				c.Next("rdma_destroy_id", fakelib.Returns(-1, syscall.EBUSY))
				requireErrno(t, ln.Close(), "rdma_destroy_id", syscall.EBUSY)
				c.Next("rdma_destroy_id") // which succeeds
			}
			require.NoError(t, ln.Close())
		})
	}
}
