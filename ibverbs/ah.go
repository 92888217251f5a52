package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// AHAttr is a path to a port.
type AHAttr struct {
	Port      int // of this device, from 1
	SGIDIndex int // of the source, in the port's GID table
	DGID      GID // the destination
	HopLimit  uint8
}

// AH is an address handle: the way of datagrams to a port.
type AH struct {
	object object.Object
	raw    *libibverbs.Ah
}

// CreateAH makes an address handle; see ibv_create_ah(3).
func (pd *PD) CreateAH(a AHAttr) (*AH, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	attr := libibverbs.AhAttr{
		PortNum: uint8(a.Port), IsGlobal: 1,
		Grh: libibverbs.GlobalRoute{SgidIndex: uint8(a.SGIDIndex), HopLimit: a.HopLimit},
	}
	*attr.Grh.Dgid.Raw() = a.DGID
	raw, err := libibverbs.CreateAh(pd.raw, &attr)
	if err != nil {
		return nil, cerr.Wrap(pd.object.Name(), err)
	}
	ah := &AH{raw: raw}
	ah.object.Init(fmt.Sprintf("AH %d of %s", raw.Handle, pd.context.Name()), &pd.object)
	return ah, nil
}

func (ah *AH) self() *object.Object {
	if ah == nil {
		return nil
	}
	return &ah.object
}

// Raw returns the C object, which is valid until Close.
func (ah *AH) Raw() *libibverbs.Ah { return ah.raw }

// Close destroys the handle; see ibv_destroy_ah(3).
func (ah *AH) Close() error {
	return ah.self().Close(nil, func() error { return cerr.Wrap(ah.object.Name(), libibverbs.DestroyAh(ah.raw)) })
}
