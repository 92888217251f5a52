// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// limitedTo runs the calling test alone in a process whose device has limits,
// and reports whether this is that process.
func limitedTo(t *testing.T, limits string) bool {
	t.Helper()
	if os.Getenv(node.LimitsVariable) == limits {
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
	cmd.Env = append(os.Environ(), node.LimitsVariable+"="+limits)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}

// post posts a request with segments that are all the same.
func (r *rig) post(qp *libibverbs.Qp, op libibverbs.WrOpcode, flags libibverbs.SendFlags, segments int32) syscall.Errno {
	sges := allocMemory(uint64(max(segments, 1)), 16)
	defer freeMemory(sges)
	for i := range segments {
		(*[8]libibverbs.Sge)(sges)[i] = r.part(0, 8)
	}
	*r.send = libibverbs.SendWr{Opcode: op, SendFlags: flags, SgList: (*libibverbs.Sge)(sges), NumSge: segments}
	var bad *libibverbs.SendWr
	return errno(libibverbs.PostSend(qp, r.send, &bad))
}

// withSegments returns a queue pair whose requests may have n segments.
func (r *rig) withSegments(cq *libibverbs.Cq, n uint32) *libibverbs.Qp {
	attr := alloc[libibverbs.QpInitAttr]()
	defer free(attr)
	attr.SendCq, attr.RecvCq, attr.QpType = cq, cq, libibverbs.IBV_QPT_RC
	attr.Cap = libibverbs.QpCap{MaxSendWr: 32, MaxSendSge: n}
	qp, err := libibverbs.CreateQp(r.pd, attr)
	require.NoError(r.t, err)
	return qp
}

// Posting beyond the limits fails at once, and what is within them is posted.
func TestPostBeyondLimits(t *testing.T) {
	if !limitedTo(t, "sge=4,read-sge=1,inline=16,atomics=0,imm=0,mws=0") {
		return
	}
	r := newRig(t)
	qp := r.withSegments(r.cq(64), 4)
	r.ready(qp, qp.QpNum)
	const inline = libibverbs.IBV_SEND_INLINE
	for name, tt := range map[string]struct {
		op       libibverbs.WrOpcode
		flags    libibverbs.SendFlags
		segments int32
		want     syscall.Errno
	}{
		"read":             {libibverbs.IBV_WR_RDMA_READ, 0, 1, 0},
		"read into two":    {libibverbs.IBV_WR_RDMA_READ, 0, 2, syscall.EINVAL},
		"inline":           {libibverbs.IBV_WR_SEND, inline, 1, 0},
		"too much inline":  {libibverbs.IBV_WR_SEND, inline, 3, syscall.EINVAL},
		"atomic":           {libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, syscall.EINVAL},
		"swap":             {libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, 0, 1, syscall.EINVAL},
		"immediate, write": {libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1, syscall.EINVAL},
		"immediate, send":  {libibverbs.IBV_WR_SEND_WITH_IMM, 0, 1, syscall.EINVAL},
		"invalidation":     {libibverbs.IBV_WR_LOCAL_INV, 0, 0, syscall.EINVAL},
	} {
		require.Equal(t, tt.want, r.post(qp, tt.op, tt.flags, tt.segments), name)
	}
	device := qp.Context.Device
	require.Equal(t, libibverbs.IBV_TRANSPORT_IB, device.TransportType)
}

// The functions ibv_wr_* refuse the same.
func TestBuildBeyondLimits(t *testing.T) {
	if !limitedTo(t, "read-sge=1,atomics=0,iwarp=1,uc=0,ud=0") {
		return
	}
	r := newRig(t)
	require.Equal(t, libibverbs.IBV_TRANSPORT_IWARP, r.c.Device.TransportType)
	require.Equal(t, libibverbs.IBV_NODE_RNIC, r.c.Device.NodeType)
	cq := r.cq(64)
	create := func(ops libibverbs.QpCreateSendOpsFlags) (*libibverbs.Qp, error) {
		a := alloc[libibverbs.QpInitAttrEx]()
		defer free(a)
		const mask = libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
		*a = libibverbs.QpInitAttrEx{
			SendCq: cq, RecvCq: cq, QpType: libibverbs.IBV_QPT_RC, Pd: r.pd, CompMask: mask, SendOpsFlags: uint64(ops),
			Cap: libibverbs.QpCap{MaxSendWr: 8, MaxSendSge: 2},
		}
		return libibverbs.CreateQpEx(r.c, a)
	}
	_, err := create(libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	qp, err := create(libibverbs.IBV_QP_EX_WITH_RDMA_READ | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE)
	require.NoError(t, err)
	r.ready(qp, qp.QpNum)
	x, err := libibverbs.QpToQpEx(qp)
	require.NoError(t, err)
	sges := allocMemory(2, 16)
	defer freeMemory(sges)
	for _, tt := range []struct {
		segments uint64
		want     error
	}{{1, nil}, {2, syscall.EINVAL}} {
		libibverbs.WrStart(x)
		libibverbs.WrRdmaRead(x, r.mr.Rkey, uint64(uintptr(start(r.memory))))
		libibverbs.WrSetSgeList(x, tt.segments, (*libibverbs.Sge)(sges))
		require.ErrorIs(t, libibverbs.WrComplete(x), tt.want)
	}
}

// A queue pair gets no more inline data than the device has, although its
// slots have room.
func TestInlineWithinLimits(t *testing.T) {
	if !limitedTo(t, "inline=0") {
		return
	}
	r := newRig(t)
	qp := r.withSegments(r.cq(64), 4)
	attr, got := alloc[libibverbs.QpAttr](), alloc[libibverbs.QpInitAttr]()
	defer free(attr)
	defer free(got)
	require.NoError(t, libibverbs.QueryQp(qp, attr, libibverbs.IBV_QP_CAP, got))
	require.Zero(t, got.Cap.MaxInlineData)
	r.ready(qp, qp.QpNum)
	require.Equal(t, syscall.EINVAL, r.post(qp, libibverbs.IBV_WR_SEND, libibverbs.IBV_SEND_INLINE, 1))
	require.Zero(t, r.post(qp, libibverbs.IBV_WR_SEND, 0, 1))
}

// What is posted in the error state is refused, never completes, or is flushed.
func TestLate(t *testing.T) {
	for name, tt := range map[string]struct {
		limits    string
		refused   syscall.Errno
		completes bool
	}{
		"refused": {"late=0", syscall.EINVAL, false},
		"lost":    {"late=1", 0, false},
		"flushed": {"late=2", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if !limitedTo(t, tt.limits) {
				return
			}
			r := newRig(t)
			cq := r.cq(64)
			qp := r.qp(libibverbs.IBV_QPT_RC, cq, 8)
			r.ready(qp, qp.QpNum)
			r.postRecv(qp, r.part(0, 8))
			r.postRecv(qp, r.part(0, 8))
			require.Len(t, r.poll(cq, 0), 0)
			attr := alloc[libibverbs.QpAttr]()
			defer free(attr)
			attr.QpState = libibverbs.IBV_QPS_ERR
			require.NoError(t, libibverbs.ModifyQp(qp, attr, libibverbs.IBV_QP_STATE))
			require.Len(t, r.poll(cq, 2), 2, "what was posted before is flushed")
			require.Equal(t, tt.refused, r.post(qp, libibverbs.IBV_WR_SEND, libibverbs.IBV_SEND_SIGNALED, 1))
			var bad *libibverbs.RecvWr
			*r.recv = libibverbs.RecvWr{}
			require.Equal(t, tt.refused, errno(libibverbs.PostRecv(qp, r.recv, &bad)))
			if tt.completes {
				for _, wc := range r.poll(cq, 2) {
					require.Equal(t, libibverbs.IBV_WC_WR_FLUSH_ERR, wc.Status)
				}
				return
			}
			// Another queue pair's requests, which the device serves later,
			// complete first.
			other := r.qp(libibverbs.IBV_QPT_RC, cq, 8)
			r.ready(other, other.QpNum)
			r.postRecv(other, r.part(0, 8))
			require.Zero(t, r.post(other, libibverbs.IBV_WR_SEND, libibverbs.IBV_SEND_SIGNALED, 1))
			for _, wc := range r.poll(cq, 2) {
				require.Equal(t, other.QpNum, wc.QpNum)
			}
		})
	}
}

// A queue pair cannot be queried at all, or only for what datagrams have, and a
// completion queue cannot be armed for solicited completions only.
func TestQueriesAndArmingWithinLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limits     string
		state, all error
	}{
		"none":      {"query=0,solicited=0", syscall.EOPNOTSUPP, syscall.EOPNOTSUPP},
		"datagrams": {"query=1,solicited=0", nil, syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			if !limitedTo(t, tt.limits) {
				return
			}
			r := newRig(t)
			cq := r.cq(8)
			qp := r.qp(libibverbs.IBV_QPT_RC, cq, 8)
			attr, got := alloc[libibverbs.QpAttr](), alloc[libibverbs.QpInitAttr]()
			defer free(attr)
			defer free(got)
			require.ErrorIs(t, libibverbs.QueryQp(qp, attr, libibverbs.IBV_QP_STATE, got), tt.state)
			require.ErrorIs(t, libibverbs.QueryQp(qp, attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_AV, got), tt.all)
			require.ErrorIs(t, libibverbs.ReqNotifyCq(cq, 1), syscall.EOPNOTSUPP)
			require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
		})
	}
}

