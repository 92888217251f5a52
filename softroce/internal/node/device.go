// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// DeviceName is the name of the device.
	DeviceName = "soft0"
	// FileName is the name of the device's file in /dev/infiniband. The
	// file does not exist, but "verbena softroce run" shows it to a
	// program.
	FileName = "uverbs0"
	// PortNumber is the number of the device's port.
	PortNumber = 1
)

// devices has the device that the program can open now, and the removed devices
// that the program still has open.
type devices struct {
	n         *Node
	current   *engine.Device         // the device that is plugged in, or was plugged in last
	inUse     []*engine.Device       // current, and removed devices that the program still has open
	opens     map[*engine.Device]int // number of calls of Open without Close
	removed   bool                   // whether current is removed
	addresses []netip.Addr           // addresses that the program chose for the device; nil: those of the network
}

// plug creates a device and makes it the current one.
func (s *devices) plug() {
	n := s.n
	c := engine.Config{
		FirstQPN:        uint32(n.slot) << qpnBits,
		QPNs:            qpns,
		Packets:         &n.path.packets,
		GUID:            rand.Uint64(),
		Start:           n.began,
		Send:            n.path.send,
		Room:            n.network.room,
		Persist:         persist,
		CompletionEvent: n.program.CompletionEvent,
		Writes:          n.program.Writes,
		Overwritten:     n.program.Overwritten,
		Dropped:         n.program.Dropped,
		Limits:          &n.limits,
	}
	n.network.configure(&c)
	if n.path.hostile != nil {
		c.Hostile = n.path.hostile.random
	}
	var d *engine.Device
	c.AsyncEvent = func(e engine.AsyncEvent) { n.program.AsyncEvent(d, e) }
	d = engine.New(c)
	s.current, s.removed = d, false
	s.inUse = append(s.inUse, d)
	s.refreshGIDs()
}

// forget drops the device d if it is removed and the program has closed it.
func (s *devices) forget(d *engine.Device) {
	if d != s.current && s.opens[d] == 0 {
		s.inUse = slices.DeleteFunc(s.inUse, func(other *engine.Device) bool { return other == d })
	}
}

// resume lets queue pairs continue that waited for room in the network.
func (s *devices) resume() {
	for _, d := range s.inUse {
		d.Resume()
	}
}

// connected reports whether the device's port is active. If it is not, the
// connection manager neither sends nor receives messages.
func (s *devices) connected() bool {
	a, err := s.current.PortAttr(PortNumber)
	return err == nil && a.State == libibverbs.IBV_PORT_ACTIVE
}

// gidIndex returns the index of the GID g in the device's GID table. ok is
// false if the table does not have it.
func (s *devices) gidIndex(g wire.GID) (index uint32, ok bool) {
	table, err := s.current.GIDs()
	if err != nil {
		return 0, false
	}
	for _, e := range table {
		if wire.GID(*e.Gid.Raw()) == g {
			return e.GidIndex, true
		}
	}
	return 0, false
}

// refreshGIDs updates the GID table to the addresses that SetAddresses gave, or
// else to those of the network. An address that the table already has keeps its
// index.
func (s *devices) refreshGIDs() {
	addresses, err := s.n.network.addresses()
	if err != nil {
		return
	}
	current := map[wire.GID]uint32{}
	var order []wire.GID
	for _, a := range addresses {
		g := wire.GIDOf(a.addr)
		if _, known := current[g]; !known {
			order = append(order, g)
			current[g] = a.netDev
		}
	}
	if s.addresses != nil {
		machine := current
		order, current = nil, map[wire.GID]uint32{}
		for _, a := range s.addresses {
			g := wire.GIDOf(a)
			if _, known := current[g]; !known {
				order = append(order, g)
				current[g] = machine[g] // 0 if the machine does not have it
			}
		}
	}
	s.setGIDs(order, current)
}

