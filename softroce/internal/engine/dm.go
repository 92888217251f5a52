// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/bits"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// DM is memory of the device.
type DM struct {
	device  *Device
	memory  []byte
	taken   uint64 // bytes of the device's memory that the DM takes
	regions int    // number of memory regions of the DM
	imports int    // number of imports that have not ended
	freed   bool
}

const (
	dmUnit = 64 // device memory is allocated in multiples of so many bytes
	// dmAccess has the access flags that a region of device memory may
	// have, as in Linux's driver mlx5.
	dmAccess = remoteAccess | libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_ZERO_BASED | optionalAccess
)

// AllocDM allocates size bytes of device memory, which are zero. Their address
// is a multiple of 1<<logAlign and of 64. The allocation takes at least
// 1<<logAlign bytes of the device's memory.
//
// AllocDM fails with EOPNOTSUPP if the device has no memory. It fails with
// EINVAL for size 0 and for a size or an alignment that exceeds all of the
// device's memory, and with ENOMEM if too little of it is free.
func (d *Device) AllocDM(size uint64, logAlign uint32) (*DM, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	all := uint64(d.limits.DM)
	switch {
	case all == 0:
		return nil, syscall.EOPNOTSUPP
	case size == 0, size > all, logAlign >= uint32(bits.Len64(all)):
		return nil, syscall.EINVAL
	}
	align := max(dmUnit, uint64(1)<<logAlign)
	taken := min(max((size+dmUnit-1)/dmUnit*dmUnit, align), all)
	if taken > all-d.dm {
		return nil, syscall.ENOMEM
	}
	// Go's memory, as packets that are under way refer to it after Free.
	memory := make([]byte, size+align)
	memory = memory[-addressOf(memory)%align:][:size:size]
	d.dm += taken
	return &DM{device: d, memory: memory, taken: taken}, nil
}

// Bytes returns the memory.
func (dm *DM) Bytes() []byte { return dm.memory }

// Free frees the device memory. Imports keep its bytes, which then still count
// as the device's. Free fails with EBUSY while the memory has regions, and with
// EINVAL if it is free.
func (dm *DM) Free() error {
	switch {
	case dm.freed:
		return syscall.EINVAL
	case dm.regions > 0:
		return syscall.EBUSY
	}
	dm.freed = true
	dm.giveBack()
	return nil
}

// giveBack gives the bytes back to the device if the memory was freed and has
// no imports.
func (dm *DM) giveBack() {
	if dm.freed && dm.imports == 0 {
		dm.device.dm -= dm.taken
	}
}

// Import notes that the program has imported the device memory, which must not
// be free.
func (dm *DM) Import() { dm.imports++ }

// Unimport ends an import. After Free by an import, it ends the original.
func (dm *DM) Unimport() {
	dm.imports--
	dm.giveBack()
}

// Freed reports whether the device memory was freed.
func (dm *DM) Freed() bool { return dm.freed }

// RegisterDM creates a region of length bytes of device memory, from offset on.
// Work requests refer to its first byte by the address 0.
//
// RegisterDM fails with EINVAL if the memory does not have those bytes, was
// freed or belongs to another device, if access lacks IBV_ACCESS_ZERO_BASED,
// and for flags that device memory cannot have. Otherwise it fails like
// RegisterMR.
func (p *PD) RegisterDM(dm *DM, offset, length uint64, access libibverbs.AccessFlags) (*MR, error) {
	m := &MR{size: length, dm: dm, access: access}
	return p.register(m, func() error {
		_, ok := within(offset, length, 0, uint64(len(dm.memory)))
		if !ok || dm.freed || dm.device != p.device || access&^dmAccess != 0 || access&libibverbs.IBV_ACCESS_ZERO_BASED == 0 {
			return syscall.EINVAL
		}
		m.memory = dm.memory[offset : offset+length : offset+length]
		return nil
	}, 0)
}
