// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	_ "github.com/verbena-go/verbena/internal/testutil/ownnetwork"
	_ "github.com/verbena-go/verbena/softroce" // for VERBENA_DEVICE=soft
)

// Device is an RDMA device with an active port.
type Device struct {
	Name     string // such as rxe0
	Port     int
	GIDIndex int         // index of an IPv4 address in the GID table, or else of another GID
	GID      ibverbs.GID // GID at GIDIndex
	NetDev   string      // name of the network interface; empty: none
	IPv4     netip.Addr  // an IPv4 address of NetDev; not valid: it has none
	IPv6     netip.Addr  // a global IPv6 address of NetDev; not valid: it has none
}

// Require returns a device for the test. If there is none, it skips the test,
// or makes it fail if the environment variable VERBENA_REQUIRE_DEVICE is 1.
func Require(t testing.TB) Device {
	t.Helper()
	if Soft() {
		checkSkip(t)
	}
	d, err := find()
	switch {
	case err == nil:
	case os.Getenv("VERBENA_REQUIRE_DEVICE") == "1":
		t.Fatalf("VERBENA_REQUIRE_DEVICE is 1, but there is no RDMA device to test with: %v", err)
	default:
		t.Skipf("needs an RDMA device (tests/vm/rdma-vm runs tests with one): %v", err)
	}
	return d
}

// RequireSoftware returns a software device for the test, which is Soft-RoCE or
// the device in user space, as the test is about something that such devices
// lack. If there is only hardware, it skips the test, or makes it fail if the
// environment variable VERBENA_REQUIRE_DEVICE is 1.
func RequireSoftware(t testing.TB) Device {
	t.Helper()
	d := Require(t)
	switch {
	case d.SoftRoCE(), Soft():
	case os.Getenv("VERBENA_REQUIRE_DEVICE") == "1":
		t.Fatalf("VERBENA_REQUIRE_DEVICE is 1, but %s is hardware", d.Name)
	default:
		t.Skipf("tests what software lacks, and %s is hardware", d.Name)
	}
	return d
}

// find returns the first device with an active port.
func find() (Device, error) {
	devices, err := ibverbs.Devices()
	if err != nil {
		return Device{}, err
	}
	if len(devices) == 0 {
		return Device{}, ibverbs.ErrNoDevice
	}
	var reasons []string
	for _, d := range devices {
		found, err := activePort(d.Name)
		if err == nil {
			return found, nil
		}
		reasons = append(reasons, err.Error())
	}
	return Device{}, fmt.Errorf("no active port: %s", strings.Join(reasons, "; "))
}

// activePort returns the first active port of a device.
func activePort(name string) (Device, error) {
	c, err := ibverbs.Open(name)
	if err != nil {
		return Device{}, err
	}
	defer func() { _ = c.Close() }()
	attr, err := c.QueryDevice()
	if err != nil {
		return Device{}, err
	}
	for port := 1; port <= attr.Ports; port++ {
		p, err := c.QueryPort(port)
		if err != nil {
			return Device{}, err
		}
		if p.State != link.Active {
			continue
		}
		d := Device{Name: name, Port: port}
		if err := d.findGID(c); err != nil {
			return Device{}, err
		}
		d.findAddrs()
		return d, nil
	}
	return Device{}, fmt.Errorf("%s: no port is active", name)
}

// findGID sets the GID of the port. It prefers an IPv4 address with RoCE v2,
// and then other addresses; loopback addresses come last.
func (d *Device) findGID(c *ibverbs.Device) error {
	entries, err := c.QueryPortGIDs(d.Port)
	if err != nil {
		return err
	}
	best := -1
	for _, e := range entries {
		rank := 1
		switch addr := e.GID.Addr(); {
		case addr.IsLoopback():
			rank = 0
		case addr.Is4() && e.Type == ibverbs.GIDTypeRoCEv2:
			rank = 3
		case addr.Is4():
			rank = 2
		}
		if rank > best {
			best, d.GIDIndex, d.GID, d.NetDev = rank, e.Index, e.GID, e.NetDev
		}
	}
	if best < 0 {
		return fmt.Errorf("%s port %d: no GID", d.Name, d.Port)
	}
	return nil
}

// findAddrs sets the addresses of the network interface.
func (d *Device) findAddrs() {
	nic, err := net.InterfaceByName(d.NetDev)
	if err != nil {
		return
	}
	addrs, _ := nic.Addrs() // after an error, there are no addresses
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		switch addr := prefix.Addr(); {
		case err != nil:
		case addr.Is4() && !d.IPv4.IsValid():
			d.IPv4 = addr
		case addr.Is6() && !addr.IsLinkLocalUnicast() && !d.IPv6.IsValid():
			d.IPv6 = addr
		}
	}
}
