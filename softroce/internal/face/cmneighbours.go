// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Ports are the machine's: a node that has one claims it by a name, by which the others
// find the node that a request goes to.

// madFrame is the kind of a frame with a message: after it follow the addresses and the message.
const madFrame = 'M'

const madHeaderLen = 1 + 16 + 16

// claimed is a name that this node has, for so many claims.
type claimed struct {
	name  io.Closer
	users int
}

// claimNames returns the names of a claim. All addresses of a family have one name: that a node has a port at one address
// does not keep another node from having it at all addresses, and requests to that one address go to the first.
func claimNames(c manager.Claim) []string {
	addr, port := c.Addr.Addr(), c.Addr.Port()
	switch {
	case addr.Is6() && addr.IsUnspecified() && !c.V6Only:
		return []string{claimName(c.Space, addr, port), claimName(c.Space, netip.IPv4Unspecified(), port)}
	default:
		return []string{claimName(c.Space, addr, port)}
	}
}

func claimName(space librdmacm.PortSpace, addr netip.Addr, port uint16) string {
	return fmt.Sprintf("%d/%v/%d", space, addr.WithZone(""), port)
}

// claim claims a port, until release is called.
func (n *node) claim(c manager.Claim) (release func(), err error) {
	var have []string
	release = func() {
		for _, name := range have {
			n.unclaimName(name)
		}
	}
	for _, name := range claimNames(c) {
		if err := n.claimName(name); err != nil {
			release()
			return nil, err
		}
		have = append(have, name)
	}
	return release, nil
}

func (n *node) claimName(name string) error {
	c := n.cm.claims[name]
	if c == nil {
		c = &claimed{}
		if n.link != nil {
			closer, err := n.link.Claim(name)
			if err != nil {
				var errno syscall.Errno
				if errors.As(err, &errno) {
					return errno
				}
				return syscall.EADDRNOTAVAIL
			}
			c.name = closer
		}
		if n.internet != nil {
			c.name = n.internet.announce(name)
		}
		n.cm.claims[name] = c
	}
	c.users++
	return nil
}

func (n *node) unclaimName(name string) {
	c := n.cm.claims[name]
	c.users--
	if c.users > 0 {
		return
	}
	delete(n.cm.claims, name)
	if c.name != nil {
		c.name.Close()
	}
}

// sendMAD sends a message to a node, or to the one that has claimed what it asks for.
func (n *node) sendMAD(m manager.MAD) {
	switch {
	case n.internet != nil && !n.device.Has(wire.GIDOf(m.Dst)):
		went(m, outside)
		p := n.packetOf(m)
		n.sendOut(p)
		n.packets.Put(p)
	case m.Node == n.slot || n.link == nil:
		went(m, n.slot)
		n.receiveMAD(n.slot, m)
	case m.Node != 0:
		n.sendMADTo(m.Node, m)
	default:
		n.ask(m)
	}
}

// went tells the connection manager to which node a message goes.
func went(m manager.MAD, slot int) {
	if m.Went != nil {
		m.Went(slot)
	}
}

// ask sends a request to the node that has claimed the port. If there is none, this one refuses it.
func (n *node) ask(m manager.MAD) {
	space, port, _ := wire.ServicePort(m.Service)
	anyAddr := netip.IPv4Unspecified()
	if m.Dst.Is6() {
		anyAddr = netip.IPv6Unspecified()
	}
	names := []string{
		claimName(librdmacm.PortSpace(space), m.Dst, port),
		claimName(librdmacm.PortSpace(space), anyAddr, port),
	}
	if n.cm.claims[names[0]] != nil {
		went(m, n.slot)
		n.receiveMAD(n.slot, m)
		return
	}
	mine := n.cm.claims[names[1]] != nil
	go func() { // a neighbour may hang
		if mine {
			names = names[:1]
		}
		slot, err := n.link.Find(names...)
		if errors.Is(err, syscall.ECONNREFUSED) {
			slot, err = n.slot, nil
		}
		if err != nil {
			return // the node that has the port does not answer now; the request will be repeated
		}
		n.lock()
		defer n.unlock()
		went(m, slot)
		if slot == n.slot {
			n.receiveMAD(n.slot, m)
			return
		}
		n.sendMADTo(slot, m)
	}()
}

// receiveMAD keeps a message from a node until the connection manager receives it.
func (n *node) receiveMAD(from int, m manager.MAD) {
	if !n.connected() {
		return
	}
	m.Node, m.Went = from, nil
	n.cm.mads = append(n.cm.mads, m)
}

func (n *node) sendMADTo(slot int, m manager.MAD) {
	src, dst := wire.GIDOf(m.Src), wire.GIDOf(m.Dst)
	n.note(n.link.Way(slot))
	n.link.Send(slot, madHeaderLen+len(m.Data), func(frame []byte) bool {
		b := append(frame[:0], madFrame)
		b = append(b, src[:]...)
		b = append(b, dst[:]...)
		copy(frame[len(b):], m.Data)
		return true
	})
}

// receiveMADFrame takes a frame with a message from a neighbour.
func (n *node) receiveMADFrame(slot int, frame []byte) {
	if len(frame) < madHeaderLen {
		return
	}
	n.receiveMAD(slot, manager.MAD{
		Src: wire.GID(frame[1:17]).Addr(), Dst: wire.GID(frame[17:33]).Addr(),
		Data: append([]byte(nil), frame[madHeaderLen:]...),
	})
}
