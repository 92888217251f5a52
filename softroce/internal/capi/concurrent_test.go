// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// read does an RDMA read of the memory's first bytes through qp.
func (r *rig) read(qp *libibverbs.Qp, cq *libibverbs.Cq) libibverbs.WcStatus {
	r.t.Helper()
	*r.sge = r.part(4096, 64)
	*r.send = libibverbs.SendWr{SgList: r.sge, NumSge: 1, Opcode: libibverbs.IBV_WR_RDMA_READ, SendFlags: libibverbs.IBV_SEND_SIGNALED}
	rdma := r.send.Wr.Rdma()
	rdma.RemoteAddr, rdma.Rkey = uint64(uintptr(start(r.memory))), r.mr.Rkey
	var bad *libibverbs.SendWr
	require.NoError(r.t, libibverbs.PostSend(qp, r.send, &bad))
	return r.poll(cq, 1)[0].Status
}

// A peer answers from RTR on, and reads go on while it becomes ready to send.
func TestReadsWhileThePeerBecomesReady(t *testing.T) {
	r := newRig(t)
	cq, peers := r.cq(4), r.cq(4)
	qp, peer := r.qp(libibverbs.IBV_QPT_RC, cq, 4), r.qp(libibverbs.IBV_QPT_RC, peers, 4)
	r.ready(qp, peer.QpNum)
	r.bring(peer, qp.QpNum, libibverbs.IBV_QPS_INIT, libibverbs.IBV_QPS_RTR)
	for range 100 {
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.read(qp, cq))
	}
	modified := make(chan bool)
	go func() {
		defer close(modified)
		r.bring(peer, qp.QpNum, libibverbs.IBV_QPS_RTS)
	}()
	for range 200 {
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.read(qp, cq))
	}
	<-modified
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.read(qp, cq))
}

// Queue pairs come and go, more than there are numbers, while two others work.
func TestMoreQueuePairsThanNumbers(t *testing.T) {
	r := newRig(t)
	cq := r.cq(8)
	qp, peer := r.qp(libibverbs.IBV_QPT_RC, cq, 4), r.qp(libibverbs.IBV_QPT_RC, cq, 4)
	r.ready(qp, peer.QpNum)
	r.ready(peer, qp.QpNum)
	attr := alloc[libibverbs.QpInitAttr]()
	defer free(attr)
	attr.SendCq, attr.RecvCq, attr.QpType = cq, cq, libibverbs.IBV_QPT_RC
	attr.Cap = libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 1, MaxSendSge: 1, MaxRecvSge: 1}
	const numbers = 1 << 16 // that a node of a machine has
	for i := range numbers + 32 {
		next, err := libibverbs.CreateQp(r.pd, attr)
		require.NoError(t, err)
		require.NotContains(t, []uint32{qp.QpNum, peer.QpNum}, next.QpNum)
		require.NoError(t, libibverbs.DestroyQp(next))
		if i%1000 == 0 {
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.read(qp, cq))
		}
	}
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.read(qp, cq))
}

// A queue that is to tell of the next completion does not forget that when it
// is asked to tell of solicited ones, and does so when the two come the other
// way round.
func TestArmTwice(t *testing.T) {
	for name, first := range map[string]int32{"any, then solicited": 0, "solicited, then any": 1} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			channel, err := libibverbs.CreateCompChannel(r.c)
			require.NoError(t, err)
			sent := r.cq(4)
			received, err := libibverbs.CreateCq(r.c, 4, nil, channel, 0)
			require.NoError(t, err)
			from, to := r.qp(libibverbs.IBV_QPT_RC, sent, 4), r.qp(libibverbs.IBV_QPT_RC, received, 4)
			r.ready(from, to.QpNum)
			r.ready(to, from.QpNum)
			require.NoError(t, libibverbs.ReqNotifyCq(received, first))
			require.NoError(t, libibverbs.ReqNotifyCq(received, 1-first))
			r.postRecv(to, r.part(4096, 64))
			r.postSend(from, r.part(0, 64), nil, 0)
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(sent, 1)[0].Status)
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, r.poll(received, 1)[0].Status)

			cq, _, err := libibverbs.GetCqEvent(channel)
			require.NoError(t, err)
			require.Equal(t, received, cq)
			libibverbs.AckCqEvents(cq, 1)
		})
	}
}

// Objects of all kinds come and go in many threads.
func TestObjectsOfManyThreads(t *testing.T) {
	r := newRig(t)
	const threads, rounds = 16, 200
	var all sync.WaitGroup
	var failed atomic.Pointer[string]
	cq := r.cq(1)
	for range threads {
		all.Go(func() {
			check := func(what string, errno syscall.Errno) {
				if errno != 0 {
					text := what + ": " + errno.Error()
					failed.Store(&text)
				}
			}
			to, buffer := r.to(), uintptr(start(r.memory))
			for range rounds {
				pd, errno := verbs.AllocPd(r.c)
				check("alloc_pd", errno)
				if errno != 0 {
					return
				}
				mr, errno := verbs.RegMr(pd, buffer, 4096, libibverbs.IBV_ACCESS_LOCAL_WRITE)
				check("reg_mr", errno)
				mw, errno := verbs.AllocMw(pd, libibverbs.IBV_MW_TYPE_1)
				check("alloc_mw", errno)
				ah, errno := verbs.CreateAh(pd, &to)
				check("create_ah", errno)
				own, errno := verbs.CreateCq(r.c, 4, 0, nil, 0)
				check("create_cq", errno)
				srq, errno := verbs.CreateSrq(pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}})
				check("create_srq", errno)
				qp, errno := verbs.CreateQp(pd, &libibverbs.QpInitAttr{SendCq: cq, RecvCq: own, Srq: srq, QpType: libibverbs.IBV_QPT_UD})
				check("create_qp", errno)
				if errno != 0 {
					return
				}
				if errno := verbs.DeallocPd(pd); errno != syscall.EBUSY {
					check("dealloc_pd with objects", errno)
				}
				check("destroy_qp", verbs.DestroyQp(qp))
				check("destroy_srq", verbs.DestroySrq(srq))
				check("destroy_cq", verbs.DestroyCq(own))
				check("destroy_ah", verbs.DestroyAh(ah))
				check("dealloc_mw", verbs.DeallocMw(mw))
				check("dereg_mr", verbs.DeregMr(mr))
				check("dealloc_pd", verbs.DeallocPd(pd))
			}
		})
	}
	all.Wait()
	if text := failed.Load(); text != nil {
		require.Fail(t, *text)
	}
}
