// SPDX-License-Identifier: Apache-2.0

package engine

import (
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
	memory  []byte
	access  libibverbs.AccessFlags
	windows int // number of memory windows bound to the region

	told *detector.Region // for the race detector, accesses of peers; nil: it knows no program
}

const (
	remoteAccess = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	mrAccess     = remoteAccess | libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_MW_BIND | libibverbs.IBV_ACCESS_ZERO_BASED
	// Access flags that the device does not support.
	otherAccess = libibverbs.IBV_ACCESS_ON_DEMAND | libibverbs.IBV_ACCESS_HUGETLB
	// Access flags that the device may support.
	flushAccess = libibverbs.IBV_ACCESS_FLUSH_GLOBAL | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	// Access flags that a device may ignore.
	optionalAccess = libibverbs.AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)
)

// checkAccess returns the error with which RegisterMR rejects the access flags,
// or nil.
func (d *Device) checkAccess(access libibverbs.AccessFlags) error {
	const needLocal = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	switch {
	case access&^(mrAccess|otherAccess|flushAccess|optionalAccess) != 0:
		return syscall.EINVAL
	case access&otherAccess != 0, access&flushAccess&^d.FlushAccess() != 0:
		return syscall.EOPNOTSUPP
	case access&needLocal != 0 && access&libibverbs.IBV_ACCESS_LOCAL_WRITE == 0:
		return syscall.EINVAL
	}
	return nil
}

// checkMemory returns the error with which RegisterMR rejects the memory and
// its iova, or nil.
func checkMemory(memory []byte, iova uint64, access libibverbs.AccessFlags) error {
	if len(memory) == 0 {
		return syscall.EINVAL
	}
	if access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return nil
	}
	offset := uint64(uintptr(unsafe.Pointer(&memory[0])))
	if iova+uint64(len(memory))-1 < iova || (iova^offset)%pageSize != 0 {
		return syscall.EINVAL
	}
	return nil
}

// RegisterMR creates a memory region. Work requests refer to its first byte by
// the address iova, or by 0 if the region is zero-based. The memory must stay
// valid until Deregister.
//
// RegisterMR fails with EINVAL for empty memory, for addresses that exceed 64
// bits, for an iova whose offset within its page differs from the memory's, for
// unknown flags, and for remote write or atomic access without local write
// access. It fails with EOPNOTSUPP for flags that the device does not support,
// and with ENOMEM if there are too many regions.
func (p *PD) RegisterMR(memory []byte, iova uint64, access libibverbs.AccessFlags) (*MR, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := d.checkAccess(access); err != nil {
		return nil, err
	}
	if err := checkMemory(memory, iova, access); err != nil {
		return nil, err
	}
	if len(d.mrs) == int(d.limits.MRs) {
		return nil, syscall.ENOMEM
	}
	m := &MR{pd: p, key: d.newKey(), iova: baseOf(iova, access), memory: memory, access: access &^ optionalAccess}
	if detector.Enabled {
		m.tellRegion()
	}
	d.mrs[m.key>>8] = m
	p.users++
	return m, nil
}

