// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// MR is a memory region.
type MR struct {
	pd      *PD
	key     uint32
	iova    uint64 // address of the first byte as work requests name it
	memory  []byte
	access  libibverbs.AccessFlags
	windows int // that are bound to it
}

const (
	remoteAccess = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	mrAccess     = remoteAccess | libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_MW_BIND | libibverbs.IBV_ACCESS_ZERO_BASED
	// Access that the device does not offer.
	otherAccess = libibverbs.IBV_ACCESS_ON_DEMAND | libibverbs.IBV_ACCESS_HUGETLB |
		libibverbs.IBV_ACCESS_FLUSH_GLOBAL | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	// Access of which a device that does not know it takes no notice.
	optionalAccess = libibverbs.AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)
)

// checkAccess returns what is wrong with the access flags of a region.
func checkAccess(access libibverbs.AccessFlags) error {
	const needLocal = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	switch {
	case access&^(mrAccess|otherAccess|optionalAccess) != 0:
		return syscall.EINVAL
	case access&otherAccess != 0:
		return syscall.EOPNOTSUPP
	case access&needLocal != 0 && access&libibverbs.IBV_ACCESS_LOCAL_WRITE == 0:
		return syscall.EINVAL
	}
	return nil
}

// checkMemory returns what is wrong with memory that work requests address from iova on.
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

// RegisterMR makes a memory region. Work requests address its first byte as iova, or
// as 0 if it is zero-based.
//
// Memory must stay until Deregister. The error is EINVAL for no memory, a range past the last address, an
// iova with another offset in its page, unknown flags, or remote write or atomic without local write;
// EOPNOTSUPP for flags that the device does not support; ENOMEM if there are too many regions.
func (p *PD) RegisterMR(memory []byte, iova uint64, access libibverbs.AccessFlags) (*MR, error) {
	d := p.device
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if err := checkMemory(memory, iova, access); err != nil {
		return nil, err
	}
	if len(d.mrs) == maxMRs {
		return nil, syscall.ENOMEM
	}
	m := &MR{pd: p, key: d.newKey(), iova: baseOf(iova, access), memory: memory, access: access &^ optionalAccess}
	d.mrs[m.key>>8] = m
	p.users++
	return m, nil
}

// Rereg changes what flags say: the domain, the memory with its iova, the access. The key stays.
//
// If there is an error, nothing changes. It is EBUSY while windows are bound to the region; EINVAL for no
// or unknown flags, a domain of another device, a change to or from zero-based without new memory; else as
// of RegisterMR.
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
		if err := checkAccess(access); err != nil {
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
	m.pd.device.showTails()
	m.pd.users--
	n.pd.users++
	*m = n
	return nil
}

// baseOf returns the address of a region's first byte.
func baseOf(iova uint64, access libibverbs.AccessFlags) uint64 {
	if access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		return 0
	}
	return iova
}

// newKey returns a key at random whose upper 24 bits no region and no window has.
func (d *Device) newKey() uint32 {
	for {
		key := d.config.Random.Uint32()
		if key>>8 != 0 && d.mrs[key>>8] == nil && d.mws[key>>8] == nil {
			return key
		}
	}
}

// Key returns the region's key, local and remote.
func (m *MR) Key() uint32 { return m.key }

// Deregister removes the region. The error is EBUSY while windows are bound to it.
func (m *MR) Deregister() error {
	if m.windows > 0 {
		return syscall.EBUSY
	}
	m.pd.device.showTails()
	delete(m.pd.device.mrs, m.key>>8)
	m.pd.users--
	m.memory = nil
	return nil
}

// slice returns length bytes from addr on, of the region with the given local key if it is of domain pd and
// permits access: 0 to read, IBV_ACCESS_LOCAL_WRITE. No bytes are all right whatever the address and key.
// The status is success or IBV_WC_LOC_PROT_ERR.
//
// The memory may go as soon as the owner calls the device again.
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

// remoteSlice is like slice for the remote key of a region or window that a packet for q names. Access is
// one of the flags for remote access. The status is success or IBV_WC_REM_ACCESS_ERR. It does not look at
// the queue pair's own flags.
func (d *Device) remoteSlice(q *QP, addr, length uint64, key uint32, access libibverbs.AccessFlags) ([]byte, libibverbs.WcStatus) {
	if length == 0 {
		return nil, libibverbs.IBV_WC_SUCCESS
	}
	var b []byte
	if m := d.mrs[key>>8]; m != nil && m.key == key && m.pd == q.pd && access&^m.access == 0 {
		b = m.slice(addr, length)
	} else if w := d.mws[key>>8]; w != nil && w.key == key && w.pd == q.pd && access&^w.access == 0 {
		b = w.slice(q, addr, length)
	}
	if b == nil {
		return nil, libibverbs.IBV_WC_REM_ACCESS_ERR
	}
	return b, libibverbs.IBV_WC_SUCCESS
}

// slice returns length bytes from addr on, or nil if the region does not have them.
func (m *MR) slice(addr, length uint64) []byte {
	offset, ok := within(addr, length, m.iova, uint64(len(m.memory)))
	if !ok {
		return nil
	}
	return m.memory[offset : offset+length : offset+length]
}

// within returns the offset of length bytes from addr on within the size bytes from start on, which
// may reach the last address.
func within(addr, length, start, size uint64) (offset uint64, ok bool) {
	offset = addr - start // huge if addr is before start
	return offset, offset <= size && length <= size-offset
}
