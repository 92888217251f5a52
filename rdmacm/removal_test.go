// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// A real device is removed in tests/interop. Here the events are injected.
func TestEventsThatEndAConnection(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct {
		event rdmacm.Event
		want  error
	}{
		{rdmacm.Event{Type: rdmacm.EventDeviceRemoval}, syscall.ENODEV},
		{rdmacm.Event{Type: rdmacm.EventRejected, Status: int(rdmacm.ReasonConsumer)}, syscall.ECONNREFUSED},
		{rdmacm.Event{Type: rdmacm.EventConnectError, Status: -int(syscall.EIO)}, syscall.EIO},
	} {
		t.Run(tt.event.Type.String(), func(t *testing.T) {
			client, _ := connect(t, d.IPv4, nil, nil)
			pending, err := client.PostRecv()
			require.NoError(t, err)
			rdmacm.Inject(client, &tt.event)
			awaitEnd(t, client)
			_, err = pending.Wait(bounded(t))
			require.ErrorIs(t, err, tt.want)
			require.ErrorIs(t, client.Send(bounded(t)), tt.want)
			require.NoError(t, client.Close())
		})
	}
}

// Some kernels report the peer of an established connection as unreachable when
// a neighbour changes. Addresses may change at any time.
func TestEventsThatDoNotEndAConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	for _, event := range []rdmacm.EventType{
		rdmacm.EventUnreachable, rdmacm.EventAddrChange, rdmacm.EventTimewaitExit, rdmacm.EventEstablished,
	} {
		rdmacm.Inject(client, &rdmacm.Event{Type: event})
	}
	require.NoError(t, client.Err())
	_, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(bounded(t)))
}

// pairs holds connections of this process with itself.
type pairs struct {
	ln    *rdmacm.Listener
	conns []*rdmacm.Conn
	waits chan error // what each connection's wait for a message has come to
}

// connectMany makes connections and passes a message on each. Both ends then
// wait for the next message.
func connectMany(t *testing.T, ln *rdmacm.Listener, address string, n int, config *rdmacm.Config) *pairs {
	t.Helper()
	ctx := bounded(t)
	if config == nil {
		config = new(rdmacm.Config)
	}
	// A busy guest may need long for a handshake, and for the removal, in
	// which a check of the peer would end a connection with another error.
	config.HandshakeTimeout, config.KeepAlive = patience, -1
	p := &pairs{ln: ln, waits: make(chan error, 2*n)}
	for range n {
		result := acceptOne(ctx, ln, config)
		client, err := rdmacm.Dial(ctx, address, inPool(config))
		require.NoError(t, err)
		a := <-result
		require.NoError(t, a.err)
		message, err := a.conn.PostRecv()
		require.NoError(t, err)
		require.NoError(t, client.Send(ctx))
		_, err = message.Wait(ctx)
		require.NoError(t, err)
		for _, c := range []*rdmacm.Conn{client, a.conn} {
			p.conns = append(p.conns, c)
			go func() {
				_, err := c.Recv(context.Background())
				p.waits <- err
			}()
		}
	}
	return p
}

// waitForRemoval waits until every connection is over and every wait has ended.
func (p *pairs) waitForRemoval(t *testing.T) {
	t.Helper()
	start, removed := time.Now(), 0
	for _, c := range p.conns {
		cmtest.Take(t, c.Done(), "the end of a connection")
		err, _ := errors.AsType[*rdmacm.EventError](c.Err())
		require.NotNil(t, err)
		switch err.Type {
		case rdmacm.EventDeviceRemoval:
			require.ErrorIs(t, err, syscall.ENODEV)
			removed++
		default: // the end that heard of it first has told the other one
			require.Equal(t, rdmacm.EventDisconnected, err.Type)
		}
	}
	for range p.conns {
		require.Error(t, cmtest.Take(t, p.waits, "the end of a wait"))
	}
	require.GreaterOrEqual(t, removed, len(p.conns)/2)
	t.Logf("%d of %d ends heard of the removal, the others from their peers; all after %v",
		removed, len(p.conns), time.Since(start))
}

func (p *pairs) close(t *testing.T) {
	t.Helper()
	for _, c := range p.conns {
		require.NoError(t, c.Close())
	}
}

// onPort returns an address with another address's port.
func onPort(t *testing.T, address string, other netip.AddrPort) string {
	t.Helper()
	host, _, err := net.SplitHostPort(address)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(other.String())
	require.NoError(t, err)
	return net.JoinHostPort(host, port)
}

// listenAt returns a listener that the test closes.
func listenAt(t *testing.T, address string) *rdmacm.Listener {
	t.Helper()
	ln, err := rdmacm.Listen(bounded(t), address, nil)
	require.NoError(t, err)
	return ln
}

// stillWaits requires that a removal has not ended, unless the kernel takes
// devices from their users.
func stillWaits(t *testing.T, removal <-chan error) {
	t.Helper()
	if testdevice.TakesDevices(t) {
		return
	}
	select {
	case err := <-removal:
		require.FailNow(t, "removed under its user", "%v", err)
	default:
	}
}

