package rdmacm

import (
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
)

func deviceFromRaw(raw *libibverbs.Context, closed func() error) *ibverbs.Device {
	return bridge.RDMACM.DeviceFromRaw(raw, closed).(*ibverbs.Device)
}

func closeWhenUnused(device *ibverbs.Device) { bridge.RDMACM.CloseWhenUnused(device) }

func newQP(
	pd *ibverbs.PD, config ibverbs.QPConfig, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error),
) (*ibverbs.QP, error) {
	qp, err := bridge.RDMACM.NewQP(pd, config, create)
	if err != nil {
		return nil, err
	}
	return qp.(*ibverbs.QP), nil
}

func modifyQP(qp *ibverbs.QP, attr *libibverbs.QpAttr, mask ibverbs.QPAttrMask) error {
	return bridge.RDMACM.ModifyQP(qp, attr, mask)
}

func qpAttrOf(raw *libibverbs.QpAttr) ibverbs.QPAttr {
	return bridge.RDMACM.QPAttr(raw).(ibverbs.QPAttr)
}

func ahAttrOf(raw *libibverbs.AhAttr) ibverbs.AHAttr {
	return bridge.RDMACM.AHAttr(raw).(ibverbs.AHAttr)
}

func rnrTimerCode(d time.Duration) (uint8, error) { return bridge.RDMACM.RNRTimer(d) }
