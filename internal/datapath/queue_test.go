// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// Only Soft-RoCE's completions are read one by one: a queue without functions,
// or with those of another library, is not taken for its.
func TestNewQueueEx(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	const extended, opcode, wcFlags = 1 << 63, 1 << 61, 1 << 60
	fields := libibverbs.IBV_WC_EX_WITH_BYTE_LEN
	require.Equal(t, extended|opcode|wcFlags|uint64(fields), datapath.NewQueueEx(d.CQ(), fields).Fields)
	d.CQ().StartPoll, d.CQ().ReadByteLen = nil, nil
	require.Equal(t, uint64(extended|opcode|wcFlags), datapath.NewQueueEx(d.CQ(), fields).Fields)
	d.CQ().ReadOpcode, d.CQ().ReadWcFlags = nil, nil
	require.Equal(t, uint64(extended), datapath.NewQueueEx(d.CQ(), 0).Fields)
	require.Equal(t, "ibv_start_poll", datapath.NewQueueEx(d.CQ(), 0).Op())
	require.Zero(t, datapath.NewQueue(d.PlainCQ()).Fields)
	require.Equal(t, "ibv_poll_cq", datapath.NewQueue(d.PlainCQ()).Op())
}

// A provider may lack what libibverbs calls without asking.
func TestMissingOperations(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	ops := &d.PlainCQ().Context.Ops
	var wr libibverbs.SendWr
	var recv libibverbs.RecvWr
	ops.PostSend, ops.PostRecv, ops.ReqNotifyCq = nil, nil, nil
	qp := d.QP()
	var sent, received datapath.Posted
	datapath.PostSend(ptr(qp), 0, &wr, &sent)
	datapath.PostRecv(&qp.QpBase, &recv, &received)
	require.EqualValues(t, 95, sent.Value)
	require.EqualValues(t, 95, received.Value)
	var wcs [1]datapath.WC
	q := datapath.NewQueue(d.PlainCQ())
	var p datapath.Polled
	datapath.PollOrArm(q, 1, ptr(&wcs), false, false, &p)
	require.Equal(t, datapath.Polled{Value: -95, Step: datapath.Arming}, p)
	ops.PollCq = nil
	require.EqualValues(t, -95, poll(q, wcs[:]))
}

// libibverbs' stand-in for a missing ibv_poll_cq answers 95, which is not 95
// completions.
func TestPollWithoutProvider(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	wcs := make([]datapath.WC, 100)
	q := datapath.NewQueue(d.PlainCQ())
	d.Set(fakeverbs.Script{PollError: 95})
	require.EqualValues(t, -95, poll(q, wcs))
	d.Set(fakeverbs.Script{Completions: 95})
	require.EqualValues(t, 95, poll(q, wcs))
	for i, wc := range wcs[:95] {
		require.EqualValues(t, i, wc.WrId)
	}
}

// A provider that says that it has written more than there is room for has
// not: nothing behind the room is touched.
func TestPollBeyondRoom(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	wcs := make([]datapath.WC, 8)
	for i := range wcs {
		wcs[i].WrId, wcs[i].SLID = uint64(i), 1
	}
	d.Set(fakeverbs.Script{PollError: 8})
	before := slices.Clone(wcs)
	require.EqualValues(t, 8, poll(datapath.NewQueue(d.PlainCQ()), wcs[:4]))
	require.Equal(t, before, wcs)
}

func poll(q datapath.Queue, wcs []datapath.WC) int64 {
	var p datapath.Polled
	datapath.Poll(q, len(wcs), ptr(&wcs[0]), &p)
	return p.Value
}

func ptr[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }
