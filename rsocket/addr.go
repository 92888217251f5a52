// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"net"
	"net/netip"
)

// Addr is the address of one end of a connection, or of a listener.
type Addr struct{ netip.AddrPort }

// network is the name of the network in addresses and errors.
const network = "rdma"

// Network returns "rdma".
func (Addr) Network() string { return network }

// lookup returns the addresses for address, which is host:port, on a network.
// If the host is empty, the result is the zero netip.Addr with the port. A port
// may be the name of a service of the protocol, "tcp" or "udp".
func lookup(ctx context.Context, network, protocol, address string) ([]netip.AddrPort, error) {
	family, ok := map[string]string{"rdma": "ip", "rdma4": "ip4", "rdma6": "ip6"}[network]
	if !ok {
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, protocol, service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, uint16(port))}, nil
	}
	var ips []netip.Addr
	if ip, err := netip.ParseAddr(host); err == nil { // the resolver would drop its zone
		ips = append(ips, ip)
	} else if ips, err = net.DefaultResolver.LookupNetIP(ctx, family, host); err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		ip = ip.Unmap()
		if family == "ip4" && ip.WithZone("") == netip.IPv6Unspecified() { // as package net does
			ip = netip.IPv4Unspecified()
		}
		if family == "ip" || (family == "ip4") == ip.Is4() {
			out = append(out, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(out) == 0 {
		return nil, &net.AddrError{Err: "no suitable address for network " + network, Addr: host}
	}
	return out, nil
}
