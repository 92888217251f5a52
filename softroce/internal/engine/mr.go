// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// MR is a memory region.
type MR struct {
	pd      *PD
	key     uint32
	iova    uint64 // address by which work requests refer to the first byte
	size    uint64 // length in bytes
	memory  []byte // the region's bytes; nil: the region is paged on demand or null
	paged   bool   // whether the region is paged on demand
	start   uint64 // for a region that is paged on demand, the address of its first byte
	dm      *DM    // device memory to which memory belongs; nil: none
	access  libibverbs.AccessFlags
	windows int // number of memory windows bound to the region

	told    *detector.Region // for the race detector, accesses of peers; nil in programs built without -race
	touched *uint32          // becomes 1 before a peer writes to the region; nil: nothing needs to know
}

const (
	remoteAccess = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	mrAccess     = remoteAccess | libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_MW_BIND | libibverbs.IBV_ACCESS_ZERO_BASED |
		libibverbs.IBV_ACCESS_ON_DEMAND | libibverbs.IBV_ACCESS_HUGETLB
	// Access flags that the device may support.
	flushAccess = libibverbs.IBV_ACCESS_FLUSH_GLOBAL | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	// Access flags that a device may ignore.
	optionalAccess = libibverbs.AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)
)

// checkAccess returns the error with which a registration rejects the access
// flags, or nil.
func (d *Device) checkAccess(access libibverbs.AccessFlags) error {
	const needLocal = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	switch {
	case access&^(mrAccess|flushAccess|optionalAccess) != 0:
		return syscall.EINVAL
	case access&flushAccess&^d.FlushAccess() != 0, access&libibverbs.IBV_ACCESS_ON_DEMAND != 0 && d.limits.ODP == 0:
		return syscall.EOPNOTSUPP
	case access&needLocal != 0 && access&libibverbs.IBV_ACCESS_LOCAL_WRITE == 0:
		return syscall.EINVAL
	}
	return nil
}

// checkRange returns the error with which a registration rejects size bytes
// from the address start on, and their iova, or nil.
func checkRange(start, size, iova uint64, access libibverbs.AccessFlags) error {
	if size == 0 {
		return syscall.EINVAL
	}
	if access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return nil
	}
	if iova+size-1 < iova || (iova^start)%pageSize != 0 {
		return syscall.EINVAL
	}
	return nil
}

// addressOf returns the address of the first byte of b.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// RegisterMR creates a memory region. Work requests refer to its first byte by
// the address iova, or by 0 if the region is zero-based. The memory must stay
// valid until Deregister.
//
// RegisterMR fails with EINVAL for empty memory, for addresses that exceed 64
// bits, for an iova whose offset within its page differs from the memory's, for
// unknown flags, for remote write or atomic access without local write access,
// and for IBV_ACCESS_ON_DEMAND, which needs RegisterOnDemand. It fails with
// EOPNOTSUPP for flags that the device does not support, and with ENOMEM if
// there are too many regions.
func (p *PD) RegisterMR(memory []byte, iova uint64, access libibverbs.AccessFlags) (*MR, error) {
	return p.register(&MR{size: uint64(len(memory)), memory: memory, access: access}, func() error {
		if access&libibverbs.IBV_ACCESS_ON_DEMAND != 0 {
			return syscall.EINVAL
		}
		return checkRange(addressOf(memory), uint64(len(memory)), iova, access)
	}, iova)
}

// register completes the region m, whose other fields the caller has set, and
// adds it to the device. check returns an error if the device must reject the
// region's memory.
func (p *PD) register(m *MR, check func() error, iova uint64) (*MR, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := d.checkAccess(m.access); err != nil {
		return nil, err
	}
	if err := check(); err != nil {
		return nil, err
	}
	if len(d.mrs) == int(d.limits.MRs) {
		return nil, syscall.ENOMEM
	}
	m.pd, m.key, m.iova, m.access = p, d.newKey(), baseOf(iova, m.access), m.access&^optionalAccess
	if detector.Enabled {
		m.tellRegion()
	}
	d.mrs[m.key>>8] = m
	p.users++
	if m.dm != nil {
		m.dm.regions++
	}
	return m, nil
}

