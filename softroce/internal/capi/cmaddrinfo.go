// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	gocontext "context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// Error codes of glibc's getaddrinfo, which rdma_getaddrinfo returns as well.
const (
	eaiNoName   = -2
	eaiAgain    = -3
	eaiFail     = -4
	eaiFamily   = -6
	eaiSockType = -7
	eaiService  = -8
	eaiNoAddr   = -9 // the host has no address of the requested family
)

func init() {
	cm.Getaddrinfo = func(host, service string, hints *librdmacm.Addrinfo, res **librdmacm.Addrinfo) (int, syscall.Errno) {
		var code int
		var err syscall.Errno
		*res, code, err = getAddrinfo(host, service, hints)
		return code, err
	}
	cm.Freeaddrinfo = freeAddrinfo
	cm.ResolveAddrinfo = resolveAddrinfo
	cm.QueryAddrinfo = func(c *librdmacm.CmId, out **librdmacm.Addrinfo) syscall.Errno {
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			if i.resolved == nil {
				return syscall.ENOENT
			}
			*out = i.resolved
			i.resolving, i.resolved = false, nil
			return 0
		})
	}
}

// getAddrinfo does the work of rdma_getaddrinfo. Like librdmacm, it returns
// only the first result. The int is an error code of getaddrinfo, or 0.
func getAddrinfo(host, service string, hints *librdmacm.Addrinfo) (*librdmacm.Addrinfo, int, syscall.Errno) {
	if hints == nil {
		if host == "" && service == "" {
			return nil, 0, syscall.EINVAL
		}
		hints = &librdmacm.Addrinfo{}
	}
	if hints.AiFlags&librdmacm.RAI_SA != 0 { // a lookup by the subnet administrator
		if host != "" || hints.AiFlags&librdmacm.RAI_DNS != 0 {
			return nil, 0, syscall.EOPNOTSUPP
		}
		return nil, 0, syscall.ENOENT
	}
	out := alloc[librdmacm.Addrinfo]()
	if host == "" && service == "" {
		out.AiFlags, out.AiFamily = hints.AiFlags, hints.AiFamily
		out.AiQpType, out.AiPortSpace = hints.AiQpType, hints.AiPortSpace
		out.AiDstAddr, out.AiDstLen = copySockaddr(hints.AiDstAddr, hints.AiDstLen)
	} else if code := lookUp(host, service, hints, out); code != 0 {
		freeAddrinfo(out)
		return nil, code, 0
	}
	if out.AiSrcLen == 0 {
		out.AiSrcAddr, out.AiSrcLen = copySockaddr(hints.AiSrcAddr, hints.AiSrcLen)
	}
	return out, 0, 0
}

// lookUp resolves host and service, and writes the result to out. It returns an
// error code of getaddrinfo, or 0.
func lookUp(host, service string, hints, out *librdmacm.Addrinfo) (code int) {
	qpType, space, code := types(hints)
	if code != 0 {
		return code
	}
	network := "tcp"
	if qpType == libibverbs.IBV_QPT_UD {
		network = "udp"
	}
	port, code := lookUpPort(network, service)
	if code != 0 {
		return code
	}
	addr, code := lookUpHost(host, hints)
	if code != 0 {
		return code
	}
	out.AiQpType, out.AiPortSpace, out.AiFamily = qpType, space, syscall.AF_INET
	if addr.Is6() {
		out.AiFamily = syscall.AF_INET6
	}
	s, length := newSockaddr(netip.AddrPortFrom(addr, port))
	if hints.AiFlags&librdmacm.RAI_PASSIVE != 0 {
		out.AiFlags = librdmacm.RAI_PASSIVE
		out.AiSrcAddr, out.AiSrcLen = s, length
	} else {
		out.AiDstAddr, out.AiDstLen = s, length
	}
	return 0
}

// types returns a queue pair type and a port space that match. If hints has 0
// for one of the two, types chooses it to match the other.
func types(hints *librdmacm.Addrinfo) (qpType libibverbs.QpType, space librdmacm.PortSpace, code int) {
	qpType, space = hints.AiQpType, hints.AiPortSpace
	datagrams := qpType == libibverbs.IBV_QPT_UD
	switch space {
	case 0:
		space = librdmacm.RDMA_PS_TCP
		if datagrams {
			space = librdmacm.RDMA_PS_UDP
		}
	case librdmacm.RDMA_PS_TCP:
		if datagrams {
			return 0, 0, eaiSockType
		}
	case librdmacm.RDMA_PS_UDP, librdmacm.RDMA_PS_IPOIB:
		if qpType != 0 && !datagrams {
			return 0, 0, eaiSockType
		}
		qpType = libibverbs.IBV_QPT_UD
	}
	if qpType == 0 {
		qpType = libibverbs.IBV_QPT_RC
	}
	return qpType, space, 0
}

// lookUpPort returns the port of a service. code is an error code of
// getaddrinfo, or 0.
func lookUpPort(network, service string) (port uint16, code int) {
	if service == "" {
		return 0, 0
	}
	if number, err := strconv.Atoi(service); err == nil {
		if number < 0 || number > 0xFFFF {
			return 0, eaiService
		}
		return uint16(number), 0
	}
	number, err := net.LookupPort(network, service)
	if err != nil {
		return 0, eaiService
	}
	return uint16(number), 0
}

