package rdmacm

import (
	"context"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/object"
)

// init gives packages endpoint, handled and ib access to this package's
// internals.
func init() {
	bridge.Dispatch.Object = func(id any) *object.Object { return id.(*ID).self() }
	bridge.Dispatch.New = newDispatched
	bridge.Dispatch.NewXRC = func(info any) (bridge.DispatchedID, error) { return newDispatchedXRC(info.(AddrInfo)) }
	bridge.Dispatch.Take = func(id any, to bridge.Sink) (bridge.DispatchedID, error) { return takeOver(id.(*ID), to) }

	bridge.IB.Bind = func(id, addr any) error { return id.(*ID).bindIB(addr.(IBAddr)) }
	bridge.IB.Resolve = func(id, src, dst any, timeout time.Duration) error {
		return id.(*ID).resolveIB(src.(*IBAddr), dst.(IBAddr), timeout)
	}
	bridge.IB.SetPaths = func(id, paths any) error { return id.(*ID).setIBPaths(paths.([]IBPath)) }
	bridge.IB.Join = func(id, group, flags, value any) error {
		return id.(*ID).joinIB(group.(IBAddr), flags.(JoinFlags), value)
	}
	bridge.IB.Leave = func(id, group any) error { return id.(*ID).leaveIB(group.(IBAddr)) }
	bridge.IB.LocalAddr = func(id any) any { return address(id.(*ID), librdmacm.GetLocalAddr, ibAddr) }
	bridge.IB.RemoteAddr = func(id any) any { return address(id.(*ID), librdmacm.GetPeerAddr, ibAddr) }
	bridge.IB.JoinGroup = func(ctx context.Context, group, config any) (any, error) {
		return joinGroupIB(ctx, group.(IBAddr), config.(*GroupConfig))
	}
}

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

// markBatch gives all requests of a batch an ID, and the last one, which is the only one that may be signaled, another. It
// reports whether any fetches: is a read or an atomic operation.
func markBatch(b *ibverbs.SendBatch, id, last uint64, signaled bool) (fetches bool) {
	return bridge.RDMACM.MarkBatch(b, id, last, signaled)
}

// checkRecv returns an error if a message cannot be copied to the segments.
func checkRecv(segments *[]ibverbs.Segment) error { return bridge.RDMACM.CheckRecv(segments) }

// fill copies a message to segments.
func fill(segments *[]ibverbs.Segment, data []byte) error { return bridge.RDMACM.Fill(segments, data) }

func rnrTimerCode(d time.Duration) (uint8, error) { return bridge.RDMACM.RNRTimer(d) }
