package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// AddrInfoFlags say how to look an address up; combine them with |.
type AddrInfoFlags int32

// How to look an address up.
const (
	AddrPassive     AddrInfoFlags = librdmacm.RAI_PASSIVE     // to listen on
	AddrNumericHost AddrInfoFlags = librdmacm.RAI_NUMERICHOST // the host is no name
	AddrNoRoute     AddrInfoFlags = librdmacm.RAI_NOROUTE     // without paths
	AddrFamily      AddrInfoFlags = librdmacm.RAI_FAMILY      // AddrInfo.Family says in which family the host is written
	AddrDNS         AddrInfoFlags = librdmacm.RAI_DNS         // ask DNS; ResolveAddrInfo only
	AddrSA          AddrInfoFlags = librdmacm.RAI_SA          // ask InfiniBand's subnet administrator; ResolveAddrInfo only
)

// Family is a family of addresses.
type Family int32

// The families.
const (
	FamilyAny  Family = 0
	FamilyIPv4 Family = familyINET
	FamilyIPv6 Family = familyINET6
	FamilyIB   Family = libibverbs.AF_IB
)

// AddrInfo is a way to an address, or what is known of it before.
type AddrInfo struct {
	Flags     AddrInfoFlags
	Family    Family
	QPType    ibverbs.QPType
	PortSpace PortSpace

	Src, Dst         netip.AddrPort // the zero value if there is none, or in FamilyIB
	SrcIB, DstIB     IBAddr         // in FamilyIB
	SrcName, DstName string         // what the addresses are officially called, if that is known

	Paths   []libibverbs.PathData // to the destination, for SetIBPaths
	Connect []byte                // to be put before the private data of Connect
}