// Rereg changes those properties of the region that flags select: the
// protection domain, the memory with its iova, or the access. The key stays the
// same.
//
// If Rereg fails, nothing changes. It fails with EBUSY while windows are bound
// to the region. It fails with EINVAL for a null region, for flags that are
// zero or unknown, for a domain of another device, and for a change to or from
// zero-based access without new memory. It fails with EOPNOTSUPP if flags
// select the memory or the access and the region is device memory, is paged on
// demand, or would become so. Otherwise it fails like RegisterMR.
func (m *MR) Rereg(flags libibverbs.ReregMrFlags, pd *PD, memory []byte, iova uint64, access libibverbs.AccessFlags) error {
	if err := m.pd.device.check(); err != nil {
		return err
	}
	if err := m.CheckRereg(flags, access); err != nil {
		return err
	}
	n := *m
	if flags&libibverbs.IBV_REREG_MR_CHANGE_PD != 0 {
		n.pd = pd
	}
	if flags&libibverbs.IBV_REREG_MR_CHANGE_ACCESS != 0 {
		n.access = access &^ optionalAccess
		if err := m.pd.device.checkAccess(access); err != nil {
			return err
		}
	}
	if flags&libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
		n.memory, n.size, n.iova = memory, uint64(len(memory)), baseOf(iova, n.access)
		if err := checkRange(addressOf(memory), n.size, iova, n.access); err != nil {
			return err
		}
	} else if (n.access^m.access)&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return syscall.EINVAL
	}
	if flags == 0 || flags&^libibverbs.IBV_REREG_MR_FLAGS_SUPPORTED != 0 || n.pd == nil || n.pd.device != m.pd.device {
		return syscall.EINVAL
	}
	if m.windows > 0 {
		return syscall.EBUSY
	}
	m.pd.device.settle()
	m.pd.device.unstageWrites()
	m.pd.users--
	n.pd.users++
	if detector.Enabled {
		m.tellRegionGone()
	}
	*m = n
	if detector.Enabled {
		m.tellRegion()
	}
	return nil
}

// CheckRereg returns the error with which Rereg fails because of what the
// region is, or nil.
func (m *MR) CheckRereg(flags libibverbs.ReregMrFlags, access libibverbs.AccessFlags) error {
	switch {
	case m.null():
		return syscall.EINVAL
	case flags&(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION|libibverbs.IBV_REREG_MR_CHANGE_ACCESS) == 0:
		return nil
	case m.paged, m.dm != nil, flags&libibverbs.IBV_REREG_MR_CHANGE_ACCESS != 0 && access&libibverbs.IBV_ACCESS_ON_DEMAND != 0:
		return syscall.EOPNOTSUPP
	}
	return nil
}

// baseOf returns the address by which work requests refer to a region's first
// byte.
func baseOf(iova uint64, access libibverbs.AccessFlags) uint64 {
	if access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return 0
	}
	return iova
}

// newKey returns a random key for a region or window. No other region or window
// has the same upper 24 bits.
func (d *Device) newKey() uint32 {
	for {
		key := d.config.Random.Uint32()
		if key>>8 != 0 && d.mrs[key>>8] == nil && d.mws[key>>8] == nil {
			return key
		}
	}
}

// Key returns the region's key, which is both its local and its remote key.
func (m *MR) Key() uint32 { return m.key }

// Size returns the region's length in bytes.
func (m *MR) Size() uint64 { return m.size }

// PD returns the region's protection domain.
func (m *MR) PD() *PD { return m.pd }

// Deregister removes the region. It fails with EBUSY while windows are bound to
// it.
func (m *MR) Deregister() error {
	if m.windows > 0 {
		return syscall.EBUSY
	}
	m.pd.device.settle()
	m.pd.device.unstageWrites()
	if detector.Enabled {
		m.tellRegionGone()
	}
	delete(m.pd.device.mrs, m.key>>8)
	m.pd.users--
	m.memory = nil
	if m.dm != nil {
		m.dm.regions--
	}
	return nil
}

// Deregistered reports whether Deregister has removed the region.
func (m *MR) Deregistered() bool { return m.pd.device.mrs[m.key>>8] != m }

// local returns the region whose local key is key. It returns nil if there is
// none, if the region does not belong to pd or lacks the length bytes from addr
// on, or if it does not permit access, which is a set of access flags, or 0 for
// reading.
func (d *Device) local(pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags) *MR {
	if m := d.mrs[key>>8]; m != nil && m.key == key && m.pd == pd && access&^m.access == 0 && m.holds(addr, length) {
		return m
	}
	return nil
}

// location is where remote memory begins: at the address addr of the region mr.
type location struct {
	mr   *MR
	addr uint64
}

// remote returns the location of length bytes from addr on, in the region or
// window whose remote key is key, for a packet to q. The region or window must
// belong to pd. access is a flag of remote access. The status is success or
// IBV_WC_REM_ACCESS_ERR. remote does not check q's own access flags. If length
// is 0, neither addr nor key is checked, and the location has no region.
func (d *Device) remote(
	q *QP, pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags,
) (location, libibverbs.WcStatus) {
	if length == 0 {
		return location{}, libibverbs.IBV_WC_SUCCESS
	}
	if m := d.mrs[key>>8]; m != nil && m.key == key && m.pd == pd && access&^m.access == 0 {
		if m.holds(addr, length) {
			m.noteAccess(access)
			return location{m, addr}, libibverbs.IBV_WC_SUCCESS
		}
	} else if w := d.mws[key>>8]; w != nil && w.key == key && w.pd == pd && access&^w.access == 0 {
		if at, ok := w.locate(q, addr, length); ok {
			at.mr.noteAccess(access)
			return at, libibverbs.IBV_WC_SUCCESS
		}
	}
	return location{}, libibverbs.IBV_WC_REM_ACCESS_ERR
}

