// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// A service is a port of a port space.
type service struct {
	space librdmacm.PortSpace
	port  uint16
}

// A claim counts the IDs that have a port at an address. The port becomes the
// node's own when an ID is bound there on purpose, since that ID may listen.
// The ports of clients are not claimed from the host: no peer looks for them,
// and there may be many.
type claim struct {
	users   int
	release func() // returned by Host.Claim; nil if the port is not the node's own
}

// The range from which Linux chooses ports by default.
const firstEphemeral, lastEphemeral = 32768, 60999

// bindPort gives the ID the port of its local address or, if that is 0, a free
// one. With own, the port becomes the node's own.
func (id *ID) bindPort(own bool) error {
	if port := id.local.Port(); port != 0 {
		if err := id.portFree(id.reuse); err != nil {
			return err
		}
		return id.claimPort(port, own)
	}
	const ports = lastEphemeral - firstEphemeral + 1
	first := id.m.random() % ports
	for i := range uint32(ports) {
		port := uint16(firstEphemeral + (first+i)%ports)
		if len(id.m.bound[service{id.space, port}]) > 0 {
			continue
		}
		if err := id.claimPort(port, own); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return syscall.EADDRNOTAVAIL
}

// portFree returns an error if another ID holds the port of id at an
// overlapping address.
func (id *ID) portFree(reuse bool) error {
	addr := id.local.Addr()
	for _, other := range id.m.bound[id.service()] {
		taken := other.local.Addr()
		switch {
		case other == id:
		case reuse && other.reuse:
		case id.afOnly && other.afOnly && addr.Is4() != taken.Is4():
		case addr.IsUnspecified() || taken.IsUnspecified():
			return syscall.EADDRNOTAVAIL
		case addr == taken:
			return syscall.EADDRINUSE
		}
	}
	return nil
}

// claimPort gives id a port at its local address. With own, the port becomes
// the node's own.
func (id *ID) claimPort(port uint16, own bool) error {
	m := id.m
	addr := netip.AddrPortFrom(id.local.Addr(), port)
	key := Claim{Space: id.space, Addr: addr, V6Only: addr.Addr().Is6() && id.afOnly}
	c := m.claims[key]
	if c == nil {
		c = &claim{}
	}
	if own {
		if err := c.own(m.host, key); err != nil {
			return err
		}
	}
	m.claims[key] = c
	c.users++
	id.local, id.claimed = addr, key
	m.bound[id.service()] = append(m.bound[id.service()], id)
	return nil
}

// own makes the port the node's own.
func (c *claim) own(h Host, key Claim) (err error) {
	if c.release == nil {
		c.release, err = h.Claim(key)
	}
	return err
}

// releasePort undoes bindPort.
func (id *ID) releasePort() {
	m, at := id.m, id.service()
	i := slices.Index(m.bound[at], id)
	if i < 0 {
		return
	}
	if m.bound[at] = slices.Delete(m.bound[at], i, i+1); len(m.bound[at]) == 0 {
		delete(m.bound, at)
	}
	c := m.claims[id.claimed]
	if c.users--; c.users == 0 {
		delete(m.claims, id.claimed)
		if c.release != nil {
			c.release()
		}
	}
}

func (id *ID) service() service { return service{id.space, id.local.Port()} }

// covers reports whether the ID's address includes addr.
func (id *ID) covers(addr netip.Addr) bool {
	own := id.local.Addr()
	if own.IsUnspecified() {
		return !id.afOnly || own.Is4() == addr.Is4()
	}
	return own.WithZone("") == addr
}
