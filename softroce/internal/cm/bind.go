// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// service is a port number in a port space.
type service struct {
	space librdmacm.PortSpace
	port  uint16
}

// claim counts the IDs that use a port at an address. If a program has bound an
// ID to the port, so that the ID may listen, the node claims the port from the
// host. It does not claim ports that were chosen for clients: peers do not look
// for them, and there may be many.
type claim struct {
	users   int    // number of IDs that use the port
	release func() // result of Host.Claim; nil: the port is not claimed from the host
}

// bindPort chooses ports from firstEphemeral to lastEphemeral, which is Linux's
// range of ephemeral ports.
const firstEphemeral, lastEphemeral = 32768, 60999

// bindPort binds the ID to the port of its local address or, if that is 0, to a
// free port. If fromHost is true, it claims the port from the host.
func (id *ID) bindPort(fromHost bool) error {
	if port := id.local.Port(); port != 0 {
		if err := id.portFree(id.reuse); err != nil {
			return err
		}
		return id.claimPort(port, fromHost)
	}
	const ports = lastEphemeral - firstEphemeral + 1
	first := id.m.random() % ports
	for i := range uint32(ports) {
		port := uint16(firstEphemeral + (first+i)%ports)
		if len(id.m.bound[service{id.space, port}]) > 0 {
			continue
		}
		if err := id.claimPort(port, fromHost); !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return syscall.EADDRNOTAVAIL
}

// portFree returns an error if another ID is bound to id's port at an
// overlapping address. If reuse is true, IDs that permit reuse of their ports
// do not count.
func (id *ID) portFree(reuse bool) error {
	addr := id.local.Addr()
	for _, other := range id.m.bound[id.service()] {
		taken := other.local.Addr()
		switch {
		case other == id:
		case reuse && other.reuse:
		case id.afOnly && other.afOnly && addr.Is4() != taken.Is4():
		case id.everywhere() || other.everywhere():
			return syscall.EADDRNOTAVAIL
		case addr == taken:
			return syscall.EADDRINUSE
		}
	}
	return nil
}

// claimPort binds id to a port at its local address. If fromHost is true, it
// claims the port from the host.
func (id *ID) claimPort(port uint16, fromHost bool) error {
	m := id.m
	addr := netip.AddrPortFrom(id.local.Addr(), port)
	key := Claim{Space: id.space, Addr: addr, V6Only: addr.Addr().Is6() && id.afOnly}
	if id.everywhere() {
		key.Addr = netip.AddrPortFrom(unspecified(addr.Addr()), port)
	}
	c := m.claims[key]
	if c == nil {
		c = &claim{}
	}
	if fromHost {
		if err := c.claimFrom(m.host, key); err != nil {
			return err
		}
	}
	m.claims[key] = c
	c.users++
	id.local, id.claimed = addr, key
	m.bound[id.service()] = append(m.bound[id.service()], id)
	return nil
}

// claimFrom claims the port from the host h, unless it was already called.
func (c *claim) claimFrom(h Host, key Claim) (err error) {
	if c.release == nil {
		c.release, err = h.Claim(key)
	}
	return err
}

// releasePort ends the ID's use of its port.
func (id *ID) releasePort() {
	if id.silence != nil {
		id.silence()
		id.silence = nil
	}
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

// service returns the port space and the port to which the ID is bound.
func (id *ID) service() service { return service{id.space, id.local.Port()} }

// everywhere reports whether the ID, which is bound, has all addresses of its
// family. That is so for a loopback address that the device does not have.
func (id *ID) everywhere() bool {
	own := id.local.Addr()
	return own.IsUnspecified() || own.IsLoopback() && id.port.Device == nil
}

// covers reports whether an ID that is bound to id's address gets requests to
// addr.
func (id *ID) covers(addr netip.Addr) bool {
	own := id.local.Addr()
	if id.everywhere() {
		return !id.afOnly || own.Is4() == addr.Is4()
	}
	return own.WithZone("") == addr
}
