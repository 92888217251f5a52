// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// AddrInfoFlags control an address lookup. Combine them with |.
type AddrInfoFlags int32

// Flags for address lookups.
const (
	AddrPassive     AddrInfoFlags = librdmacm.RAI_PASSIVE     // return addresses to listen on
	AddrNumericHost AddrInfoFlags = librdmacm.RAI_NUMERICHOST // the host is a numeric address, not a name
	AddrNoRoute     AddrInfoFlags = librdmacm.RAI_NOROUTE     // do not look up paths
	AddrFamily      AddrInfoFlags = librdmacm.RAI_FAMILY      // AddrInfo.Family gives the host's family
	AddrDNS         AddrInfoFlags = librdmacm.RAI_DNS         // query DNS (ResolveAddrInfo only)
	AddrSA          AddrInfoFlags = librdmacm.RAI_SA          // query the InfiniBand subnet administrator (ResolveAddrInfo only)
)

// Family is an address family.
type Family int32

// The address families.
const (
	FamilyAny  Family = 0
	FamilyIPv4 Family = familyINET
	FamilyIPv6 Family = familyINET6
	FamilyIB   Family = libibverbs.AF_IB
)

// An AddrInfo describes how to reach or listen on an address. It is also used
// for the hints of a lookup.
type AddrInfo struct {
	Flags     AddrInfoFlags
	Family    Family
	QPType    ibverbs.QPType
	PortSpace PortSpace

	Src, Dst         netip.AddrPort // zero if absent, and in FamilyIB
	SrcIB, DstIB     IBAddr         // set only in FamilyIB
	SrcName, DstName string         // canonical names, if known

	Paths   []IBPath // paths to the destination, for ID.SetIBPaths
	Connect []byte   // data to send before the private data of ID.Connect
}

// GetAddrInfo looks up a host and a service; see rdma_getaddrinfo(3). The host
// or the service may be empty. hints may be nil; only its Flags, Family,
// QPType, PortSpace and Src are used. The result has at least one element.
//
// GetAddrInfo queries DNS and the InfiniBand address cache. If ctx ends first,
// GetAddrInfo returns, but an OS thread stays blocked until DNS and the cache
// have answered.
//
// In FamilyIB with AddrFamily and AddrNumericHost, the host must be a GID.
//
// If the lookup itself fails, the error is an *AddrInfoError.
func GetAddrInfo(ctx context.Context, host, service string, hints *AddrInfo) ([]AddrInfo, error) {
	if ctx == nil {
		return nil, cerr.Nil("rdma_getaddrinfo", "ctx")
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	hints = hints.clone() // the caller may change its hints when ctx has ended
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

// LookUp looks up both ends of a connection with GetAddrInfo. It returns the
// first result for a connection from the local host, which may be empty, to the
// service on the remote host. If the remote host is empty, LookUp returns an
// address on which the local host can listen.
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

// ResolveAddrInfo starts to look up a host and a service for the ID.
// EventAddrInfoResolved or EventAddrInfoError reports the result. It requires
// rdma-core 60; see rdma_resolve_addrinfo(3).
func (id *ID) ResolveAddrInfo(host, service string, hints *AddrInfo) error {
	return id.call(func() error {
		return hints.with(host, service, func(raw *librdmacm.Addrinfo) error {
			return lookupError(librdmacm.ResolveAddrinfo(id.raw, host, service, raw))
		})
	})
}

// lookupError returns err, the error of rdma_resolve_addrinfo, as an
// *AddrInfoError if the lookup failed. In that case, the C function returns a
// negated EAI code where an errno belongs.
func lookupError(err error) error {
	const lastCode = syscall.Errno(11)
	e, ok := err.(*ibverbs.Error)
	if !ok || e.Errno > lastCode || e.Errno == syscall.EIO {
		return err
	}
	return cerr.Addrinfo(e.Op, -int64(e.Errno), 0)
}

// QueryAddrInfo returns the results of ResolveAddrInfo; see
// rdma_query_addrinfo(3).
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

// clone returns a copy of the hints, or nil if a is nil.
func (a *AddrInfo) clone() *AddrInfo {
	if a == nil {
		return nil
	}
	hints := *a
	return &hints
}

// with calls f with the hints in C's form, or with nil if a is nil. It adds the
// host and the service to errors.
func (a *AddrInfo) with(host, service string, f func(*librdmacm.Addrinfo) error) error {
	if err := a.call(host, service, f); err != nil {
		return fmt.Errorf("host %q, service %q: %w", host, service, err)
	}
	return nil
}

func (a *AddrInfo) call(host, service string, f func(*librdmacm.Addrinfo) error) error {
	if a == nil {
		return f(nil)
	}
	if err := a.checkHost(host); err != nil {
		return err
	}
	raw := &librdmacm.Addrinfo{
		AiFlags: int32(a.Flags), AiFamily: int32(a.Family), AiQpType: a.QPType, AiPortSpace: a.PortSpace,
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

// checkHost rejects a host that is not a GID if C requires a GID. C treats such
// a host as an InfiniBand address, and would read past the end of any shorter
// address.
func (a *AddrInfo) checkHost(host string) error {
	const converted = AddrFamily | AddrNumericHost
	if a.Family != FamilyIB || a.Flags&converted != converted {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Is6() {
		return cerr.Refuse("rdma_getaddrinfo", "", "host %q is not a GID; a GID is written like fe80::1", host)
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

// addrInfos copies C's list of lookup results.
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
		QPType: raw.AiQpType, PortSpace: raw.AiPortSpace,
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
	for _, raw := range unsafe.Slice((*libibverbs.PathData)(raw.AiRoute), n) {
		a.Paths = append(a.Paths, ibPath(&raw))
	}
	return a
}

// cString copies a C string. It returns "" for nil.
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
