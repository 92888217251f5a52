package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/object"
)

// What package flow needs of this one's inside.
func init() {
	bridge.Flow.Object = func(o any) *object.Object { return o.(interface{ self() *object.Object }).self() }
	bridge.Flow.DeviceOfQP = func(qp any) any { return qp.(*QP).device }
	bridge.Flow.SameDevice = sameDevice
	bridge.Flow.UnlessRemoved = func(device any, err error) error { return device.(*Device).unlessRemoved(err) }
	bridge.Flow.AdoptQP = func(of any, raw *libibverbs.Qp, parents ...*object.Object) any {
		pd := of.(*PD)
		qp := &QP{device: pd.device, pd: pd, raw: raw, destroy: func() error { return libibverbs.DestroyQp(raw) }}
		qp.init(parents...)
		return qp
	}
}
