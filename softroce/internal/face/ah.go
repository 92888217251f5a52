// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// #include "ring.h"
import "C"

// ah is an address handle.
type ah struct{ e *engine.AH }

func init() {
	verbs.CreateAh = func(p *libibverbs.Pd, a *libibverbs.AhAttr) (*libibverbs.Ah, syscall.Errno) {
		n := self()
		n.lock()
		defer n.unlock()
		return n.createAH(p, a)
	}
	verbs.InitAhFromWc = func(c *libibverbs.Context, port uint8, wc *libibverbs.Wc, grh *libibverbs.Grh, a *libibverbs.AhAttr) syscall.Errno {
		n := self()
		n.lock()
		defer n.unlock()
		return errno(n.ahFromWC(c, wc, grh, a, port))
	}
	verbs.CreateAhFromWc = func(p *libibverbs.Pd, wc *libibverbs.Wc, grh *libibverbs.Grh, port uint8) (*libibverbs.Ah, syscall.Errno) {
		n := self()
		n.lock()
		defer n.unlock()
		var a libibverbs.AhAttr
		if err := n.ahFromWC(p.Context, wc, grh, &a, port); err != nil {
			return nil, errno(err)
		}
		return n.createAH(p, &a)
	}
	verbs.DestroyAh = func(c *libibverbs.Ah) syscall.Errno {
		n := self()
		n.lock()
		defer n.unlock()
		return n.destroyAH(c)
	}
}

// ahFromWC makes the attributes of the address that a datagram came from. grh is what precedes
// the datagram in memory.
func (n *node) ahFromWC(c *libibverbs.Context, wc *libibverbs.Wc, grh *libibverbs.Grh, a *libibverbs.AhAttr, port uint8) error {
	*a = libibverbs.AhAttr{Dlid: wc.Slid, Sl: wc.Sl, SrcPathBits: wc.DlidPathBits, PortNum: port}
	if wc.WcFlags&uint32(libibverbs.IBV_WC_GRH) == 0 {
		return nil
	}
	var from, to wire.GID
	h := (*[wire.GRHLen]byte)(unsafe.Pointer(grh))
	if ip := h[20:]; h[0]>>4 != 6 && ip[0] == 0x45 { // an IPv4 header without options behind 20 bytes of nothing
		from = wire.GIDOf(netip.AddrFrom4([4]byte(ip[12:16])))
		to = wire.GIDOf(netip.AddrFrom4([4]byte(ip[16:20])))
		a.Grh.TrafficClass = ip[1]
	} else {
		from, to = wire.GID(h[8:24]), wire.GID(h[24:40])
		word := binary.BigEndian.Uint32(h[:4])
		a.Grh.TrafficClass, a.Grh.FlowLabel = uint8(word>>20), word&0xFFFFF
	}
	device := n.deviceOf(c)
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

func (n *node) createAH(p *libibverbs.Pd, a *libibverbs.AhAttr) (*libibverbs.Ah, syscall.Errno) {
	domain := n.pds[p]
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if err := n.reach(a); err != nil {
		return nil, errno(err)
	}
	e, err := domain.e.CreateAH(a)
	if err != nil {
		return nil, errno(err)
	}
	h := alloc[C.struct_soft_ah]()
	h.id = C.uint64_t(e.Handle())
	c := (*libibverbs.Ah)(unsafe.Pointer(h))
	c.Context, c.Pd, c.Handle = p.Context, p, uint32(e.Handle())
	n.ahs[c] = &ah{e}
	return c, 0
}

func (n *node) destroyAH(c *libibverbs.Ah) syscall.Errno {
	h := n.ahs[c]
	if h == nil {
		return syscall.EINVAL
	}
	n.advance(n.now()) // hears of the datagrams that were posted before
	if err := h.e.Destroy(); err != nil {
		return errno(err)
	}
	delete(n.ahs, c)
	free(c)
	return 0
}
