// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// deep calls f with so much of the stack in use.
func deep(frames int, f func()) byte {
	var frame [64]byte
	if frames == 0 {
		f()
		return 0
	}
	frame[frames%len(frame)] = 1
	return deep(frames-1, f) + frame[0]
}

// A program's contexts need not be pointers, and come back as they were,
// however deep the stack is.
func TestContextsAreNumbers(t *testing.T) {
	list, _, err := libibverbs.GetDeviceList()
	require.NoError(t, err)
	device, err := libibverbs.OpenDevice(*list)
	require.NoError(t, err)
	libibverbs.FreeDeviceList(list)
	pd, err := libibverbs.AllocPd(device)
	require.NoError(t, err)
	const number = 1
	cqAttr, qpAttr, qpExAttr := alloc[libibverbs.CqInitAttrEx](), alloc[libibverbs.QpInitAttr](), alloc[libibverbs.QpInitAttrEx]()
	srqAttr, srqExAttr, got := alloc[libibverbs.SrqInitAttr](), alloc[libibverbs.SrqInitAttrEx](), alloc[libibverbs.QpInitAttr]()
	all := []*unsafe.Pointer{&cqAttr.CqContext, &qpAttr.QpContext, &qpExAttr.QpContext, &srqAttr.SrqContext, &srqExAttr.SrqContext}
	for _, context := range all {
		setContext(context, number)
	}
	cqAttr.Cqe = 1
	srqAttr.Attr.MaxWr, srqExAttr.Attr.MaxWr, srqExAttr.CompMask, srqExAttr.Pd = 1, 1, libibverbs.IBV_SRQ_INIT_ATTR_PD, pd
	qpAttr.QpType, qpExAttr.QpType, qpExAttr.CompMask, qpExAttr.Pd = libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_RC, libibverbs.IBV_QP_INIT_ATTR_PD, pd
	cq, err := libibverbs.CreateCqEx(device, cqAttr)
	require.NoError(t, err)
	queue := (*libibverbs.Cq)(unsafe.Pointer(cq))
	qpAttr.SendCq, qpAttr.RecvCq, qpExAttr.SendCq, qpExAttr.RecvCq = queue, queue, queue, queue
	for name, call := range map[string]func() (made *unsafe.Pointer, destroy func() error){
		"ibv_create_cq_ex": func() (*unsafe.Pointer, func() error) {
			cq, err := libibverbs.CreateCqEx(device, cqAttr)
			require.NoError(t, err)
			return &cq.CqContext, func() error { return libibverbs.DestroyCq((*libibverbs.Cq)(unsafe.Pointer(cq))) }
		},
		"ibv_create_qp": func() (*unsafe.Pointer, func() error) {
			qp, err := libibverbs.CreateQp(pd, qpAttr)
			require.NoError(t, err)
			return &qp.QpContext, func() error { return libibverbs.DestroyQp(qp) }
		},
		"ibv_create_qp_ex": func() (*unsafe.Pointer, func() error) {
			qp, err := libibverbs.CreateQpEx(device, qpExAttr)
			require.NoError(t, err)
			return &qp.QpContext, func() error { return libibverbs.DestroyQp(qp) }
		},
		"ibv_create_srq": func() (*unsafe.Pointer, func() error) {
			srq, err := libibverbs.CreateSrq(pd, srqAttr)
			require.NoError(t, err)
			return &srq.SrqContext, func() error { return libibverbs.DestroySrq(srq) }
		},
		"ibv_create_srq_ex": func() (*unsafe.Pointer, func() error) {
			srq, err := libibverbs.CreateSrqEx(device, srqExAttr)
			require.NoError(t, err)
			return &srq.SrqContext, func() error { return libibverbs.DestroySrq(srq) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			for frames := range 400 { // some leave too little for a call's own frames
				var made *unsafe.Pointer
				var destroy func() error
				done := make(chan struct{})
				go func() {
					defer close(done)
					deep(frames, func() { made, destroy = call() })
				}()
				<-done
				require.EqualValues(t, number, contextOf(made))
				require.NoError(t, destroy())
			}
		})
	}
	qp, err := libibverbs.CreateQp(pd, qpAttr)
	require.NoError(t, err)
	var attr libibverbs.QpAttr
	setContext(&got.QpContext, 0)
	require.NoError(t, libibverbs.QueryQp(qp, &attr, 0, got))
	require.EqualValues(t, number, contextOf(&got.QpContext))
	require.NoError(t, libibverbs.DestroyQp(qp))
	require.NoError(t, libibverbs.DestroyCq(queue))
	require.NoError(t, libibverbs.DeallocPd(pd))
	require.NoError(t, libibverbs.CloseDevice(device))
}
