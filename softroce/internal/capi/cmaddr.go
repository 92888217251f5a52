// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func init() {
	cm.BindAddr = func(c *librdmacm.CmId, addr *librdmacm.Sockaddr) syscall.Errno {
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno { return l.bind(i, addr) })
	}
	cm.ResolveAddr = func(c *librdmacm.CmId, src, dst *librdmacm.Sockaddr, timeoutMs int32) syscall.Errno {
		return completed(c, func(l *cmLibrary, i *id) syscall.Errno {
			return l.resolveAddr(i, src, dst, time.Duration(timeoutMs)*time.Millisecond)
		})
	}
	cm.ResolveRoute = func(c *librdmacm.CmId, timeoutMs int32) syscall.Errno {
		return completed(c, func(_ *cmLibrary, i *id) syscall.Errno {
			return errno(i.e.ResolveRoute(time.Duration(timeoutMs) * time.Millisecond))
		})
	}
	cm.Listen = func(c *librdmacm.CmId, backlog int32) syscall.Errno {
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
			if err := i.e.Listen(int(backlog)); err != nil {
				return errno(err)
			}
			return l.queryAddr(i)
		})
	}
	cm.GetSrcPort = func(c *librdmacm.CmId) libibverbs.Be16 { return sockaddrPort(c.Route.Addr.SrcAddr()) }
	cm.GetDstPort = func(c *librdmacm.CmId) libibverbs.Be16 { return sockaddrPort(c.Route.Addr.DstAddr()) }
}

func (l *cmLibrary) bind(i *id, to *librdmacm.Sockaddr) syscall.Errno {
	addr, ok := parseSockaddr(to)
	if !ok {
		return syscall.EINVAL
	}
	if err := i.e.Bind(addr); err != nil {
		return errno(err)
	}
	return l.queryAddr(i)
}

func (l *cmLibrary) resolveAddr(i *id, src, dst *librdmacm.Sockaddr, timeout time.Duration) syscall.Errno {
	to, ok := parseSockaddr(dst)
	if !ok || l.Inquires(i.e) {
		return syscall.EINVAL
	}
	var from netip.AddrPort
	if src != nil {
		if from, ok = parseSockaddr(src); !ok {
			return syscall.EINVAL
		}
	}
	if err := l.Node.ResolveAddr(i.e, from, to, timeout); err != nil {
		return errno(err)
	}
	setSockaddr(i.c.Route.Addr.DstAddr(), to)
	return 0
}

// queryAddr copies the addresses of an ID to the program's struct. If the ID
// has a device, queryAddr copies that, too.
func (l *cmLibrary) queryAddr(i *id) syscall.Errno {
	route := &i.c.Route.Addr
	local, peer := i.e.LocalAddr(), i.e.PeerAddr()
	setSockaddr(route.SrcAddr(), local)
	setSockaddr(route.DstAddr(), peer)
	at, ok := i.e.Port()
	if !ok {
		return 0
	}
	if i.c.Verbs == nil {
		card := l.CardOf(at.Device.(*engine.Device))
		if card == nil {
			return syscall.ENODEV
		}
		d, err := l.useDevice(card)
		if err != 0 {
			return err
		}
		pd, err := l.defaultPD(d)
		if err != 0 {
			l.leaveDevice(d.c)
			return err
		}
		i.c.Verbs, i.c.Pd, i.c.PortNum = d.c, pd, at.Num
	}
	ib := route.Addr.Ibaddr()
	*ib.Sgid.Raw() = wire.GIDOf(local.Addr())
	if peer.IsValid() {
		*ib.Dgid.Raw() = wire.GIDOf(peer.Addr())
	}
	ib.Pkey = libibverbs.NewBe16(wire.DefaultPKey)
	return 0
}

// exactly is the selector of a value in a path record. It says that the value
// is exact rather than a limit.
const exactly = 2

