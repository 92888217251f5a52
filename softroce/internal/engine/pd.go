// SPDX-License-Identifier: Apache-2.0

package engine

import "syscall"

// PD is a protection domain.
type PD struct {
	device *Device
	users  int // number of objects that belong to the domain
	gone   bool
}

// CreatePD creates a protection domain. It fails with ENOMEM if there are too
// many.
func (d *Device) CreatePD() (*PD, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if d.pds == int(d.limits.PDs) {
		return nil, syscall.ENOMEM
	}
	d.pds++
	return &PD{device: d}, nil
}

// CheckParentDomain returns EOPNOTSUPP if the device has no parent domains, and
// EIO if the device was removed. A parent domain is a protection domain to the
// device.
func (d *Device) CheckParentDomain() error {
	if err := d.check(); err != nil {
		return err
	}
	if !d.limits.ParentDomains {
		return syscall.EOPNOTSUPP
	}
	return nil
}

// Destroy removes the domain. It fails with EBUSY while objects belong to it.
func (p *PD) Destroy() error {
	if p.users > 0 {
		return syscall.EBUSY
	}
	p.device.pds--
	p.gone = true
	return nil
}

// Destroyed reports whether Destroy has removed the domain.
func (p *PD) Destroyed() bool { return p.gone }
