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

// Card is the place of a device in the process, with the device's name. The
// device can be removed, and another plugged in.
type Card struct {
	n         *Node
	index     int
	config    DeviceConfig
	current   *engine.Device // the device that is plugged in, or was plugged in last
	removed   bool           // whether current is removed
	addresses []netip.Addr   // addresses that the program chose with SetAddresses; nil: those of config
}

// Name returns the name of the device.
func (c *Card) Name() string { return c.config.Name }

// Index returns the number of the card, counted from 0.
func (c *Card) Index() int { return c.index }

// FileName returns the name of the device's file in /dev/infiniband. The file
// does not exist, but "verbena softroce run" shows it to a program.
func (c *Card) FileName() string { return fmt.Sprintf("uverbs%d", c.index) }

// chosen returns the addresses that the program or the configuration chose for
// the card. If it is nil, the card has all addresses of the network that are
// not chosen for others.
func (c *Card) chosen() []netip.Addr {
	if c.addresses != nil {
		return c.addresses
	}
	return c.config.Addresses
}

// plug creates a device, and puts it into the card.
func (c *Card) plug() {
	n := c.n
	config := engine.Config{
		FirstQPN:        uint32(n.slot) << qpnBits,
		QPNs:            qpns,
		Packets:         &n.path.packets,
		GUID:            rand.Uint64(),
		Start:           n.began,
		Copies:          &n.copies,
		Send:            n.path.send,
		Merges:          n.path.isClear,
		Room:            n.network.room,
		Persist:         persist,
		FindQP:          n.devices.findQP,
		CompletionEvent: n.program.CompletionEvent,
		Writes:          n.program.Writes,
		Overwritten:     n.program.Overwritten,
		Dropped:         n.program.Dropped,
		Limits:          &n.limits,
	}
	n.network.configure(&config)
	n.devices.numbers(&config, c.index)
	if n.path.hostile != nil {
		config.Hostile = n.path.hostile.random
	}
	var d *engine.Device
	config.AsyncEvent = func(e engine.AsyncEvent) { n.program.AsyncEvent(d, e) }
	d = engine.New(config)
	c.current, c.removed = d, false
	n.devices.inUse = append(n.devices.inUse, d)
}

// connected reports whether the device's port is active. If it is not, the
// connection manager neither sends nor receives messages through it.
func (c *Card) connected() bool {
	a, err := c.current.PortAttr(PortNumber)
	return err == nil && a.State == libibverbs.IBV_PORT_ACTIVE
}

// gidIndex returns the index of the GID g in the device's GID table. ok is
// false if the table does not have it.
func (c *Card) gidIndex(g wire.GID) (index uint32, ok bool) {
	table, err := c.current.GIDs()
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

// setGIDs gives the GID table the addresses in all, of which it takes the first
// if several have the same GID. It removes other GIDs from the table, and then
// adds those that the table lacks, in the given order. An address that the
// table already has keeps its index.
func (c *Card) setGIDs(all []machineAddress) {
	table, err := c.current.GIDs()
	if err != nil {
		return
	}
	wanted := map[wire.GID]bool{}
	for _, a := range all {
		wanted[wire.GIDOf(a.addr)] = true
	}
	used := map[uint32]bool{}
	have := map[wire.GID]bool{}
	for _, e := range table {
		g := wire.GID(*e.Gid.Raw())
		if wanted[g] {
			have[g], used[e.GidIndex] = true, true
		} else {
			c.current.SetGID(int(e.GidIndex), engine.GIDEntry{})
		}
	}
	free := uint32(0)
	for _, a := range all {
		g := wire.GIDOf(a.addr)
		if have[g] {
			continue
		}
		for used[free] {
			free++
		}
		if c.current.SetGID(int(free), engine.GIDEntry{GID: g, NetDev: a.netDev}) != nil {
			return // the table is full
		}
		used[free], have[g] = true, true
		c.n.devices.owners[g] = c
	}
}

// Device returns the card's device. there is false if the device is removed.
// The caller holds the node's lock.
func (c *Card) Device() (d *engine.Device, there bool) { return c.current, !c.removed }

// Open returns the card's device, which stays in use until Node.Close. Open
// fails with ENODEV if the device is removed. The caller holds the node's lock.
func (c *Card) Open() (*engine.Device, error) {
	if c.removed {
		return nil, syscall.ENODEV
	}
	s := &c.n.devices
	s.refreshGIDs()
	s.opens[c.current]++
	return c.current, nil
}

// errRemoved is the error of functions that need the device after it was
// removed.
var errRemoved = errors.New("the device is removed")

// Remove unplugs the device. It fails if the device is already removed.
func (c *Card) Remove() error {
	n := c.n
	n.Lock()
	defer n.Unlock()
	if c.removed {
		return errRemoved
	}
	n.Receive() // requests that are acknowledged must not be flushed
	c.removed = true
	c.current.Remove()
	n.cm.manager.RemoveDevice(n.Now(), c.current)
	n.program.Removed(c)
	return nil
}

// Insert plugs in a new device. It fails unless the last one was removed.
func (c *Card) Insert() error {
	n := c.n
	n.Lock()
	defer n.Unlock()
	if !c.removed {
		return errors.New("a device is already plugged in")
	}
	old := c.current
	c.plug()
	n.devices.refreshGIDs()
	n.devices.forget(old)
	return nil
}

// SetPort brings the device's port up or down. It fails if the device is
// removed.
func (c *Card) SetPort(up bool) error {
	c.n.Lock()
	defer c.n.Unlock()
	if c.removed {
		return errRemoved
	}
	c.current.SetPort(up)
	return nil
}

// CheckAddresses fails if a device's port cannot have the addresses. It needs
// no node.
func CheckAddresses(addresses []netip.Addr) error {
	if len(addresses) > maxAddresses {
		return fmt.Errorf("there are %d addresses: want %d at most", len(addresses), maxAddresses)
	}
	for i, a := range addresses {
		if !isUnicast(a) {
			return fmt.Errorf("addresses[%d] is %v, which is not a unicast address", i, a)
		}
	}
	return nil
}

// SetAddresses gives the device the given addresses, which CheckAddresses has
// accepted, in place of those of the configuration; nil restores these. It
// fails if the device is removed, or if an address is chosen for another card.
func (c *Card) SetAddresses(addresses []netip.Addr) error {
	c.n.Lock()
	defer c.n.Unlock()
	if c.removed {
		return errRemoved
	}
	before := c.addresses
	c.addresses = slices.Clone(addresses)
	for _, a := range c.chosen() {
		if other := c.n.devices.takenFrom(c, a); other != nil {
			c.addresses = before
			return fmt.Errorf("%v is an address of the device %s", a, other.Name())
		}
	}
	c.n.devices.refreshGIDs()
	return nil
}
