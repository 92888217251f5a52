// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/object"
)

// init gives package rdmacm, and those in the directories below, access to this
// package's internals.
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
		if err := config.(QPConfig).notDriver(pd.(*PD)); err != nil {
			return nil, err
		}
		return pd.(*PD).newQP(config.(QPConfig), create)
	}
	bridge.RDMACM.ModifyQP = func(qp any, attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error {
		return qp.(*QP).modify(attr, mask)
	}
	bridge.RDMACM.SetHint = setHint
	bridge.RDMACM.QPAttr = func(raw *libibverbs.QpAttr) any { return qpAttrOf(raw) }
	bridge.RDMACM.AHAttr = func(raw *libibverbs.AhAttr) any { return ahAttrOf(raw) }
	bridge.RDMACM.RNRTimer = rnrTimerCode
	bridge.RDMACM.CheckRecv = func(segments any) error { return checkRecv(*segments.(*[]Segment)) }
	bridge.RDMACM.Fill = func(segments any, data []byte) error { return fillRecv(*segments.(*[]Segment), data) }
	bridge.RDMACM.MarkBatch = func(batch any, id, last uint64, signaled bool) bool {
		return batch.(*SendBatch).mark(id, last, signaled)
	}

	bridge.Sibling.Object = func(o any) *object.Object { return o.(interface{ self() *object.Object }).self() }
	bridge.Sibling.DeviceOf = func(o any) any {
		if cq, ok := o.(*CQ); ok {
			return cq.device
		}
		return o.(*QP).device
	}
	bridge.Sibling.UnlessRemoved = func(device any, err error) error { return device.(*Device).unlessRemoved(err) }
	bridge.Sibling.CheckRemote = func(remote any, bytes uint64) error { return remote.(RemoteBuffer).takes(bytes) }

	bridge.Flow.AdoptQP = func(of any, raw *libibverbs.Qp, parents ...*object.Object) any {
		pd := of.(*PD)
		qp := &QP{device: pd.device, pd: pd, raw: raw, destroy: func() error { return libibverbs.DestroyQp(raw) }}
		qp.init(parents...)
		return qp
	}
	bridge.Flow.RegisterWQ = func(raw *libibverbs.Wq, wq any) { register(unsafe.Pointer(raw), wq) }
	bridge.Flow.UnregisterWQ = func(raw *libibverbs.Wq) { unregister(unsafe.Pointer(raw)) }
	bridge.Flow.ForgetWQ = func(device, wq any, num uint32) { device.(*Device).forgetEvents(wq, EventClassWQ, num) }
	bridge.Flow.PostRecv = func(
		batch any, to *object.Object, post func(*libibverbs.RecvWr) (*libibverbs.RecvWr, error),
	) (int, error) {
		return batch.(*RecvBatch).post(to, post)
	}

	bridge.DevMem.AccessProblem = accessProblem
	bridge.DevMem.NewMR = func(pd any, raw *libibverbs.Mr, access AccessFlags, size int, parent *object.Object) any {
		return newMR(raw, region{pd: pd.(*PD), access: access, size: size}, parent)
	}
	bridge.DevMem.NewHostMR = func(
		of any, op string, memory []byte, access AccessFlags, parent *object.Object, register func() (*libibverbs.Mr, error),
	) (any, error) {
		pd := of.(*PD)
		r := region{pd: pd, access: access, bytes: memory, start: addressOf(memory), size: len(memory)}
		if err := pd.checkHost(op, &r, r.start); err != nil {
			return nil, err
		}
		raw, err := register()
		if err != nil {
			return nil, err
		}
		return newMR(raw, r, parent), nil
	}
	bridge.DevMem.WithDMAHandle = func(handle *object.Object, device any, raw *libibverbs.Dmah) any {
		h := &dmaHandle{object: handle, device: device.(*Device), raw: raw}
		return RegisterOption(func(o *registerOptions) { o.handle = h })
	}

	bridge.Share.NewDevice = func(raw *libibverbs.Context) any { return openedContext(raw, cString(raw.Device.Name[:])) }
	bridge.Share.NewPD = func(on any, raw *libibverbs.Pd) any {
		d := on.(*Device)
		pd := &PD{device: d, raw: raw, imported: true}
		pd.object.Init(fmt.Sprintf("imported PD %d of %s", raw.Handle, d.Name()), &d.object)
		return pd
	}
	bridge.Share.NewMR = func(of any, raw *libibverbs.Mr, addr uint64, size int) any {
		pd := of.(*PD)
		mr := &MR{raw: raw, region: region{pd: pd, start: addr, size: size, lkey: raw.Lkey, rkey: raw.Rkey}}
		mr.itself = mr
		mr.object.Init(fmt.Sprintf("imported MR %#x of %s", raw.Lkey, pd.device.Name()), &pd.object)
		return mr
	}

	bridge.Vendor.NewQP = func(
		pd, config any, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error),
	) (any, error) {
		return pd.(*PD).newQP(config.(QPConfig), create)
	}
	bridge.Vendor.Place = func(of any, toWrite bool) ([]libibverbs.Sge, error) {
		segments := of.([]Segment)
		sges := make([]libibverbs.Sge, len(segments))
		for k := range segments {
			if err := segments[k].check(); err != nil {
				return nil, inSegment(k, err)
			}
			sges[k] = segments[k].sge()
		}
		if toWrite {
			return sges, written(segments)
		}
		return sges, nil
	}

	bridge.Tag.NewBatch = func(operations, segments int) ([]libibverbs.OpsWr, any, error) {
		a, err := newArena[libibverbs.OpsWr](operations, segments)
		if err != nil {
			return nil, nil, err
		}
		return a.wrs, a, nil
	}
	bridge.Tag.Place = func(batch any, i int, of any) ([]libibverbs.Sge, error) {
		a, segments := batch.(*arena[libibverbs.OpsWr]), *of.(*[]Segment)
		if err := a.check(segments, false); err != nil {
			return nil, err
		}
		if err := written(segments); err != nil {
			return nil, err
		}
		sges := a.place(i)[:len(segments)]
		for k := range segments {
			sges[k] = segments[k].sge()
		}
		return sges, nil
	}
	bridge.Tag.Position = position[libibverbs.OpsWr]
	bridge.Tag.SRQType = func(srq any) libibverbs.SrqType { return srq.(*SRQ).srqType }
}
