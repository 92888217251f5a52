// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

func TestDeviceAttr(t *testing.T) {
	d := newNode(t, 3)
	a, err := d.Attr()
	require.NoError(t, err)
	o := a.OrigAttr
	require.EqualValues(t, 3, o.NodeGuid.Host())
	require.Equal(t, o.NodeGuid, o.SysImageGuid)
	require.Equal(t, int32(1<<16), o.MaxQp)
	require.Equal(t, [...]int32{maxWR, maxSGE, maxSGE, maxCQE}, [...]int32{o.MaxQpWr, o.MaxSge, o.MaxSrqSge, o.MaxCqe})
	require.EqualValues(t, 1, o.PhysPortCnt)
	require.NotZero(t, o.DeviceCapFlags&libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B)
	require.Equal(t, uint64(o.DeviceCapFlags)|capFlushGlobal|capAtomicWrite, a.DeviceCapFlagsEx)

	most, err := New(Config{QPNs: 1 << 24}).Attr()
	require.NoError(t, err)
	require.Positive(t, most.OrigAttr.MaxResRdAtom)
	some, err := New(Config{}).Attr()
	require.NoError(t, err)
	require.Positive(t, some.OrigAttr.MaxQp)
}

// objects makes one of everything.
type objects struct {
	pd            *PD
	mr            *MR
	mw            *MW
	cq            *CQ
	srq           *SRQ
	qp, onSRQ, ud *QP
	ah            *AH
}

func (d *node) objects() objects {
	o := objects{pd: d.pd(), cq: d.cq(100)}
	var err error
	o.mr = d.memory(o.pd, 4096, allAccess)
	o.mw, err = o.pd.AllocMW(libibverbs.IBV_MW_TYPE_2)
	require.NoError(d.t, err)
	o.srq = d.srq(o.pd, 8)
	o.qp = d.qp(o.pd, libibverbs.IBV_QPT_RC, o.cq, o.cq, nil)
	o.onSRQ = d.qp(o.pd, libibverbs.IBV_QPT_RC, o.cq, o.cq, o.srq)
	o.ud = d.qp(o.pd, libibverbs.IBV_QPT_UD, o.cq, o.cq, nil)
	o.ah, err = o.pd.CreateAH(ahAttr(2))
	require.NoError(d.t, err)
	return o
}

// destroy removes the objects, and finds each busy before.
func (o objects) destroy(t *testing.T) {
	require.ErrorIs(t, o.pd.Destroy(), syscall.EBUSY)
	require.ErrorIs(t, o.cq.Destroy(), syscall.EBUSY)
	require.ErrorIs(t, o.srq.Destroy(), syscall.EBUSY)
	for _, q := range []*QP{o.qp, o.onSRQ, o.ud} {
		require.NoError(t, q.Destroy())
	}
	require.NoError(t, o.cq.Destroy())
	require.NoError(t, o.srq.Destroy())
	require.NoError(t, o.mw.Dealloc())
	require.NoError(t, o.ah.Destroy())
	require.ErrorIs(t, o.pd.Destroy(), syscall.EBUSY)
	require.NoError(t, o.mr.Deregister())
	require.NoError(t, o.pd.Destroy())
}

// requireEmpty checks that nothing is left of the objects of a device.
func requireEmpty(t testing.TB, d *Device) {
	require.Equal(t, Never, d.Advance(d.now))
	require.Zero(t, d.pds+d.cqs+d.srqs)
	for name, n := range map[string]int{
		"qps": len(d.qps), "mrs": len(d.mrs), "mws": len(d.mws), "ahs": len(d.ahs),
		"groups": len(d.groups), "moderated": len(d.moderated), "failing": len(d.failing),
	} {
		require.Zero(t, n, name)
	}
}

func TestNothingStays(t *testing.T) {
	d := newNode(t, 1)
	for range 3 {
		o := d.objects()
		d.connect(o.qp, 2, 2<<16)
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, o.mw, o.mr, 0, 10, libibverbs.IBV_ACCESS_REMOTE_READ))
		o.destroy(t)
		requireEmpty(t, d.Device)
	}
	d.requireEvents()
}

func TestRemove(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	d.connect(o.onSRQ, 2, 2<<16)
	d.datagrams(o.ud, 1)
	require.NoError(t, o.ud.Attach(groupGID))

	d.Remove()
	d.Remove()
	d.requireEvents(
		AsyncEvent{libibverbs.IBV_EVENT_DEVICE_FATAL, nil}, AsyncEvent{libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, o.onSRQ},
	)
	require.Equal(t, uint32(libibverbs.IBV_QPS_ERR), o.ud.send.State)
	require.Equal(t, uint32(libibverbs.IBV_QPS_RESET), o.qp.send.State)
	require.True(t, d.down)
	d.SetPort(true)
	require.True(t, d.down)

	for name, err := range map[string]error{
		"Attr":       second(d.Attr()),
		"PortAttr":   second(d.PortAttr(1)),
		"GID":        second(d.GID(1, 0)),
		"GIDs":       second(d.GIDs()),
		"SetGID":     d.SetGID(1, GIDEntry{GID: testGID(9)}),
		"PKey":       second(d.PKey(1, 0)),
		"CreatePD":   second(d.CreatePD()),
		"RegisterMR": second(o.pd.RegisterMR(make([]byte, 1), 0, libibverbs.IBV_ACCESS_ZERO_BASED)),
		"Rereg":      o.mr.Rereg(libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, nil, 0, 0),
		"AllocMW":    second(o.pd.AllocMW(libibverbs.IBV_MW_TYPE_1)),
		"CreateCQ":   second(d.CreateCQ(newCompletions(1))),
		"Resize":     o.cq.Resize(nil, 1, 1),
		"Moderate":   o.cq.Moderate(libibverbs.ModerateCq{}),
		"CreateSRQ":  second(o.pd.CreateSRQ(srqAttr(1), newRecvQueue(1, 1), nil, nil)),
		"SRQ.Attr":   second(o.srq.Attr()),
		"SRQ.Modify": o.srq.Modify(libibverbs.SrqAttr{}, libibverbs.IBV_SRQ_LIMIT, nil, 0),
		"CreateAH":   second(o.pd.CreateAH(ahAttr(2))),
		"CreateQP":   second(o.pd.CreateQP(QPConfig{})),
		"QP.Attr":    second(o.qp.Attr()),
		"QP.Modify":  o.qp.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE),
		"Attach":     o.ud.Attach(groupGID),
	} {
		require.ErrorIs(t, err, syscall.EIO, name)
	}
	require.NoError(t, o.ud.Detach(groupGID))
	o.destroy(t)
	requireEmpty(t, d.Device)
}

// A device without functions for its output works.
func TestNoListeners(t *testing.T) {
	d := New(Config{})
	require.NoError(t, d.SetGID(0, GIDEntry{GID: testGID(1)}))
	cq, err := d.CreateCQ(newCompletions(1))
	require.NoError(t, err)
	cq.ring.Armed = ArmedNext
	cq.add(&Completion{}, dependency{})
	require.Zero(t, cq.ring.Armed)
}

func second[T any](_ T, err error) error { return err }
