// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// ah is the engine's address handle for one of the program's struct ibv_ah.
type ah struct {
	e      *engine.AH
	domain *pd
}

// softAH has the fields of struct soft_ah, in ring.h.
type softAH struct {
	libibverbs.Ah
	id uint64
}

func init() {
	verbs.CreateAh = func(p *libibverbs.Pd, a *libibverbs.AhAttr) (*libibverbs.Ah, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.createAH(p, a)
	}
	verbs.InitAhFromWc = func(c *libibverbs.Context, port uint8, wc *libibverbs.Wc, grh *libibverbs.Grh, a *libibverbs.AhAttr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return errno(l.ahFromWC(c, wc, grh, a, port))
	}
	verbs.CreateAhFromWc = func(p *libibverbs.Pd, wc *libibverbs.Wc, grh *libibverbs.Grh, port uint8) (*libibverbs.Ah, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		var a libibverbs.AhAttr
		if err := l.ahFromWC(p.Context, wc, grh, &a, port); err != nil {
			return nil, errno(err)
		}
		return l.createAH(p, &a)
	}
	verbs.DestroyAh = func(c *libibverbs.Ah) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.destroyAH(c)
	}
}

// ahFromWC sets a to the address of a datagram's sender. wc is the completion
// of the datagram, and grh the header that the device wrote before the
// datagram.
func (l *library) ahFromWC(c *libibverbs.Context, wc *libibverbs.Wc, grh *libibverbs.Grh, a *libibverbs.AhAttr, port uint8) error {
	*a = libibverbs.AhAttr{Dlid: wc.Slid, Sl: wc.Sl, SrcPathBits: wc.DlidPathBits, PortNum: port}
	if wc.WcFlags&libibverbs.IBV_WC_GRH == 0 {
		return nil
	}
	var from, to wire.GID
	h := (*[wire.GRHLen]byte)(unsafe.Pointer(grh))
	if ip := h[20:]; h[0]>>4 != 6 && ip[0] == 0x45 { // 20 unused bytes, and an IPv4 header without options
		from = wire.GIDOf(netip.AddrFrom4([4]byte(ip[12:16])))
		to = wire.GIDOf(netip.AddrFrom4([4]byte(ip[16:20])))
		a.Grh.TrafficClass = ip[1]
	} else {
		from, to = wire.GID(h[8:24]), wire.GID(h[24:40])
		word := binary.BigEndian.Uint32(h[:4])
		a.Grh.TrafficClass, a.Grh.FlowLabel = uint8(word>>20), word&0xFFFFF
	}
	device := l.deviceOf(c)
	if device == nil {
		return syscall.EINVAL
	}
	table, err := device.GIDs()
	if err != nil {
		return err
	}
	for _, e := range table {
		if wire.GID(*e.Gid.Raw()) == to {
			a.IsGlobal, a.Grh.SgidIndex, a.Grh.HopLimit = 1, uint8(e.GidIndex), 0xFF
			*a.Grh.Dgid.Raw() = from
			return nil
		}
	}
	return syscall.EINVAL
}

// createAH creates an address handle in C's memory. The caller holds the node's
// lock.
func (l *library) createAH(p *libibverbs.Pd, a *libibverbs.AhAttr) (*libibverbs.Ah, syscall.Errno) {
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if err := l.Reach(a); err != nil {
		return nil, errno(err)
	}
	e, err := domain.e.CreateAH(a)
	if err != nil {
		return nil, errno(err)
	}
	h := alloc[softAH]()
	h.id = e.Handle()
	c := &h.Ah
	c.Context, c.Pd, c.Handle = p.Context, p, uint32(e.Handle())
	l.ahs[c] = &ah{e, domain}
	domain.users++
	return c, 0
}

// destroyAH destroys an address handle. The caller holds the node's lock.
func (l *library) destroyAH(c *libibverbs.Ah) syscall.Errno {
	h := l.ahs[c]
	if h == nil {
		return syscall.EINVAL
	}
	l.Advance() // let the device take datagrams that were posted before with this handle
	if err := h.e.Destroy(); err != nil {
		return errno(err)
	}
	delete(l.ahs, c)
	h.domain.users--
	free(c)
	return 0
}