// A message without a receive ends the connection.
func TestMessageWithoutReceive(t *testing.T) {
	if !limitedTo(t, "rnr=0,sge=4") {
		return
	}
	r := newRig(t)
	cq := r.cq(8)
	qp := r.qp(libibverbs.IBV_QPT_RC, cq, 8)
	r.ready(qp, qp.QpNum)
	require.Zero(t, r.post(qp, libibverbs.IBV_WR_SEND, libibverbs.IBV_SEND_SIGNALED, 1))
	require.NotEqual(t, libibverbs.IBV_WC_SUCCESS, r.poll(cq, 1)[0].Status)
}

// A mistake in the environment leaves programs in C without a device, and says
// why.
func TestWrongEnvironment(t *testing.T) {
	for name, tt := range map[string]struct{ variable, value, cause string }{
		"limits": {node.LimitsVariable, "sge=0", `VERBENA_LIMITS=sge=0: sge is "0": want a number from 1 to 32`},
		"check":  {node.CheckVariable, "yes", `VERBENA_CHECK=yes: check is "yes": want 0, 1 or abort`},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(tt.variable) == tt.value {
				list, n, err := libibverbs.GetDeviceList()
				require.NoError(t, err)
				require.Zero(t, n)
				libibverbs.FreeDeviceList(list)
				return
			}
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestWrongEnvironment$/^"+name+"$", "-test.v")
			cmd.Env = append(os.Environ(), tt.variable+"="+tt.value)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "softroce: "+tt.cause)
		})
	}
}

// The environment chooses the network and the limits of a program that does
// not choose them itself, such as one in C.
func TestChosenByTheEnvironment(t *testing.T) {
	if os.Getenv(node.DeviceVariable) == "soft:" {
		list, n, err := libibverbs.GetDeviceList()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		libibverbs.FreeDeviceList(list)
		require.EqualValues(t, 2, self().Node.Limits().SGE)
		return
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), node.DeviceVariable+"=soft:", node.LimitsVariable+"=sge=2")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "softroce:")
}