// GetAddrInfo looks up a host and a service, either of which may be empty, in
// the manner of a socket program: see rdma_getaddrinfo(3). hints may be nil;
// of it count Flags, Family, QPType, PortSpace, and Src. The result has at least
// one element. It asks DNS and InfiniBand's address cache; if ctx ends earlier,
// a thread goes on waiting for their answer.
//
// In FamilyIB with AddrFamily and AddrNumericHost, the host is a GID.
//
// An error of the look-up itself is an *AddrInfoError.
func GetAddrInfo(ctx context.Context, host, service string, hints *AddrInfo) ([]AddrInfo, error) {
	if ctx == nil {
		return nil, cerr.Nil("rdma_getaddrinfo", "ctx")
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	hints = hints.clone() // ctx may end first
	type result struct {
		infos []AddrInfo
		err   error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.infos, r.err = getAddrInfo(host, service, hints)
		done <- r
	}()
	select {
	case r := <-done:
		return r.infos, r.err
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
}

// LookUp is GetAddrInfo for both ends of a connection: it returns the first way
// from the local host, which may be empty, to the service of the remote host.
// Without a remote host it returns where to listen.
func LookUp(ctx context.Context, local, remote, service string, hints *AddrInfo) (AddrInfo, error) {
	to := AddrInfo{}
	if hints != nil {
		to = *hints
	}
	from := to
	from.Flags |= AddrPassive
	if remote == "" {
		return firstAddrInfo(ctx, local, service, from)
	}
	if local != "" {
		found, err := firstAddrInfo(ctx, local, "", from)
		if err != nil {
			return AddrInfo{}, err
		}
		to.Src, to.SrcIB = found.Src, found.SrcIB
	}
	return firstAddrInfo(ctx, remote, service, to)
}

func firstAddrInfo(ctx context.Context, host, service string, hints AddrInfo) (AddrInfo, error) {
	infos, err := GetAddrInfo(ctx, host, service, &hints)
	if err != nil {
		return AddrInfo{}, err
	}
	return infos[0], nil
}

func getAddrInfo(host, service string, hints *AddrInfo) ([]AddrInfo, error) {
	var infos []AddrInfo
	err := hints.with(host, service, func(raw *librdmacm.Addrinfo) error {
		list, err := librdmacm.Getaddrinfo(host, service, raw)
		if err != nil {
			return err
		}
		infos = addrInfos(list)
		return librdmacm.Freeaddrinfo(list)
	})
	return infos, err
}

// ResolveAddrInfo starts to look up a host and a service for the id;
// EventAddrInfoResolved or EventAddrInfoError follows. See
// rdma_resolve_addrinfo(3). It needs rdma-core 60.
func (id *ID) ResolveAddrInfo(host, service string, hints *AddrInfo) error {
	return id.call(func() error {
		return hints.with(host, service, func(raw *librdmacm.Addrinfo) error {
			return lookupError(librdmacm.ResolveAddrinfo(id.raw, host, service, raw))
		})
	})
}

// lookupError finds the EAI code in an error of rdma_resolve_addrinfo, which
// leaves it where an errno should be.
func lookupError(err error) error {
	const lastCode = syscall.Errno(11)
	e, ok := err.(*ibverbs.Error)
	if !ok || e.Errno > lastCode || e.Errno == syscall.EIO {
		return err
	}
	return cerr.Addrinfo(e.Op, -int64(e.Errno), 0)
}

// QueryAddrInfo returns what ResolveAddrInfo found; see rdma_query_addrinfo(3).
func (id *ID) QueryAddrInfo() ([]AddrInfo, error) {
	var infos []AddrInfo
	err := id.call(func() error {
		list, err := librdmacm.QueryAddrinfo(id.raw)
		if err != nil {
			return err
		}
		infos = addrInfos(list)
		return librdmacm.Freeaddrinfo(list)
	})
	return infos, err
}

// clone returns a copy of hints, which may be nil.
func (a *AddrInfo) clone() *AddrInfo {
	if a == nil {
		return nil
	}
	hints := *a
	return &hints
}

// with calls f with the hints as C takes them, nil for none. Errors name what is
// looked up.
func (a *AddrInfo) with(host, service string, f func(*librdmacm.Addrinfo) error) error {
	if err := a.call(host, service, f); err != nil {
		return fmt.Errorf("host %q, service %q: %w", host, service, err)
	}
	return nil
}

func (a *AddrInfo) call(host, service string, f func(*librdmacm.Addrinfo) error) error {
	if strings.Contains(host+service, "\x00") {
		return cerr.Refuse("rdma_getaddrinfo", "", "the name has a zero byte in it") // where it would end in C
	}
	if a == nil {
		return f(nil)
	}
	if err := a.checkHost(host); err != nil {
		return err
	}
	raw := &librdmacm.Addrinfo{
		AiFlags: int32(a.Flags), AiFamily: int32(a.Family), AiQpType: int32(a.QPType), AiPortSpace: int32(a.PortSpace),
	}
	src, err := a.source()
	if err != nil {
		return err
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	if src != nil {
		pin.Pin(src)
		raw.AiSrcAddr, raw.AiSrcLen = src.ptr(), src.size()
	}
	return f(raw)
}

// checkHost refuses a host that C would take for longer than it is: C makes an
// address of InfiniBand of whatever the host turns out to be.
func (a *AddrInfo) checkHost(host string) error {
	const converted = AddrFamily | AddrNumericHost
	if a.Family != FamilyIB || a.Flags&converted != converted {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
		return cerr.Refuse("rdma_getaddrinfo", "", "the host is no GID, such as fe80::1")
	}
	return nil
}

func (a *AddrInfo) source() (*sockaddr, error) {
	switch {
	case a.Family == FamilyIB && a.SrcIB != IBAddr{}:
		return a.SrcIB.sockaddr(), nil
	case a.Src.IsValid():
		return newSockaddr(a.Src)
	}
	return nil, nil
}

// addrInfos copies a list of C's.
func addrInfos(list *librdmacm.Addrinfo) []AddrInfo {
	var infos []AddrInfo
	for raw := list; raw != nil; raw = raw.AiNext {
		infos = append(infos, addrInfo(raw))
	}
	return infos
}

func addrInfo(raw *librdmacm.Addrinfo) AddrInfo {
	a := AddrInfo{
		Flags: AddrInfoFlags(raw.AiFlags), Family: Family(raw.AiFamily),
		QPType: ibverbs.QPType(raw.AiQpType), PortSpace: PortSpace(raw.AiPortSpace),
		SrcName: cString(raw.AiSrcCanonname), DstName: cString(raw.AiDstCanonname),
		Connect: append([]byte(nil), unsafe.Slice((*byte)(raw.AiConnect), raw.AiConnectLen)...),
	}
	if raw.AiSrcAddr != nil {
		a.Src, a.SrcIB = addrPort(raw.AiSrcAddr), ibAddr(raw.AiSrcAddr)
	}
	if raw.AiDstAddr != nil {
		a.Dst, a.DstIB = addrPort(raw.AiDstAddr), ibAddr(raw.AiDstAddr)
	}
	var path libibverbs.PathData
	n := raw.AiRouteLen / uint64(unsafe.Sizeof(path))
	a.Paths = append(a.Paths, unsafe.Slice((*libibverbs.PathData)(raw.AiRoute), n)...)
	return a
}

// cString copies a string of C's, which may be nil.
func cString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
