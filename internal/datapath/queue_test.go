//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath_test

import (
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
	require.Zero(t, datapath.NewQueue(d.PlainCQ()).Fields)
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
	var wcs [1]libibverbs.Wc
	q := datapath.NewQueue(d.PlainCQ())
	var p datapath.Polled
	datapath.PollOrArm(q, 1, ptr(&wcs), false, &p)
	require.Equal(t, datapath.Polled{Value: -95, Step: datapath.Arming}, p)
	ops.PollCq = nil
	require.EqualValues(t, -95, poll(q, wcs[:]))
}

// libibverbs' stand-in for a missing ibv_poll_cq answers 95, which is not 95
// completions.
func TestPollWithoutProvider(t *testing.T) {
	d := fakeverbs.New()
	defer d.Close()
	wcs := make([]libibverbs.Wc, 100)
	q := datapath.NewQueue(d.PlainCQ())
	d.Set(fakeverbs.Script{PollError: 95})
	require.EqualValues(t, -95, poll(q, wcs))
	d.Set(fakeverbs.Script{Completions: 95})
	require.EqualValues(t, 95, poll(q, wcs))
}

func poll(q datapath.Queue, wcs []libibverbs.Wc) int64 {
	var p datapath.Polled
	datapath.Poll(q, len(wcs), ptr(&wcs[0]), &p)
	return p.Value
}

func ptr[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }
