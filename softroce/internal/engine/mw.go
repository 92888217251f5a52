// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
)

// MW is a memory window.
type MW struct {
	pd     *PD
	kind   libibverbs.MwType
	key    uint32
	mr     *MR    // region to which the window is bound; nil: none
	qp     *QP    // for type 2, the queue pair that bound the window
	addr   uint64 // address of the window within the region
	length uint64
	access libibverbs.AccessFlags
}

// windowAccess has the access flags that a bind may name. Flags for local
// access have no effect on a window; devices accept them, since programs pass a
// region's flags for a window.
const windowAccess = mrAccess | flushAccess | optionalAccess

// AllocMW creates a memory window that is not bound. It fails with EINVAL for
// an unknown type, with ENOMEM if there are too many windows, and with
// EOPNOTSUPP if the device has none.
func (p *PD) AllocMW(kind libibverbs.MwType) (*MW, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	if kind != libibverbs.IBV_MW_TYPE_1 && kind != libibverbs.IBV_MW_TYPE_2 {
		return nil, syscall.EINVAL
	}
	if d.limits.MWs == 0 {
		return nil, syscall.EOPNOTSUPP
	}
	if len(d.mws) == int(d.limits.MWs) {
		return nil, syscall.ENOMEM
	}
	w := &MW{pd: p, kind: kind, key: d.newKey()}
	d.mws[w.key>>8] = w
	p.users++
	return w, nil
}

// Key returns the window's key. A bind changes its lower 8 bits.
func (w *MW) Key() uint32 { return w.key }

// Handle returns the number by which work requests name the window.
func (w *MW) Handle() uint64 { return uint64(w.key >> 8) }

// Dealloc removes the window. It unbinds the window if necessary.
func (w *MW) Dealloc() error {
	if detector.Enabled && w.mr != nil {
		w.mr.told.Acquire()
	}
	w.unbind()
	delete(w.pd.device.mws, w.key>>8)
	w.pd.users--
	return nil
}

// unbind unbinds the window, if it is bound.
func (w *MW) unbind() {
	if w.mr != nil {
		w.pd.device.settle()
		w.pd.device.unstageWrites()
		w.mr.windows--
	}
	if w.qp != nil {
		delete(w.qp.windows, w)
	}
	w.mr, w.qp = nil, nil
}

// locate returns the location of the length bytes at addr for a packet to q. ok
// is false if they are not all in the window, or q may not use the window.
func (w *MW) locate(q *QP, addr, length uint64) (at location, ok bool) {
	if w.mr == nil || w.qp != nil && w.qp != q {
		return location{}, false
	}
	offset, ok := within(addr, length, w.start(), w.length)
	return location{w.mr, w.addr + offset}, ok
}

// start returns the address by which requests refer to the window's first byte.
func (w *MW) start() uint64 {
	if w.access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return 0
	}
	return w.addr
}

// bind executes the work request IBV_WR_BIND_MW. The status is success or
// IBV_WC_MW_BIND_ERR.
//
// A bind of a window of type 1 replaces an earlier one; with length 0, it
// unbinds the window. A window of type 2 must not be bound, so the program must
// invalidate it first.
func (q *QP) bind(s *SendSlot) libibverbs.WcStatus {
	d := q.device
	length, access := s.CompareAdd, libibverbs.AccessFlags(s.BindAccess)
	w := d.mws[uint32(s.Swap)]
	if s.Swap>>24 != 0 || w == nil || w.pd != q.pd || s.RKey>>8 != w.key>>8 || access&^windowAccess != 0 {
		return libibverbs.IBV_WC_MW_BIND_ERR
	}
	if detector.Enabled && w.mr != nil {
		w.mr.told.Before(s.Ticket)
	}
	if w.kind == libibverbs.IBV_MW_TYPE_1 && length == 0 {
		w.unbind()
		w.key = s.RKey
		return libibverbs.IBV_WC_SUCCESS
	}
	m := d.mrs[s.BindLKey>>8]
	if m == nil || m.key != s.BindLKey || length == 0 || w.kind == libibverbs.IBV_MW_TYPE_2 && w.mr != nil {
		return libibverbs.IBV_WC_MW_BIND_ERR
	}
	needed := libibverbs.IBV_ACCESS_MW_BIND
	if access&(libibverbs.IBV_ACCESS_REMOTE_WRITE|libibverbs.IBV_ACCESS_REMOTE_ATOMIC) != 0 {
		needed |= libibverbs.IBV_ACCESS_LOCAL_WRITE
	}
	needed |= access & flushAccess
	if m.pd != q.pd || needed&^m.access != 0 || !m.holds(s.RemoteAddr, length) {
		return libibverbs.IBV_WC_MW_BIND_ERR
	}
	w.unbind()
	w.mr, w.key, w.addr, w.length, w.access = m, s.RKey, s.RemoteAddr, length, access
	m.windows++
	if w.kind == libibverbs.IBV_MW_TYPE_2 {
		if q.windows == nil {
			q.windows = map[*MW]bool{}
		}
		w.qp, q.windows[w] = q, true
	}
	return libibverbs.IBV_WC_SUCCESS
}

// invalidate unbinds the window of type 2 with that key. It returns false
// unless the window is bound through q. It executes the work request
// IBV_WR_LOCAL_INV, which fails with IBV_WC_MW_BIND_ERR, and the peer's
// IBV_WR_SEND_WITH_INV, which fails with IBV_WC_REM_ACCESS_ERR at the peer and
// with IBV_WC_LOC_ACCESS_ERR here. ticket is that of the request that completes
// then.
func (q *QP) invalidate(key, ticket uint32) bool {
	w := q.device.mws[key>>8]
	if w == nil || w.key != key || w.qp != q {
		return false
	}
	if detector.Enabled && w.mr != nil {
		w.mr.told.Before(ticket)
	}
	w.unbind()
	return true
}
