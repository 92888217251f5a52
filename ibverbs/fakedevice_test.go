// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

const (
	fakeFields = libibverbs.IBV_CREATE_CQ_SUP_WC_FLAGS
	fakeOps    = libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE<<1 - 1 // all
)

// fakeDevice is a queue pair and a completion queue of no device.
type fakeDevice struct {
	*fakeverbs.Device
	qp     *QP // without ibv_wr_*
	ex     *QP // the same one with ibv_wr_*
	cq     *CQ // without CQConfig.Fields
	fields *CQ // the same one with all of them
}

func newFakeDevice(t testing.TB) *fakeDevice {
	t.Helper()
	d := fakeverbs.New()
	t.Cleanup(d.Close)
	f := &fakeDevice{
		Device: d,
		qp:     &QP{raw: &d.QP().QpBase},
		ex:     &QP{raw: &d.QP().QpBase, ex: d.QP(), sendOps: fakeOps},
		cq:     newFakeCQ(d, datapath.NewQueue(d.PlainCQ())),
		fields: newFakeCQ(d, datapath.NewQueueEx(d.CQ(), fakeFields)),
	}
	f.qp.object.InitUnlisted("fake QP")
	f.ex.object.InitUnlisted("fake QP")
	return f
}

func newFakeCQ(d *fakeverbs.Device, queue datapath.Queue) *CQ {
	cq := &CQ{raw: d.PlainCQ(), queue: queue, turn: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
	cq.object.InitUnlisted("fake CQ")
	return cq
}

// filled returns a batch of n sends of 64 bytes.
func filled(t testing.TB, mr *MR, n int) *SendBatch {
	t.Helper()
	b, err := NewSendBatch(n, 1)
	require.NoError(t, err)
	for i := range n {
		require.NoError(t, b.Send(uint64(i), SendSignaled, mr.Sub(0, 64)))
	}
	return b
}
