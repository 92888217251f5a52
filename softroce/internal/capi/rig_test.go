// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// rig is an opened device with memory, in which requests are built, too.
type rig struct {
	t      testing.TB
	c      *libibverbs.Context
	pd     *libibverbs.Pd
	mr     *libibverbs.Mr
	memory []byte
	send   *libibverbs.SendWr
	recv   *libibverbs.RecvWr
	sge    *libibverbs.Sge
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := openRig(t)
	t.Cleanup(func() {
		require.NoError(t, libibverbs.CloseDevice(r.c)) // takes everything along
	})
	return r
}

// openRig returns a rig whose device the test closes.
func openRig(t testing.TB) *rig {
	t.Helper()
	return rigOn(t, openContext(t))
}

// rigOn returns a rig of an opened device.
func rigOn(t testing.TB, c *libibverbs.Context) *rig {
	t.Helper()
	r := &rig{t: t, c: c}
	var err error
	r.pd, err = libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	r.memory = newObjects(t).memory
	access := libibverbs.IBV_ACCESS_LOCAL_WRITE | libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	r.mr, err = libibverbs.RegMr(r.pd, start(r.memory), uint64(len(r.memory)), access)
	require.NoError(t, err)
	r.send, r.recv, r.sge = alloc[libibverbs.SendWr](), alloc[libibverbs.RecvWr](), alloc[libibverbs.Sge]()
	t.Cleanup(func() {
		free(r.send)
		free(r.recv)
		free(r.sge)
	})
	return r
}

func openContext(t testing.TB) *libibverbs.Context {
	t.Helper()
	list, _, err := libibverbs.GetDeviceList()
	require.NoError(t, err)
	defer libibverbs.FreeDeviceList(list)
	c, err := libibverbs.OpenDevice(*list)
	require.NoError(t, err)
	return c
}

func (r *rig) cq(entries int32) *libibverbs.Cq {
	r.t.Helper()
	cq, err := libibverbs.CreateCq(r.c, entries, nil, nil, 0)
	require.NoError(r.t, err)
	return cq
}

func (r *rig) qp(kind libibverbs.QpType, cq *libibverbs.Cq, depth uint32) *libibverbs.Qp {
	r.t.Helper()
	attr := alloc[libibverbs.QpInitAttr]()
	defer free(attr)
	attr.SendCq, attr.RecvCq, attr.QpType = cq, cq, kind
	attr.Cap = libibverbs.QpCap{MaxSendWr: depth, MaxRecvWr: depth, MaxSendSge: 1, MaxRecvSge: 1}
	qp, err := libibverbs.CreateQp(r.pd, attr)
	require.NoError(r.t, err)
	return qp
}

// to returns the way to the device itself.
func (r *rig) to() libibverbs.AhAttr {
	r.t.Helper()
	var g libibverbs.Gid
	require.NoError(r.t, libibverbs.QueryGid(r.c, 1, 0, &g))
	attr := libibverbs.AhAttr{IsGlobal: 1, PortNum: 1}
	attr.Grh.Dgid = g
	return attr
}

const qkey = 0x1111

// ready takes a queue pair to RTS, with the number of its peer unless it is one
// of datagrams.
func (r *rig) ready(qp *libibverbs.Qp, peer uint32) {
	r.t.Helper()
	r.readyTo(qp, r, peer)
}

// readyTo does so for a peer of another rig.
func (r *rig) readyTo(qp *libibverbs.Qp, other *rig, peer uint32) {
	r.t.Helper()
	r.bringTo(qp, other, peer, libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR, libibverbs.IBV_QPS_RTS)
}

// bring takes it through some of these states.
func (r *rig) bring(qp *libibverbs.Qp, peer uint32, states ...libibverbs.QpState) {
	r.t.Helper()
	r.bringTo(qp, r, peer, states...)
}

