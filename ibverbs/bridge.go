package ibverbs

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
)

func init() {
	bridge.DeviceFromRaw = func(raw *libibverbs.Context, closed func() error) any {
		d := &Device{raw: raw, vectors: int(raw.NumCompVectors), destroy: closed}
		d.object.InitUnlisted(cString(raw.Device.Name[:]))
		return d
	}
	bridge.CloseWhenUnused = func(device any) { device.(*Device).closeWhenUnused() }
	bridge.NewQP = func(
		pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error),
	) (any, error) {
		return pd.(*PD).newQP(config.(QPConfig), create)
	}
	bridge.ModifyQP = func(qp any, attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error {
		return qp.(*QP).modify(attr, mask)
	}
	bridge.QPAttr = func(raw *libibverbs.QpAttr) any { return qpAttrOf(raw) }
	bridge.AHAttr = func(raw *libibverbs.AhAttr) any { return ahAttrOf(raw) }
	bridge.RNRTimer = rnrTimerCode
}
