// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
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
		require.ErrorIs(t, cmtest.Take(t, accepting, "the end of Accept"), syscall.ENODEV)
		require.Nil(t, find(t, ownName), "not listed any more")
		here.close(t)
		stillWaits(t, removal)
		there.close(t)
		require.NoError(t, ln.Close())
		require.NoError(t, cmtest.Take(t, removal, fmt.Sprint("the end of the removal, round ", round)))
	}
	require.NoError(t, everywhere.Close())
	require.Nil(t, find(t, ownName)) // and librdmacm lets it go, too
}

// The program's own protection domain keeps a removed device. The program
// closes the memory first, then the domain.
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
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	_, err = device.AllocPD()
	require.ErrorIs(t, err, os.ErrClosed, "closed with the last thing on it")
	require.Nil(t, find(t, ownName))
}

// An unused device is let go when the program looks for devices.
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
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, ownName))
}

// A handler that returns the error of each failed event lets the device go
// without any help.
func TestHandledDeviceIsRemoved(t *testing.T) {
	if _, isAlone := alone(t); !isAlone {
		return
	}
	ownInterface(t)
	address := netip.MustParseAddrPort(ownDevice(t, ownNetDev))
	var removal <-chan error
	t.Run("in use", func(t *testing.T) {
		b := cmtest.NewBench(t, testdevice.Device{Name: ownName, IPv4: address.Addr()})
		saw, seen := cmtest.Record()
		ln := b.Listen(4, b.Accepting(saw))
		ids := []*handled.ID{ln}
		for range 4 {
			ids = append(ids, b.Dial(ln, saw))
			for range 2 {
				cmtest.Await(t, seen, rdmacm.EventEstablished)
			}
		}
		removal = start(t, "rdma", "link", "delete", ownName)
		for _, id := range ids {
			cmtest.Take(t, id.Done(), "the end of an id")
			require.Error(t, id.Err())
		}
		require.ErrorIs(t, ln.Err(), syscall.ENODEV)
	})
	require.NoError(t, cmtest.Take(t, removal, "the end of the removal"))
	require.Nil(t, find(t, ownName))
}

// The test makes this device for itself and removes it.
const (
	ownName   = "rxe9"
	ownNetDev = "rdma9"
	// ownBondDev is made of ownNetDev and ownSpareDev.
	ownSpareDev = "rdma11"
	ownBondDev  = "bond9"
	ownPrefix   = "203.0.113.1/24"
)

// aloneEnv is set in a process that alone has started.
const aloneEnv = "VERBENA_RDMACM_ALONE"

// alone runs the test again in a process of its own, as tests that make and
// remove devices need. There it returns true and a device that stays. It skips
// the test outside of the VM, because the test changes the system.
//
// Before version 52 librdmacm loses devices in a process in which other devices
// have come or gone, if their records are more than 2 GiB apart. They can be
// when several threads allocate memory. So all of C's memory comes from one
// arena.
func alone(t *testing.T) (d testdevice.Device, isAlone bool) {
	t.Helper()
	d = testdevice.Require(t)
	needGuest(t)
	if os.Getenv(aloneEnv) != "" {
		return needDevice(t), true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v=true")
	cmd.Env = append(os.Environ(), aloneEnv+"=1", "MALLOC_ARENA_MAX=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	// While the process ran, deleting the device could have waited for it.
	if isListed(t, ownName) {
		run(t, "rdma", "link", "delete", ownName)
	}
	for _, name := range []string{ownBondDev, ownSpareDev, ownNetDev} {
		if _, err := os.Stat("/sys/class/net/" + name); err == nil {
			run(t, "ip", "link", "delete", name)
		}
	}
	require.NoError(t, err)
	return d, false
}

// run runs a command of the system that must succeed.
func run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// start runs a command of the system that may wait.
func start(t testing.TB, args ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	result := make(chan error, 1)
	go func() { result <- cmd.Wait() }()
	return result
}

// ownInterface makes a network interface for a test that is alone.
func ownInterface(t testing.TB) {
	t.Helper()
	run(t, "ip", "link", "add", ownNetDev, "type", "veth", "peer", "name", "rdma10")
	run(t, "ip", "address", "add", ownPrefix, "dev", ownNetDev)
	for _, end := range []string{"rdma10", ownNetDev} {
		run(t, "ip", "link", "set", end, "addrgenmode", "none") // no addresses of the kernel's own
		run(t, "ip", "link", "set", end, "up")
	}
}

// ownDevice makes a device on an interface. It returns an address to listen at
// when the device is ready.
func ownDevice(t testing.TB, netdev string) string {
	t.Helper()
	run(t, "rdma", "link", "add", ownName, "type", "rxe", "netdev", netdev)
	ip := netip.MustParsePrefix(ownPrefix).Addr()
	soon(t, "the device has its address", func() bool {
		c, err := ibverbs.Open(ownName)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		port, err := c.QueryPort(1)
		require.NoError(t, err)
		for i := range 8 {
			gid, err := c.QueryGID(1, i)
			require.NoError(t, err)
			if gid.Addr() == ip && port.State == link.Active {
				return true
			}
		}
		return false
	})
	return netip.AddrPortFrom(ip, 0).String()
}

// isListed reports whether libibverbs lists a device.
func isListed(t testing.TB, name string) bool {
	t.Helper()
	devices, err := ibverbs.Devices()
	require.NoError(t, err)
	return slices.ContainsFunc(devices, func(d ibverbs.DeviceEntry) bool { return d.Name == name })
}