// queryPath copies the path to the peer to the program's struct if the ID has a
// path.
func (l *cmLibrary) queryPath(i *id) {
	path, ok := i.e.Path()
	if !ok {
		return
	}
	if i.c.Route.PathRec == nil {
		i.c.Route.PathRec = alloc[libibverbs.SaPathRec]()
		i.c.Route.NumPaths = 1
	}
	rec := i.c.Route.PathRec
	*rec = libibverbs.SaPathRec{
		FlowLabel:    libibverbs.NewBe32(path.FlowLabel),
		HopLimit:     path.HopLimit,
		TrafficClass: path.TrafficClass,
		Reversible:   1,
		NumbPath:     1,
		Pkey:         libibverbs.NewBe16(path.PKey),
		Sl:           path.SL,
		MtuSelector:  exactly, Mtu: uint8(path.MTU),
		RateSelector: exactly, Rate: path.Rate,
		PacketLifeTimeSelector: exactly, PacketLifeTime: path.PacketLifeTime,
	}
	*rec.Sgid.Raw(), *rec.Dgid.Raw() = path.SGID, path.DGID
}

// setPath sets the path to the peer to the first path in b that has all flags.
// b is an array of struct ibv_path_data.
func (i *id) setPath(b []byte) syscall.Errno {
	const size = int(unsafe.Sizeof(libibverbs.PathData{}))
	const everything = libibverbs.IBV_PATH_FLAG_GMP | libibverbs.IBV_PATH_FLAG_PRIMARY | libibverbs.IBV_PATH_FLAG_BIDIRECTIONAL
	if len(b)%size != 0 {
		return syscall.EINVAL
	}
	for data := range slices.Chunk(b, size) {
		var path libibverbs.PathData
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&path)), size), data)
		if path.Flags != everything {
			continue
		}
		const value = 0x3F // the bits below the selector
		rec := &path.Path
		flowAndHops := rec.FlowlabelHoplimit.Host()
		return errno(i.e.SetPath(manager.Path{
			SGID: wire.GID(*rec.Sgid.Raw()), DGID: wire.GID(*rec.Dgid.Raw()),
			FlowLabel: flowAndHops >> 8 & 0xFFFFF, HopLimit: uint8(flowAndHops),
			TrafficClass: rec.Tclass, SL: uint8(rec.QosclassSl.Host() & 0xF), PKey: rec.Pkey.Host(),
			MTU: libibverbs.Mtu(rec.Mtu & value), Rate: rec.Rate & value, PacketLifeTime: rec.Packetlifetime & value,
		}))
	}
	return syscall.EINVAL
}

// parseSockaddr returns the address and port in a struct sockaddr. It returns
// false if s is nil or not an IP address.
func parseSockaddr(s *librdmacm.Sockaddr) (netip.AddrPort, bool) {
	if s == nil {
		return netip.AddrPort{}, false
	}
	switch s.SaFamily {
	case syscall.AF_INET:
		in := (*librdmacm.SockaddrIn)(unsafe.Pointer(s))
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], in.SinAddr.SAddr.Host())
		return netip.AddrPortFrom(netip.AddrFrom4(b), in.SinPort.Host()), true
	case syscall.AF_INET6:
		in := (*librdmacm.SockaddrIn6)(unsafe.Pointer(s))
		return netip.AddrPortFrom(node.WithZone(*in.Sin6Addr.S6Addr(), in.Sin6ScopeId), in.Sin6Port.Host()), true
	}
	return netip.AddrPort{}, false
}

// setSockaddr writes an address to s, which has room for IPv6. It writes
// nothing if the address is not valid.
func setSockaddr(s *librdmacm.Sockaddr, addr netip.AddrPort) {
	switch a := addr.Addr(); {
	case a.Is4():
		b := a.As4()
		*(*librdmacm.SockaddrIn)(unsafe.Pointer(s)) = librdmacm.SockaddrIn{
			SinFamily: syscall.AF_INET,
			SinPort:   libibverbs.NewBe16(addr.Port()),
			SinAddr:   librdmacm.InAddr{SAddr: libibverbs.NewBe32(binary.BigEndian.Uint32(b[:]))},
		}
	case a.Is6():
		in := librdmacm.SockaddrIn6{
			Sin6Family: syscall.AF_INET6, Sin6Port: libibverbs.NewBe16(addr.Port()), Sin6ScopeId: node.Zone(a),
		}
		*in.Sin6Addr.S6Addr() = a.As16()
		*(*librdmacm.SockaddrIn6)(unsafe.Pointer(s)) = in
	}
}

// sockaddrPort returns the port in a struct sockaddr, or 0 if s is not an IP
// address.
func sockaddrPort(s *librdmacm.Sockaddr) libibverbs.Be16 {
	addr, _ := parseSockaddr(s)
	return libibverbs.NewBe16(addr.Port())
}
