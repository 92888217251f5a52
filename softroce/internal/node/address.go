// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// machineAddress is an address that the machine has.
type machineAddress struct {
	addr   netip.Addr // with the zone that it needs
	netDev uint32     // index of the interface, 0 if it is on none
	mtu    int        // of the interface
	isLoop bool       // the interface is a loopback one
}

// machineAddresses returns the addresses of interfaces that are up.
func machineAddresses() ([]machineAddress, error) {
	return interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp != 0 })
}

// interfaceAddresses returns the addresses of interfaces that are wanted. Those
// of loopback interfaces come last: programs that do not choose take the first
// address, which others can reach.
func interfaceAddresses(wanted func(net.Interface) bool) (all []machineAddress, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, loopback := range []bool{false, true} {
		for _, i := range interfaces {
			if !wanted(i) || i.Flags&net.FlagLoopback != 0 != loopback {
				continue
			}
			addresses, err := i.Addrs()
			if err != nil {
				continue
			}
			for _, a := range addresses {
				ip, ok := a.(*net.IPNet)
				if !ok {
					continue
				}
				addr, ok := netip.AddrFromSlice(ip.IP)
				if !ok {
					continue
				}
				if addr = addr.Unmap(); addr.Is6() && addr.IsLinkLocalUnicast() {
					addr = addr.WithZone(fmt.Sprint(i.Index))
				}
				all = append(all, machineAddress{addr, uint32(i.Index), i.MTU, loopback})
			}
		}
	}
	return all, nil
}

// Route returns the address from which the system sends to dst, or src if that
// is valid. It sends nothing.
func Route(dst, src netip.Addr) (netip.Addr, error) {
	family := syscall.AF_INET
	if dst.Is6() {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return netip.Addr{}, err
	}
	defer syscall.Close(fd)
	if src.IsValid() {
		if err := syscall.Bind(fd, socketAddress(src, 0)); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := syscall.Connect(fd, socketAddress(dst, wire.Port)); err != nil {
		return netip.Addr{}, err
	}
	own, err := syscall.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch own := own.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrFrom4(own.Addr), nil
	case *syscall.SockaddrInet6:
		return WithZone(own.Addr, own.ZoneId), nil
	}
	return netip.Addr{}, syscall.EAFNOSUPPORT
}

func socketAddress(a netip.Addr, port int) syscall.Sockaddr {
	if a.Is4() {
		return &syscall.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &syscall.SockaddrInet6{Addr: a.As16(), Port: port, ZoneId: Zone(a)}
}

// WithZone returns an IPv6 address with the number of its zone, if it has one.
func WithZone(a [16]byte, zone uint32) netip.Addr {
	addr := netip.AddrFrom16(a)
	if zone != 0 && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(strconv.FormatUint(uint64(zone), 10))
	}
	return addr
}

// Zone returns the number of an address's zone, 0 if it has none.
func Zone(a netip.Addr) uint32 {
	number, _ := strconv.ParseUint(a.Zone(), 10, 32)
	return uint32(number)
}
