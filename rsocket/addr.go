package rsocket

import "net/netip"

// Addr is the address of one end of a connection, or of a listener.
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (Addr) Network() string { return "rdma" }
