// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/racing"
)

func (r *rig) wq() *flow.WQ {
	r.t.Helper()
	wq := keep(r.t, must(flow.CreateWQ(r.pd, flow.WQConfig{CQ: r.cq(), RecvQueue: 4}))(r.t))
	r.p.Forget()
	return wq
}

func TestCreateWQ(t *testing.T) {
	r := open(t)
	cq := r.cq()
	actual := libibverbs.WqInitAttr{MaxWr: 16, MaxSge: 3} // than asked for
	written := fakelib.Bytes(&actual)[unsafe.Offsetof(actual.MaxWr):unsafe.Offsetof(actual.Pd)]
	r.p.Next("ibv_create_wq", fakelib.Writes(1, unsafe.Offsetof(actual.MaxWr), written))
	wq := must(flow.CreateWQ(r.pd, flow.WQConfig{CQ: cq, RecvQueue: 9}))(t)
	call := r.p.Only("ibv_create_wq")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.WqInitAttr{
		WqType: libibverbs.IBV_WQT_RQ, MaxWr: 9, MaxSge: 1, Pd: r.pd.Raw(), Cq: cq.Raw(),
	}, *fakelib.Struct[libibverbs.WqInitAttr](call, 1))
	require.Equal(t, []any{16, 3, wq.Raw().WqNum, cq, r.pd}, []any{wq.RecvQueue(), wq.RecvSegments(), wq.Num(), wq.CQ(), wq.PD()})
	require.NotZero(t, wq.Num())

	flagged := must(flow.CreateWQ(r.pd, flow.WQConfig{
		CQ: cq, RecvQueue: 1, RecvSegments: 2, Flags: flow.WQCVLANStripping | flow.WQDelayDrop,
	}))(t)
	require.Equal(t, libibverbs.WqInitAttr{
		WqType: libibverbs.IBV_WQT_RQ, MaxWr: 1, MaxSge: 2, Pd: r.pd.Raw(), Cq: cq.Raw(), CompMask: 1, CreateFlags: 5,
	}, *fakelib.Struct[libibverbs.WqInitAttr](r.p.Only("ibv_create_wq"), 1))

	var busy *ibverbs.BusyError
	require.ErrorAs(t, cq.Close(), &busy)
	require.Len(t, busy.Children, 2)
	require.Empty(t, r.p.Names())
	for _, q := range []*flow.WQ{wq, flagged} {
		raw := address(q.Raw())
		r.p.Next("ibv_destroy_wq", fakelib.Returns(int64(syscall.EBUSY), 0))
		require.ErrorIs(t, q.Close(), syscall.EBUSY)
		require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_wq").Args())
		require.NoError(t, q.Close())
		require.NoError(t, q.Close())
		require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_wq").Args())
	}
}

func TestCreateWQFails(t *testing.T) {
	r := open(t)
	cq := r.cq()
	other := keep(t, must(ibverbs.Open(""))(t))
	otherCQ := keep(t, must(other.CreateCQ(ibverbs.CQConfig{CompQueue: 1}))(t))
	r.p.Forget()
	for name, config := range map[string]flow.WQConfig{
		"no receives":    {CQ: cq},
		"too many":       {CQ: cq, RecvQueue: 1 << 31},
		"segments":       {CQ: cq, RecvQueue: 1, RecvSegments: -1},
		"another device": {CQ: otherCQ, RecvQueue: 1},
	} {
		_, err := flow.CreateWQ(r.pd, config)
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "PD ", name)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_create_wq", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err := flow.CreateWQ(r.pd, flow.WQConfig{CQ: cq, RecvQueue: 1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestModifyWQ(t *testing.T) {
	r := open(t)
	wq := r.wq()
	require.Equal(t, flow.WQStateReset, must(wq.State())(t))
	for _, state := range []flow.WQState{flow.WQStateReady, flow.WQStateError, flow.WQStateReset} {
		require.NoError(t, wq.SetState(state))
		call := r.p.Only("ibv_modify_wq")
		require.Equal(t, address(wq.Raw()), call.Arg(0))
		require.Equal(t, libibverbs.WqAttr{AttrMask: 1, WqState: state}, *fakelib.Struct[libibverbs.WqAttr](call, 1))
		require.Equal(t, state, must(wq.State())(t))
	}
	require.NoError(t, wq.SetFlags(flow.WQScatterFCS, flow.WQScatterFCS|flow.WQCVLANStripping))
	require.Equal(t, libibverbs.WqAttr{AttrMask: 4, Flags: 2, FlagsMask: 3},
		*fakelib.Struct[libibverbs.WqAttr](r.p.Only("ibv_modify_wq"), 1))

	r.p.Next("ibv_modify_wq", fakelib.Returns(int64(syscall.EINVAL), 0))
	err := wq.SetState(flow.WQStateReady)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "ibv_modify_wq (WQ ")
	require.Equal(t, flow.WQStateReset, must(wq.State())(t))
}

func TestPostToWQ(t *testing.T) {
	r := open(t)
	wq := r.wq()
	mr := keep(t, must(r.pd.Alloc(64, ibverbs.AccessLocalWrite))(t))
	batch := must(ibverbs.NewRecvBatch(2, 2))(t)
	require.Zero(t, must(wq.PostRecv(batch))(t))
	require.NoError(t, batch.Recv(1, mr.Sub(0, 8), mr.Sub(8, 16)))
	require.NoError(t, batch.Recv(2, mr.Sub(32, 4)))
	r.p.Forget()
	require.Equal(t, 2, must(wq.PostRecv(batch))(t))
	call := r.p.Only("ibv_post_wq_recv")
	require.Equal(t, address(wq.Raw()), call.Arg(0))
	first := uintptr(call.Arg(1))
	requireRecvs(t, call, mr)

	bad := first + unsafe.Sizeof(libibverbs.RecvWr{})
	r.p.Next("ibv_post_wq_recv", fakelib.Returns(int64(syscall.ENOMEM), 0), fakelib.Writes(2, 0, fakelib.Bytes(&bad)))
	n, err := wq.PostRecv(batch)
	var post *ibverbs.PostError
	require.ErrorAs(t, err, &post)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Equal(t, []any{1, 1, uint64(2)}, []any{n, post.Index, post.ID})

	_, err = wq.PostRecv(nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	if !racing.Enabled { // C may call Go under the race detector, so arguments are allocated
		require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = wq.PostRecv(batch) }))
	}
}
