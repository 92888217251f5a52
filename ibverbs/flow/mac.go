package flow

import "net"

// MAC is an Ethernet address.
type MAC [6]byte

// String returns six bytes in hexadecimal, separated by colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }
