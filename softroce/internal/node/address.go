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

// machineAddress is an IP address of this machine.
type machineAddress struct {
	addr   netip.Addr // address, with its zone if it is link-local
	netDev uint32     // index of the interface that has the address; 0 if none has it
	mtu    int        // MTU of the interface
	isLoop bool       // whether the interface is a loopback interface
}

// machineAddresses returns the addresses of all interfaces that are up.
func machineAddresses() ([]machineAddress, error) {
	return interfaceAddresses(func(i net.Interface) bool { return i.Flags&net.FlagUp != 0 })
}

// interfaceAddresses returns the addresses of the interfaces for which wanted
// returns true. Those of loopback interfaces come last: a program that does not
// choose an address takes the first one, and other machines should reach it.
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

// Route returns the source address that the system uses for packets to dst. It
// returns src, the address that the program has bound, if that is not the zero
// Addr. Route fails if there is no route. It sends no packet.
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

// socketAddress returns an address and port in the form of system calls.
func socketAddress(a netip.Addr, port int) syscall.Sockaddr {
	if a.Is4() {
		return &syscall.SockaddrInet4{Addr: a.As4(), Port: port}
	}
	return &syscall.SockaddrInet6{Addr: a.As16(), Port: port, ZoneId: Zone(a)}
}

// WithZone returns the IPv6 address a. If it is link-local, it gets the zone
// with that number, unless zone is 0.
func WithZone(a [16]byte, zone uint32) netip.Addr {
	addr := netip.AddrFrom16(a)
	if zone != 0 && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(strconv.FormatUint(uint64(zone), 10))
	}
	return addr
}

// Zone returns the number of an address's zone, or 0 if it has none. The zone
// must be a number and not the name of an interface.
func Zone(a netip.Addr) uint32 {
	number, _ := strconv.ParseUint(a.Zone(), 10, 32)
	return uint32(number)
}