// WatchWrites sets the word that becomes 1 before a peer writes to the region.
// nil stands for none.
func (m *MR) WatchWrites(word *uint32) { m.touched = word }

// noteAccess records that a peer is about to access the region, as access says.
func (m *MR) noteAccess(access libibverbs.AccessFlags) {
	if m.touched != nil && access != libibverbs.IBV_ACCESS_REMOTE_READ {
		atomic.StoreUint32(m.touched, 1)
	}
}

// flushed returns the location and the length of the memory that the FLUSH p to
// q names by its key: the range, or the whole region or window. ok is false if
// the key, its access or the range is wrong. Unlike remote, flushed checks the
// key of an empty range, too.
func (d *Device) flushed(q *QP, p *wire.Packet, access libibverbs.AccessFlags) (at location, length uint64, ok bool) {
	addr, length := p.Addr, uint64(p.Length)
	whole := libibverbs.SelectivityLevel(p.FlushLevel) == libibverbs.IBV_FLUSH_MR
	if m := d.mrs[p.RKey>>8]; m != nil && m.key == p.RKey && m.pd == q.memoryPD() && access&^m.access == 0 {
		if whole {
			addr, length = m.iova, m.size
		}
		return location{m, addr}, length, m.holds(addr, length)
	}
	if w := d.mws[p.RKey>>8]; w != nil && w.key == p.RKey && w.pd == q.memoryPD() && access&^w.access == 0 {
		if whole {
			addr, length = w.start(), w.length
		}
		at, ok = w.locate(q, addr, length)
		return at, length, ok
	}
	return location{}, 0, false
}

// bytes returns the n bytes at the location, which are nil if n is 0. The
// result may become invalid at the next call of the device's methods.
func (at location) bytes(n uint64) []byte {
	if n == 0 {
		return nil
	}
	return at.mr.bytes(at.addr, n)
}

// null reports whether the region has no memory.
func (m *MR) null() bool { return m.memory == nil && !m.paged }

// holds reports whether the length bytes from addr on are all in the region. It
// returns false for addresses at which no program can have memory.
func (m *MR) holds(addr, length uint64) bool {
	offset, ok := within(addr, length, m.iova, m.size)
	return ok && (!m.paged || possible(m.start+offset, length))
}

// bytes returns the n bytes from addr on, which the region must hold. The
// region must not be null.
func (m *MR) bytes(addr, n uint64) []byte {
	if m.paged {
		return memoryAt(m.address(addr), n)
	}
	return m.part(addr, n)
}

// part is bytes for a region that has memory.
func (m *MR) part(addr, n uint64) []byte {
	offset := addr - m.iova
	return m.memory[offset : offset+n : offset+n]
}

// address returns the address of the program's memory to which addr refers, a
// part of the region. The region must not be null.
func (m *MR) address(addr uint64) uint64 {
	if m.paged {
		return m.start + addr - m.iova
	}
	return addressOf(m.memory) + addr - m.iova
}

// target appends the n bytes from addr on to list, as memory to write to. The
// region must be paged on demand or null, which discards what is written.
func (m *MR) target(list [][]byte, addr, n uint64) [][]byte {
	if !m.null() {
		return append(list, m.bytes(addr, n))
	}
	discarded := m.pd.device.discarded[:]
	for ; n > 0; n -= min(n, uint64(len(discarded))) {
		list = append(list, discarded[:min(n, uint64(len(discarded)))])
	}
	return list
}

// source appends the n bytes from addr on to list, as memory to read. A null
// region has zeros. Of a region that is paged on demand, source appends a copy.
// It returns false if that memory cannot be read now.
func (m *MR) source(list [][]byte, addr, n uint64) ([][]byte, bool) {
	switch {
	case m.memory != nil:
		return append(list, m.part(addr, n)), true
	case m.paged:
		b := make([]byte, n)
		return append(list, b), fetch(b, m.address(addr))
	}
	for ; n > 0; n -= min(n, uint64(len(zeros))) {
		list = append(list, zeros[:min(n, uint64(len(zeros)))])
	}
	return list, true
}

// zeros is what a null region has. Nothing may be written to it.
var zeros [pageSize]byte

// within returns the offset of addr from start. ok reports whether the length
// bytes from addr on are all among the size bytes from start on. These may
// extend to the last address.
func within(addr, length, start, size uint64) (offset uint64, ok bool) {
	offset = addr - start // wraps to a huge number if addr is below start
	return offset, offset <= size && length <= size-offset
}
