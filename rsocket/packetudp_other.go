// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rsocket

import "net/netip"

// sendUDP sends a UDP packet to an address.
func (c *PacketConn) sendUDP(b []byte, to netip.AddrPort) error {
	_, err := c.udp.WriteToUDPAddrPort(b, to)
	return err
}
