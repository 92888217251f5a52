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
	// PortNumber is the number of the device's port.
	PortNumber = 1
)

// devices are the device of the node and those before it.
type devices struct {
	n         *Node
	current   *engine.Device   // the device that is plugged in or was last
	inUse     []*engine.Device // current, and removed devices that the program still has open
	opens     map[*engine.Device]int
	removed   bool         // current is
	addresses []netip.Addr // of the device; nil: those that the network has
}

// plug makes the node's device a new one.
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
		CompletionEvent: n.program.CompletionEvent,
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

// forget drops a removed device that the program does not have open.
func (s *devices) forget(d *engine.Device) {
	if d != s.current && s.opens[d] == 0 {
		s.inUse = slices.DeleteFunc(s.inUse, func(other *engine.Device) bool { return other == d })
	}
}

// resume lets queue pairs go on that found no room.
func (s *devices) resume() {
	for _, d := range s.inUse {
		d.Resume()
	}
}

// connected reports whether messages of the connection manager come and go.
func (s *devices) connected() bool {
	a, err := s.current.PortAttr(PortNumber)
	return err == nil && a.State == libibverbs.IBV_PORT_ACTIVE
}

// gidIndex returns the place of an address in the device's GID table.
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

// refreshGIDs brings the GID table up to date with the network's addresses, or
// those that SetAddresses gave. An address keeps its place while it is there.
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

// Device returns the node's device, and false if it is removed. The caller has
// the node locked.
func (n *Node) Device() (d *engine.Device, there bool) {
	return n.devices.current, !n.devices.removed
}

// Open returns the node's device. It stays in use until Close. Open fails with
// ENODEV if the device is removed. The caller has the node locked.
func (n *Node) Open() (*engine.Device, error) {
	s := &n.devices
	if s.removed {
		return nil, syscall.ENODEV
	}
	s.refreshGIDs()
	s.opens[s.current]++
	return s.current, nil
}

// Close undoes Open. The caller has the node locked.
func (n *Node) Close(d *engine.Device) {
	s := &n.devices
	if s.opens[d]--; s.opens[d] == 0 {
		delete(s.opens, d)
	}
	s.forget(d)
}

// Reach fails if no node has the address of a path. The caller has the node
// locked.
func (n *Node) Reach(a *libibverbs.AhAttr) error {
	g := wire.GID(*a.Grh.Dgid.Raw())
	if a.IsGlobal == 0 || g.Addr().IsMulticast() || n.devices.current.Has(g) {
		return nil
	}
	return n.network.reach(g)
}

// errRemoved is the error of a call that needs a device after it was removed.
var errRemoved = errors.New("the device is removed")

// Remove pulls the device out.
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

// Insert plugs in another device after the last one was removed.
func (n *Node) Insert() error {
	n.Lock()
	defer n.Unlock()
	if !n.devices.removed {
		return errors.New("the device is plugged in")
	}
	old := n.devices.current
	n.devices.plug()
	n.devices.forget(old)
	return nil
}

// SetPort brings the device's port up or down.
func (n *Node) SetPort(up bool) error {
	n.Lock()
	defer n.Unlock()
	if n.devices.removed {
		return errRemoved
	}
	n.devices.current.SetPort(up)
	return nil
}

// SetAddresses gives the device these addresses instead of those of the
// machine; nil gives it the machine's again.
func (n *Node) SetAddresses(addresses []netip.Addr) error {
	for i, a := range addresses {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("address %d is %v, which a port cannot have", i, a)
		}
	}
	n.Lock()
	defer n.Unlock()
	if n.devices.removed {
		return errRemoved
	}
	n.devices.addresses = slices.Clone(addresses)
	n.devices.refreshGIDs()
	return nil
}