// The removal of a device ends its objects. The device goes when all of them
// are closed, and another of the same name may take its place.
func TestDeviceIsRemoved(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	guest.Interface(t)
	everywhere := listenAt(t, ":0") // goes on
	for round, n := range []int{90, 10} {
		address := guest.AddDevice(t, guest.NetDev)
		ln := listenAt(t, address)
		here := connectMany(t, ln, ln.Addr().String(), n, nil)
		there := connectMany(t, everywhere, onPort(t, address, everywhere.Addr()), 10, nil)
		accepting := make(chan error, 1)
		go func() {
			_, err := ln.Accept(context.Background())
			accepting <- err
		}()
		removal := guest.DeleteDevice(t)
		here.waitForRemoval(t)
		there.waitForRemoval(t)
		require.ErrorIs(t, cmtest.Take(t, accepting, "the end of Accept"), syscall.ENODEV)
		require.Nil(t, find(t, guest.Device), "not listed any more")
		here.close(t)
		stillWaits(t, removal)
		there.close(t)
		require.NoError(t, ln.Close())
		require.NoError(t, cmtest.Take(t, removal, fmt.Sprint("the end of the removal, round ", round)))
	}
	require.NoError(t, everywhere.Close())
	require.Nil(t, find(t, guest.Device)) // and librdmacm lets it go, too
}

// The program's own protection domain keeps a removed device. The program
// closes the memory first, then the domain.
func TestRemovedDeviceHasPD(t *testing.T) {
	d, isAlone := alone(t)
	if !isAlone {
		return
	}
	guest.Interface(t)
	address := guest.AddDevice(t, guest.NetDev)
	device := find(t, guest.Device)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	mr, err := pd.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	ln := listenAt(t, address)
	p := connectMany(t, ln, ln.Addr().String(), 2, &rdmacm.Config{PD: pd})
	removal := guest.DeleteDevice(t)
	p.waitForRemoval(t)
	p.close(t)
	require.NoError(t, ln.Close())
	require.Nil(t, find(t, guest.Device))
	require.NotNil(t, find(t, d.Name), "the others are there")
	other, err := pd.Alloc(4096, ibverbs.AccessLocalWrite)
	if testdevice.TakesDevices(t) {
		require.ErrorIs(t, err, syscall.EIO)
	} else {
		require.NoError(t, err, "the device works on")
		require.NoError(t, other.Close())
	}
	require.NoError(t, mr.Close())
	stillWaits(t, removal)
	require.NoError(t, pd.Close())
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	_, err = device.AllocPD()
	require.ErrorIs(t, err, os.ErrClosed, "closed with the last thing on it")
	require.Nil(t, find(t, guest.Device))
}

// An unused device is let go when the program looks for devices.
func TestRemovedDeviceIsIdle(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	guest.Interface(t)
	address := guest.AddDevice(t, guest.NetDev)
	ln := listenAt(t, address)
	p := connectMany(t, ln, ln.Addr().String(), 1, nil)
	p.close(t)
	require.NoError(t, ln.Close())
	removal := guest.DeleteDevice(t)
	soon(t, "the device is not listed any more", func() bool { return !guest.IsListed(t, guest.Device) })
	stillWaits(t, removal)
	require.Nil(t, find(t, guest.Device))
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, guest.Device))
}

// A handler that returns the error of each failed event lets the device go
// without any help.
func TestHandledDeviceIsRemoved(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	guest.Interface(t)
	address := netip.MustParseAddrPort(guest.AddDevice(t, guest.NetDev))
	var removal <-chan error
	t.Run("in use", func(t *testing.T) {
		b := cmtest.NewBench(t, testdevice.Device{Name: guest.Device, IPv4: address.Addr()})
		saw, seen := cmtest.Record()
		ln := b.Listen(4, b.Accepting(saw))
		ids := []*handled.ID{ln}
		for range 4 {
			ids = append(ids, b.Dial(ln, saw))
			for range 2 {
				cmtest.Await(t, seen, rdmacm.EventEstablished)
			}
		}
		removal = guest.DeleteDevice(t)
		for _, id := range ids {
			cmtest.Take(t, id.Done(), "the end of an id")
			require.Error(t, id.Err())
		}
		require.ErrorIs(t, ln.Err(), syscall.ENODEV)
	})
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, guest.Device))
}

// ownBondDev is made of guest.NetDev and ownSpareDev.
const (
	ownSpareDev = "rdma11"
	ownBondDev  = "bond9"
)

// alone runs the test again in a process of its own. There it returns true and
// a device that stays. It skips the test outside of the VM, because the test
// changes the system.
func alone(t *testing.T) (d testdevice.Device, isAlone bool) {
	t.Helper()
	d = testdevice.Require(t)
	needGuest(t)
	if guest.Alone(t, ownBondDev, ownSpareDev) {
		return needDevice(t), true
	}
	return d, false
}