func (r *rig) bringTo(qp *libibverbs.Qp, other *rig, peer uint32, states ...libibverbs.QpState) {
	r.t.Helper()
	attr := alloc[libibverbs.QpAttr]()
	defer free(attr)
	*attr = libibverbs.QpAttr{
		PortNum: 1, Qkey: qkey, QpAccessFlags: libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC,
		AhAttr: other.to(), PathMtu: libibverbs.IBV_MTU_1024, DestQpNum: peer, MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRnrTimer: 1,
		Timeout: 14, RetryCnt: 7, RnrRetry: 7,
	}
	for _, to := range states {
		attr.QpState = to
		mask := libibverbs.IBV_QP_STATE
		switch {
		case to == libibverbs.IBV_QPS_INIT && qp.QpType == libibverbs.IBV_QPT_UD:
			mask |= libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_QKEY
		case to == libibverbs.IBV_QPS_INIT:
			mask |= libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_ACCESS_FLAGS
		case to == libibverbs.IBV_QPS_RTS:
			mask |= libibverbs.IBV_QP_SQ_PSN
		case qp.QpType != libibverbs.IBV_QPT_UD:
			mask |= libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN
		}
		if qp.QpType == libibverbs.IBV_QPT_RC {
			switch to {
			case libibverbs.IBV_QPS_RTR:
				mask |= libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER
			case libibverbs.IBV_QPS_RTS:
				mask |= libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
			}
		}
		require.NoError(r.t, libibverbs.ModifyQp(qp, attr, mask))
	}
}

// part is a part of the memory as a segment.
func (r *rig) part(offset, length int) libibverbs.Sge {
	return libibverbs.Sge{Addr: uint64(uintptr(start(r.memory[offset:]))), Length: uint32(length), Lkey: r.mr.Lkey}
}

func (r *rig) postRecv(qp *libibverbs.Qp, part libibverbs.Sge) {
	r.t.Helper()
	*r.sge = part
	r.recv.SgList, r.recv.NumSge = r.sge, 1
	var bad *libibverbs.RecvWr
	require.NoError(r.t, libibverbs.PostRecv(qp, r.recv, &bad))
}

// postSend posts a signaled SEND of part, to a queue pair of datagrams if there
// is an address handle.
func (r *rig) postSend(qp *libibverbs.Qp, part libibverbs.Sge, ah *libibverbs.Ah, peer uint32) {
	r.t.Helper()
	*r.sge = part
	*r.send = libibverbs.SendWr{SgList: r.sge, NumSge: 1, Opcode: libibverbs.IBV_WR_SEND, SendFlags: libibverbs.IBV_SEND_SIGNALED}
	if ah != nil {
		ud := r.send.Wr.Ud()
		ud.Ah, ud.RemoteQpn, ud.RemoteQkey = ah, peer, qkey
	}
	var bad *libibverbs.SendWr
	require.NoError(r.t, libibverbs.PostSend(qp, r.send, &bad))
}

// poll waits for n completions.
func (r *rig) poll(cq *libibverbs.Cq, n int) (all []libibverbs.Wc) {
	r.t.Helper()
	wc := alloc[libibverbs.Wc]()
	defer free(wc)
	for end := time.Now().Add(patience); len(all) < n; {
		found, err := libibverbs.PollCq(cq, 1, wc)
		require.NoError(r.t, err)
		if found > 0 {
			all = append(all, *wc)
		} else if time.Now().After(end) {
			require.FailNow(r.t, "no completion", "%d of %d: %v", len(all), n, all)
		}
	}
	return all
}

// patience is for what takes milliseconds, on a machine that is busy.
const patience = time.Minute

// ah returns an address handle of the device itself.
func (r *rig) ah() *libibverbs.Ah {
	r.t.Helper()
	return r.ahTo(r)
}

// ahTo returns one of another rig's device.
func (r *rig) ahTo(other *rig) *libibverbs.Ah {
	r.t.Helper()
	attr := alloc[libibverbs.AhAttr]()
	defer free(attr)
	*attr = other.to()
	ah, err := libibverbs.CreateAh(r.pd, attr)
	require.NoError(r.t, err)
	return ah
}
