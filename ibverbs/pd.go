package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// PD is a protection domain: memory regions can be used only by queue pairs
// of the same one. Its methods may be called concurrently.
type PD struct {
	object object.Object
	device *Device
	raw    *libibverbs.Pd
	handle uint32
	parent *PD // of a parent domain, what it was made of

	imported bool // of another process
}

// AllocPD makes a protection domain; see ibv_alloc_pd(3).
func (d *Device) AllocPD() (*PD, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.AllocPd(d.raw)
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	pd := &PD{device: d, raw: raw, handle: raw.Handle}
	pd.object.Init(fmt.Sprintf("PD %d of %s", raw.Handle, d.Name()), &d.object)
	return pd, nil
}

// Device returns the device that the domain belongs to.
func (pd *PD) Device() *Device { return pd.device }

// Raw returns the C object, which is valid until Close.
func (pd *PD) Raw() *libibverbs.Pd { return pd.raw }

// Close releases the domain; see ibv_dealloc_pd(3). While it has memory
// regions, buffers, memory windows, queues or parent domains, Close does
// nothing and returns a BusyError.
func (pd *PD) Close() error {
	return pd.self().Close(nil, func() error {
		if pd.imported {
			return wrap(pd.object.Name(), libibverbs.UnimportPd(pd.raw))
		}
		return wrap(pd.object.Name(), pd.device.unlessRemoved(libibverbs.DeallocPd(pd.raw)))
	})
}

// AllocParentDomain makes a parent domain of the protection domain; see
// ibv_alloc_parent_domain(3). It can be used as the protection domain itself,
// with whose regions its queue pairs work; if there is a thread domain, what is
// made on it needs no locks. td may be nil. C can also ask the program for the
// memory of queues; as that takes functions of C, this package does not offer
// it. A device without parent domains gives errors.ErrUnsupported.
func (pd *PD) AllocParentDomain(td *TD) (*PD, error) { return pd.allocParentDomain(td, 0) }

// AllocUnprotectedParentDomain is AllocParentDomain for a confidential guest
// whose devices cannot reach its protected memory: AllocBuf on the domain may
// give memory that is shared with the host, who can then read and change it, if
// the device has DeviceCCDMABounce. It needs rdma-core 64; without, the error is
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
	attr := libibverbs.ParentDomainInitAttr{Pd: pd.raw, CompMask: uint32(mask)}
	switch {
	case pd.parent != nil:
		return nil, cerr.Refuse(op, pd.object.Name(), "it is a parent domain itself; use a protection domain from AllocPD")
	case td != nil && td.device.raw != pd.device.raw:
		return nil, otherDevice(op, pd.object.Name(), td.self())
	case td != nil:
		attr.Td = td.raw
	}
	raw, err := libibverbs.AllocParentDomain(pd.device.raw, &attr)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	domain := &PD{device: pd.device, raw: raw, handle: raw.Handle, parent: pd}
	domain.object.Init(fmt.Sprintf("parent domain of %s", pd.object.Name()), parents...)
	return domain, nil
}

// Parent returns the protection domain that a parent domain was made of, nil
// for any other domain.
func (pd *PD) Parent() *PD { return pd.parent }

// root returns the domain that the device knows.
func (pd *PD) root() *libibverbs.Pd {
	if pd.parent != nil {
		return pd.parent.raw
	}
	return pd.raw
}
