// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"net/netip"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// objects are real ones, of the low-level bindings, for calls to be made with.
type objects struct {
	address netip.Addr
	context *verbs.Context
	pd      *verbs.Pd
	qp      *verbs.Qp
	channel *cm.EventChannel
	id      *cm.CmId // on channel

	memory unsafe.Pointer // from ibv_alloc_buf, with its handle
	buf    *verbs.Buf
}

func newObjects(t *testing.T) *objects {
	t.Helper()
	d := testdevice.Require(t)
	o := &objects{address: d.IPv4}
	list, n, err := verbs.GetDeviceList()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	o.context, err = verbs.OpenDevice(*list)
	require.NoError(t, err)
	closed(t, func() error { return verbs.CloseDevice(o.context) })
	require.NoError(t, verbs.FreeDeviceList(list))
	o.pd, err = verbs.AllocPd(o.context)
	require.NoError(t, err)
	closed(t, func() error { return verbs.DeallocPd(o.pd) })
	cq, err := verbs.CreateCq(o.context, 16, nil, nil, 0)
	require.NoError(t, err)
	closed(t, func() error { return verbs.DestroyCq(cq) })
	attr := verbs.QpInitAttr{
		SendCq: cq, RecvCq: cq, QpType: verbs.IBV_QPT_RC,
		Cap: verbs.QpCap{MaxSendWr: 1, MaxRecvWr: 1, MaxSendSge: 1, MaxRecvSge: 1},
	}
	o.qp, err = verbs.CreateQp(o.pd, &attr)
	require.NoError(t, err)
	closed(t, func() error { return verbs.DestroyQp(o.qp) })

	o.channel, err = cm.CreateEventChannel()
	require.NoError(t, err)
	closed(t, func() error { return cm.DestroyEventChannel(o.channel) })
	o.id, err = cm.CreateId(o.channel, nil, cm.RDMA_PS_TCP)
	require.NoError(t, err)
	closed(t, func() error { return cm.DestroyId(o.id) })
	return o
}

// closed closes an object when the test ends.
func closed(t *testing.T, closeObject func() error) {
	t.Cleanup(func() { require.NoError(t, closeObject()) })
}
