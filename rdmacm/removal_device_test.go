package rdmacm_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// pairs are connections of this process with itself.
type pairs struct {
	ln    *rdmacm.Listener
	conns []*rdmacm.Conn
	waits chan error // what each connection's wait for a message has come to
}

// connectMany makes connections, with a message passed on each, and both ends
// waiting for the next one.
func connectMany(t *testing.T, ln *rdmacm.Listener, address string, n int, config *rdmacm.Config) *pairs {
	t.Helper()
	ctx := bounded(t)
	p := &pairs{ln: ln, waits: make(chan error, 2*n)}
	for range n {
		result := acceptOne(ctx, ln, config)
		client, err := rdmacm.Dial(ctx, address, config)
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

// waitForRemoval waits until every connection is over, and every wait on one.
func (p *pairs) waitForRemoval(t *testing.T) {
	t.Helper()
	start, removed := time.Now(), 0
	for _, c := range p.conns {
		take(t, c.Done(), "the end of a connection")
		switch err := c.Err().(*rdmacm.EventError); err.Type {
		case rdmacm.EventDeviceRemoval:
			require.ErrorIs(t, err, syscall.ENODEV)
			removed++
		default: // the end that heard of it first has told the other one
			require.Equal(t, rdmacm.EventDisconnected, err.Type)
		}
	}
	for range p.conns {
		require.Error(t, take(t, p.waits, "the end of a wait"))
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

// onPort returns an address with the port of another.
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

// stillWaits requires that a removal waits for something, unless the kernel takes
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

// A device that is removed ends what is on it, goes when all that is closed,
// and leaves its place to another of the same name.
func TestDeviceIsRemoved(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownInterface(t)
	everywhere := listenAt(t, ":0") // goes on
	for round, n := range []int{90, 10} {
		address := ownDevice(t, ownNetDev)
		ln := listenAt(t, address)
		here := connectMany(t, ln, ln.Addr().String(), n, nil)
		there := connectMany(t, everywhere, onPort(t, address, everywhere.Addr()), 10, nil)
		accepting := make(chan error, 1)
		go func() {
			_, err := ln.Accept(context.Background())
			accepting <- err
		}()
		removal := start(t, "rdma", "link", "delete", ownName)
		here.waitForRemoval(t)
		there.waitForRemoval(t)
		require.ErrorIs(t, take(t, accepting, "the end of Accept"), syscall.ENODEV)
		require.Nil(t, find(t, ownName), "not listed any more")
		here.close(t)
		stillWaits(t, removal)
		there.close(t)
		require.NoError(t, ln.Close())
		require.NoError(t, take(t, removal, fmt.Sprint("the end of the removal, round ", round)))
	}
	require.NoError(t, everywhere.Close())
	require.Nil(t, find(t, ownName)) // and librdmacm lets it go, too
}

// The program's own protection domain keeps a removed device until it is
// closed, after its memory.
func TestRemovedDeviceHasPD(t *testing.T) {
	d, isAlone := alone(t)
	if !isAlone {
		return
	}
	ownInterface(t)
	address := ownDevice(t, ownNetDev)
	device := find(t, ownName)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	mr, err := pd.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	ln := listenAt(t, address)
	p := connectMany(t, ln, ln.Addr().String(), 2, &rdmacm.Config{PD: pd})
	removal := start(t, "rdma", "link", "delete", ownName)
	p.waitForRemoval(t)
	p.close(t)
	require.NoError(t, ln.Close())
	require.Nil(t, find(t, ownName))
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
	require.NoError(t, take(t, removal, "the end of the removal"))
	_, err = device.AllocPD()
	require.ErrorIs(t, err, os.ErrClosed, "closed with the last thing on it")
	require.Nil(t, find(t, ownName))
}

// A device that nothing uses is let go when the program looks for devices.
func TestRemovedDeviceIsIdle(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownInterface(t)
	address := ownDevice(t, ownNetDev)
	ln := listenAt(t, address)
	p := connectMany(t, ln, ln.Addr().String(), 1, nil)
	p.close(t)
	require.NoError(t, ln.Close())
	removal := start(t, "rdma", "link", "delete", ownName)
	soon(t, "the device is not listed any more", func() bool { return !isListed(t, ownName) })
	stillWaits(t, removal)
	require.Nil(t, find(t, ownName))
	require.NoError(t, take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, ownName))
}

// A handler that returns the error of each event that has one lets the device
// go without any help.
func TestHandledDeviceIsRemoved(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownInterface(t)
	address := netip.MustParseAddrPort(ownDevice(t, ownNetDev))
	var removal <-chan error
	t.Run("in use", func(t *testing.T) {
		b := newBench(t, testdevice.Device{Name: ownName, IPv4: address.Addr()})
		saw, seen := record()
		ln := b.listen(4, b.accepting(saw))
		ids := []*rdmacm.HandledID{ln}
		for range 4 {
			ids = append(ids, b.dial(ln, saw))
			for range 2 {
				await(t, seen, rdmacm.EventEstablished)
			}
		}
		removal = start(t, "rdma", "link", "delete", ownName)
		for _, id := range ids {
			take(t, id.Done(), "the end of an id")
			require.Error(t, id.Err())
		}
		require.ErrorIs(t, ln.Err(), syscall.ENODEV)
	})
	require.NoError(t, take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, ownName))
}
