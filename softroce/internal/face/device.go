// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
)

// plug makes the node's device a new one.
func (n *node) plug() {
	c := engine.Config{
		FirstQPN:        uint32(n.slot) << qpnBits,
		QPNs:            qpns,
		Packets:         &n.packets,
		GUID:            rand.Uint64(),
		Start:           n.began,
		Send:            n.send,
		Room:            n.room,
		CompletionEvent: n.completionEvent,
	}
	if n.link != nil || n.internet != nil {
		c.Outgoing = (*outgoing)(n)
	}
	if n.internet != nil {
		c.FirstQPN, c.QPNs, c.MaxQPs = firstOutside, lastOutside-firstOutside+1, qpns
		c.MTU = n.internet.mtu()
		c.Window = packets(window(link.ReceiveBuffer()), c.MTU)
		c.ECN = true
	}
	if n.hostile != nil {
		c.Hostile = n.hostile.random
	}
	var d *engine.Device
	c.AsyncEvent = func(e engine.AsyncEvent) { n.asyncEvent(d, e) }
	d = engine.New(c)
	n.device, n.removed = d, false
	n.inUse = append(n.inUse, d)
	n.refreshGIDs()
}

// deviceOf returns the device that c has opened, nil if c is none that is open.
func (n *node) deviceOf(c *libibverbs.Context) *engine.Device {
	if x := n.contexts[c]; x != nil {
		return x.device
	}
	return nil
}

// forget drops a device that was removed when nobody has it open any more.
func (n *node) forget(d *engine.Device) {
	if d == n.device {
		return
	}
	for _, x := range n.contexts {
		if x.device == d {
			return
		}
	}
	n.inUse = slices.DeleteFunc(n.inUse, func(other *engine.Device) bool { return other == d })
}

// errRemoved is the error of what needs a device after it was removed.
var errRemoved = errors.New("the device is removed")

// Remove pulls the device out.
func Remove() error {
	n := self()
	n.lock()
	defer n.unlock()
	if n.removed {
		return errRemoved
	}
	n.removed = true
	n.device.Remove()
	n.cm.manager.RemoveDevice(n.now(), n.device)
	n.disown()
	return nil
}

// Insert plugs in another device after the last one was removed.
func Insert() error {
	n := self()
	n.lock()
	defer n.unlock()
	if !n.removed {
		return errors.New("the device is there")
	}
	old := n.device
	n.plug()
	n.forget(old)
	return nil
}

// SetPort brings the device's port up or down.
func SetPort(up bool) error {
	n := self()
	n.lock()
	defer n.unlock()
	if n.removed {
		return errRemoved
	}
	n.device.SetPort(up)
	return nil
}

// connected reports whether messages of the connection manager come and go.
func (n *node) connected() bool {
	a, err := n.device.PortAttr(portNumber)
	return err == nil && a.State == libibverbs.IBV_PORT_ACTIVE
}

// SetAddresses makes addresses those of the device, instead of the machine's; nil ends that.
func SetAddresses(addresses []netip.Addr) error {
	for i, a := range addresses {
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("address %d is %v, which a port cannot have", i, a)
		}
	}
	n := self()
	n.lock()
	defer n.unlock()
	if n.removed {
		return errRemoved
	}
	n.addresses = slices.Clone(addresses)
	n.refreshGIDs()
	return nil
}