// Rereg changes those properties of the region that flags select: the
// protection domain, the memory with its iova, or the access. The key stays the
// same.
//
// If Rereg fails, nothing changes. It fails with EBUSY while windows are bound
// to the region. It fails with EINVAL for flags that are zero or unknown, for a
// domain of another device, and for a change to or from zero-based access
// without new memory. Otherwise it fails like RegisterMR.
func (m *MR) Rereg(flags libibverbs.ReregMrFlags, pd *PD, memory []byte, iova uint64, access libibverbs.AccessFlags) error {
	if err := m.pd.device.check(); err != nil {
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
		n.memory, n.iova = memory, baseOf(iova, n.access)
		if err := checkMemory(memory, iova, n.access); err != nil {
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

// Deregister removes the region. It fails with EBUSY while windows are bound to
// it.
func (m *MR) Deregister() error {
	if m.windows > 0 {
		return syscall.EBUSY
	}
	m.pd.device.unstageWrites()
	if detector.Enabled {
		m.tellRegionGone()
	}
	delete(m.pd.device.mrs, m.key>>8)
	m.pd.users--
	m.memory = nil
	return nil
}

// Deregistered reports whether Deregister has removed the region.
func (m *MR) Deregistered() bool { return m.pd.device.mrs[m.key>>8] != m }

// slice returns length bytes from addr on, in the region whose local key is
// key. The region must belong to pd and permit access, which is
// IBV_ACCESS_LOCAL_WRITE, or 0 for reading. If length is 0, neither addr nor
// key is checked. The status is success or IBV_WC_LOC_PROT_ERR.
//
// The result may become invalid at the next call of the device's methods.
func (d *Device) slice(pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags) ([]byte, libibverbs.WcStatus) {
	if length == 0 {
		return nil, libibverbs.IBV_WC_SUCCESS
	}
	if m := d.mrs[key>>8]; m != nil && m.key == key && m.pd == pd && access&^m.access == 0 {
		if b := m.slice(addr, length); b != nil {
			return b, libibverbs.IBV_WC_SUCCESS
		}
	}
	return nil, libibverbs.IBV_WC_LOC_PROT_ERR
}

// remoteSlice returns length bytes from addr on, in the region or window whose
// remote key is key, for a packet to q. The region or window must belong to pd.
// access is a flag of remote access. The status is success or
// IBV_WC_REM_ACCESS_ERR. remoteSlice does not check q's own access flags.
func (d *Device) remoteSlice(
	q *QP, pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags,
) ([]byte, libibverbs.WcStatus) {
	if length == 0 {
		return nil, libibverbs.IBV_WC_SUCCESS
	}
	var b []byte
	if m := d.mrs[key>>8]; m != nil && m.key == key && m.pd == pd && access&^m.access == 0 {
		b = m.slice(addr, length)
	} else if w := d.mws[key>>8]; w != nil && w.key == key && w.pd == pd && access&^w.access == 0 {
		b = w.slice(q, addr, length)
	}
	if b == nil {
		return nil, libibverbs.IBV_WC_REM_ACCESS_ERR
	}
	return b, libibverbs.IBV_WC_SUCCESS
}

// flushSlice returns the memory that the FLUSH p to q names by its key: the
// range, or the whole region or window. It returns nil if the key, its access
// or the range is wrong. Unlike remoteSlice, it checks the key of an empty
// range, too.
func (d *Device) flushSlice(q *QP, p *wire.Packet, access libibverbs.AccessFlags) []byte {
	addr, length := p.Addr, uint64(p.Length)
	whole := libibverbs.SelectivityLevel(p.FlushLevel) == libibverbs.IBV_FLUSH_MR
	if m := d.mrs[p.RKey>>8]; m != nil && m.key == p.RKey && m.pd == q.memoryPD() && access&^m.access == 0 {
		if whole {
			return m.memory
		}
		return m.slice(addr, length)
	}
	if w := d.mws[p.RKey>>8]; w != nil && w.key == p.RKey && w.pd == q.memoryPD() && access&^w.access == 0 {
		if whole {
			addr, length = w.start(), w.length
		}
		return w.slice(q, addr, length)
	}
	return nil
}

// slice returns the length bytes from addr on. It returns nil if they are not
// all in the region.
func (m *MR) slice(addr, length uint64) []byte {
	offset, ok := within(addr, length, m.iova, uint64(len(m.memory)))
	if !ok {
		return nil
	}
	return m.memory[offset : offset+length : offset+length]
}

// within returns the offset of addr from start. ok reports whether the length
// bytes from addr on are all among the size bytes from start on. These may
// extend to the last address.
func within(addr, length, start, size uint64) (offset uint64, ok bool) {
	offset = addr - start // wraps to a huge number if addr is below start
	return offset, offset <= size && length <= size-offset
}
