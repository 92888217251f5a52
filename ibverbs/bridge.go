package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/object"
)

// init gives packages rdmacm and flow access to this package's internals.
func init() {
	bridge.RDMACM.DeviceFromRaw = func(raw *libibverbs.Context, closed func() error) any {
		d := &Device{raw: raw, vectors: int(raw.NumCompVectors), destroy: closed}
		d.object.InitUnlisted(cString(raw.Device.Name[:]))
		return d
	}
	bridge.RDMACM.CloseWhenUnused = func(device any) { device.(*Device).closeWhenUnused() }
	bridge.RDMACM.NewQP = func(
		pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error),
	) (any, error) {
		return pd.(*PD).newQP(config.(QPConfig), create)
	}
	bridge.RDMACM.ModifyQP = func(qp any, attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error {
		return qp.(*QP).modify(attr, mask)
	}
	bridge.RDMACM.QPAttr = func(raw *libibverbs.QpAttr) any { return qpAttrOf(raw) }
	bridge.RDMACM.AHAttr = func(raw *libibverbs.AhAttr) any { return ahAttrOf(raw) }
	bridge.RDMACM.RNRTimer = rnrTimerCode

	bridge.Flow.Object = func(o any) *object.Object { return o.(interface{ self() *object.Object }).self() }
	bridge.Flow.DeviceOfQP = func(qp any) any { return qp.(*QP).device }
	bridge.Flow.UnlessRemoved = func(device any, err error) error { return device.(*Device).unlessRemoved(err) }
	bridge.Flow.AdoptQP = func(of any, raw *libibverbs.Qp, parents ...*object.Object) any {
		pd := of.(*PD)
		qp := &QP{device: pd.device, pd: pd, raw: raw, destroy: func() error { return libibverbs.DestroyQp(raw) }}
		qp.init(parents...)
		return qp
	}
}
