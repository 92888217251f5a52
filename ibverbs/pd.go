// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// PD is a protection domain. Queue pairs can use only the memory regions of
// their own domain. Its methods may be called concurrently.
type PD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Pd
	parent *PD // protection domain that a parent domain was made from; nil for other domains

	imported bool // whether the domain is from another process; see package share
}

// AllocPD allocates a protection domain; see ibv_alloc_pd(3).
func (d *Device) AllocPD() (*PD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.AllocPd(d.raw)
	if err != nil {
		return nil, wrap(d.Name(), d.explain(err, protectionDomains, 0))
	}
	pd := &PD{device: d, raw: raw}
	pd.object.Init(fmt.Sprintf("PD %d of %s", raw.Handle, d.Name()), &d.object)
	return pd, nil
}

// Device returns the device that the domain belongs to.
func (pd *PD) Device() *Device { return pd.device }

// Raw returns the C object, which is valid until Close.
func (pd *PD) Raw() *libibverbs.Pd { return pd.raw }

// Close deallocates the domain; see ibv_dealloc_pd(3). While it has memory
// regions, buffers, memory windows, queues or parent domains, Close does
// nothing and returns a *BusyError.
func (pd *PD) Close() error {
	return pd.self().Close(nil, func() error {
		if pd.imported {
			return wrap(pd.object.Name(), libibverbs.UnimportPd(pd.raw))
		}
		return wrap(pd.object.Name(), pd.device.unlessRemoved(libibverbs.DeallocPd(pd.raw)))
	})
}

// AllocParentDomain allocates a parent domain of the protection domain; see
// ibv_alloc_parent_domain(3). It can be used like the protection domain: its
// queue pairs can use the protection domain's regions. Objects made on a parent
// domain with a thread domain need no locks; td may be nil. The package does
// not offer C's custom allocators, which must be C functions. AllocParentDomain
// fails with an error matching errors.ErrUnsupported if the device has no
// parent domains.
func (pd *PD) AllocParentDomain(td *TD) (*PD, error) { return pd.allocParentDomain(td, 0) }

// AllocUnprotectedParentDomain allocates a parent domain like
// AllocParentDomain, for a confidential guest whose devices cannot access its
// protected memory. If the device has caps.CCDMABounce, devmem.AllocBuf on the
// domain may return memory that the host can read and change. Before rdma-core
// 64, AllocUnprotectedParentDomain fails with an error matching
// errors.ErrUnsupported or syscall.EINVAL.
func (pd *PD) AllocUnprotectedParentDomain(td *TD) (*PD, error) {
	return pd.allocParentDomain(td, libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC)
}

func (pd *PD) allocParentDomain(td *TD, mask libibverbs.ParentDomainInitAttrMask) (*PD, error) {
	const op = "ibv_alloc_parent_domain"
	parents := []*object.Object{pd.self()}
	if td != nil {
		parents = append(parents, td.self())
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	attr := libibverbs.ParentDomainInitAttr{Pd: pd.raw, CompMask: mask}
	switch {
	case pd.parent != nil:
		return nil, cerr.Refuse(op, pd.object.Name(), "the domain is a parent domain; use a protection domain from AllocPD")
	case td != nil && td.device.raw != pd.device.raw:
		return nil, otherDevice(op, pd.object.Name(), td.self())
	case td != nil:
		attr.Td = td.raw
	}
	raw, err := libibverbs.AllocParentDomain(pd.device.raw, &attr)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	domain := &PD{device: pd.device, raw: raw, parent: pd}
	domain.object.Init(fmt.Sprintf("parent domain of %s", pd.object.Name()), parents...)
	return domain, nil
}

// Parent returns the protection domain that a parent domain was made from, or
// nil for any other domain.
func (pd *PD) Parent() *PD { return pd.parent }

// root returns the domain that the device knows, which is never a parent
// domain.
func (pd *PD) root() *libibverbs.Pd {
	if pd.parent != nil {
		return pd.parent.raw
	}
	return pd.raw
}