// lookUpHost returns a host's first address to which there is a route. If there
// is no route to any, it returns the first address. The int is an error code of
// getaddrinfo, or 0. An empty host stands for the loopback address or, with
// RAI_PASSIVE, for the unspecified address.
func lookUpHost(host string, hints *librdmacm.Addrinfo) (netip.Addr, int) {
	network := "ip"
	switch hints.AiFamily {
	case syscall.AF_UNSPEC:
	case syscall.AF_INET:
		network = "ip4"
	case syscall.AF_INET6:
		network = "ip6"
	default:
		return netip.Addr{}, eaiFamily
	}
	fits := func(a netip.Addr) bool { return network == "ip" || a.Is4() == (network == "ip4") }
	var found []netip.Addr
	switch numeric, err := netip.ParseAddr(host); {
	case err == nil:
		if !fits(numeric) {
			return netip.Addr{}, eaiNoAddr
		}
		return withZoneNumber(numeric)
	case host == "" && hints.AiFlags&librdmacm.RAI_PASSIVE != 0:
		found = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	case host == "":
		found = []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	case hints.AiFlags&librdmacm.RAI_NUMERICHOST != 0:
		return netip.Addr{}, eaiNoName
	default:
		if found, err = net.DefaultResolver.LookupNetIP(gocontext.Background(), network, host); err != nil {
			return netip.Addr{}, lookUpCode(err)
		}
	}
	var fallback netip.Addr
	for _, a := range found {
		a = a.Unmap()
		if !fits(a) {
			continue
		}
		if _, err := node.Route(a, netip.Addr{}); err == nil {
			return a, 0
		}
		if !fallback.IsValid() {
			fallback = a
		}
	}
	if !fallback.IsValid() {
		return netip.Addr{}, eaiNoName
	}
	return fallback, 0
}

// lookUpCode returns the error code of getaddrinfo for an error of Go's
// resolver.
func lookUpCode(err error) int {
	var dns *net.DNSError
	switch {
	case !errors.As(err, &dns):
		return eaiFail
	case dns.IsNotFound:
		return eaiNoName
	case dns.IsTemporary, dns.IsTimeout:
		return eaiAgain
	}
	return eaiFail
}

// withZoneNumber replaces the interface name in an address's zone by its index.
// The int is an error code of getaddrinfo, or 0.
func withZoneNumber(a netip.Addr) (netip.Addr, int) {
	if a.Zone() == "" || node.Zone(a) != 0 {
		return a, 0
	}
	nic, err := net.InterfaceByName(a.Zone())
	if err != nil {
		return netip.Addr{}, eaiNoName
	}
	return a.WithZone(strconv.Itoa(nic.Index)), 0
}

// newSockaddr returns a struct sockaddr in C's memory, and its length in bytes.
func newSockaddr(addr netip.AddrPort) (*librdmacm.Sockaddr, uint32) {
	s := (*librdmacm.Sockaddr)(unsafe.Pointer(alloc[librdmacm.SockaddrIn6]()))
	setSockaddr(s, addr)
	if addr.Addr().Is4() {
		return s, uint32(unsafe.Sizeof(librdmacm.SockaddrIn{}))
	}
	return s, uint32(unsafe.Sizeof(librdmacm.SockaddrIn6{}))
}

// copySockaddr returns a copy of a struct sockaddr in C's memory, and its
// length.
func copySockaddr(s *librdmacm.Sockaddr, length uint32) (*librdmacm.Sockaddr, uint32) {
	if s == nil || length == 0 {
		return nil, 0
	}
	c := allocMemory(1, uint64(length))
	copy(unsafe.Slice((*byte)(c), length), unsafe.Slice((*byte)(unsafe.Pointer(s)), length))
	return (*librdmacm.Sockaddr)(c), length
}

// freeAddrinfo frees a list and all memory to which it points.
func freeAddrinfo(list *librdmacm.Addrinfo) {
	for list != nil {
		next := list.AiNext
		free(list.AiSrcAddr)
		free(list.AiDstAddr)
		free(list.AiSrcCanonname) // allocated by the program, which leaves freeing them to the library
		free(list.AiDstCanonname)
		freeMemory(list.AiRoute)
		freeMemory(list.AiConnect)
		free(list)
		list = next
	}
}

// resolveAddrinfo does the work of rdma_resolve_addrinfo. It resolves the names
// before it returns, and then queues the event. Like librdmacm, it returns an
// error code of getaddrinfo in place of an errno.
func resolveAddrinfo(c *librdmacm.CmId, host, service string, hints *librdmacm.Addrinfo) syscall.Errno {
	if hints != nil && hints.AiFlags&librdmacm.RAI_SA != 0 {
		return syscall.ENOTSUP
	}
	err := withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
		if i.resolving {
			return syscall.EBUSY
		}
		i.resolving = true
		return 0
	})
	if err != 0 {
		return err
	}
	found, code, err := getAddrinfo(host, service, hints)
	if code != 0 {
		err = syscall.Errno(code)
	}
	if err != 0 {
		withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			i.resolving = false
			return 0
		})
		return err
	}
	return completed(c, func(_ *cmLibrary, i *id) syscall.Errno {
		i.resolved = found
		return errno(i.e.Report(librdmacm.RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0))
	})
}