// setGIDs removes GIDs from the table that current does not have. Then it adds
// those GIDs of current that the table lacks, in the given order. The values of
// current are the indexes of network interfaces.
func (s *devices) setGIDs(order []wire.GID, current map[wire.GID]uint32) {
	table, err := s.current.GIDs()
	if err != nil {
		return
	}
	used := map[uint32]bool{}
	have := map[wire.GID]bool{}
	for _, e := range table {
		g := wire.GID(*e.Gid.Raw())
		if _, ok := current[g]; ok {
			have[g], used[e.GidIndex] = true, true
		} else {
			s.current.SetGID(int(e.GidIndex), engine.GIDEntry{})
		}
	}
	free := uint32(0)
	for _, g := range order {
		if have[g] {
			continue
		}
		for used[free] {
			free++
		}
		used[free] = true
		if s.current.SetGID(int(free), engine.GIDEntry{GID: g, NetDev: current[g]}) != nil {
			return // the table is full
		}
	}
}

// Device returns the node's device. there is false if the device is removed.
// The caller holds the node's lock.
func (n *Node) Device() (d *engine.Device, there bool) {
	return n.devices.current, !n.devices.removed
}

// Open returns the node's device, which stays in use until Close. Open fails
// with ENODEV if the device is removed. The caller holds the node's lock.
func (n *Node) Open() (*engine.Device, error) {
	s := &n.devices
	if s.removed {
		return nil, syscall.ENODEV
	}
	s.refreshGIDs()
	s.opens[s.current]++
	return s.current, nil
}

// Close ends the use of a device that Open returned. The caller holds the
// node's lock.
func (n *Node) Close(d *engine.Device) {
	s := &n.devices
	if s.opens[d]--; s.opens[d] == 0 {
		delete(s.opens, d)
	}
	s.forget(d)
}

// Reach fails if the network has no node with the destination address in a. The
// caller holds the node's lock.
func (n *Node) Reach(a *libibverbs.AhAttr) error {
	g := wire.GID(*a.Grh.Dgid.Raw())
	if a.IsGlobal == 0 || g.Addr().IsMulticast() || n.devices.current.Has(g) {
		return nil
	}
	return n.network.reach(g)
}

// errRemoved is the error of functions that need the device after it was
// removed.
var errRemoved = errors.New("the device is removed")

// Remove unplugs the device. It fails if the device is already removed.
func (n *Node) Remove() error {
	n.Lock()
	defer n.Unlock()
	if n.devices.removed {
		return errRemoved
	}
	n.devices.removed = true
	n.devices.current.Remove()
	n.cm.manager.RemoveDevice(n.Now(), n.devices.current)
	n.program.Removed()
	return nil
}

// Insert plugs in a new device. It fails unless the last one was removed.
func (n *Node) Insert() error {
	n.Lock()
	defer n.Unlock()
	if !n.devices.removed {
		return errors.New("a device is already plugged in")
	}
	old := n.devices.current
	n.devices.plug()
	n.devices.forget(old)
	return nil
}

// SetPort brings the device's port up or down. It fails if the device is
// removed.
func (n *Node) SetPort(up bool) error {
	n.Lock()
	defer n.Unlock()
	if n.devices.removed {
		return errRemoved
	}
	n.devices.current.SetPort(up)
	return nil
}

// CheckAddresses fails if the device's port cannot have one of the addresses.
// It needs no node.
func CheckAddresses(addresses []netip.Addr) error {
	for i, a := range addresses {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("addresses[%d] is %v, which is not a unicast address", i, a)
		}
	}
	return nil
}

// SetAddresses gives the device the given addresses, which CheckAddresses has
// accepted, in place of the network's; nil restores the network's. It fails if
// the device is removed.
func (n *Node) SetAddresses(addresses []netip.Addr) error {
	n.Lock()
	defer n.Unlock()
	if n.devices.removed {
		return errRemoved
	}
	n.devices.addresses = slices.Clone(addresses)
	n.devices.refreshGIDs()
	return nil
}
