// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// GID is the address of a port: an IPv6 address, or an IPv4 address in the form
// ::ffff:a.b.c.d.
type GID [16]byte

// GIDOf returns the GID of an IP address, without its zone. The zero Addr has
// the zero GID.
func GIDOf(a netip.Addr) GID { return a.As16() }

// Addr returns g as an IP address, which is IPv4 if Is4 returns true.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// Is4 reports whether g is the GID of an IPv4 address.
func (g GID) Is4() bool { return netip.AddrFrom16(g).Is4In6() }

func (g GID) String() string { return g.Addr().String() }
