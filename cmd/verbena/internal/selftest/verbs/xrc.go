// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

var xrc = []check.Check{
	{
		Name: "xrc.send", Proves: "an extended reliable connection delivers to the queue that a message names", Features: []check.Feature{check.XRC},
		Run: on(func(r *rig) {
			r.need(uint64(r.attr.Capabilities)&uint64(libibverbs.IBV_DEVICE_XRC) != 0, "extended reliable connections")
			domain := keep(r.dev.OpenXRCD(ibverbs.XRCDConfig{}))(r.T)
			cqs := []*ibverbs.CQ{r.cq(depth), r.cq(depth)}
			var srqs []*ibverbs.SRQ
			for _, cq := range cqs {
				srqs = append(srqs, keep(r.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: depth, XRCD: domain, CQ: cq}))(r.T))
			}
			mine, theirs, cq := r.alloc(pages, full), r.alloc(pages, full), r.cq(depth)
			from := keep(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: cq, SendQueue: depth}))(r.T)
			to := keep(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: domain}))(r.T)
			r.connectXRC(from, to)
			for i, srq := range srqs {
				sent := fill(mine.Bytes()[:100], byte(i+1))
				r.shared(srq, 1, theirs.Sub(1000*i, 100))
				s := must(ibverbs.NewSendBatch(1, 1))(r.T)
				ok(r.T, s.Send(1, ibverbs.SendSignaled, mine.Sub(0, 100)))
				ok(r.T, s.WR(0).SetXRCSRQ(must(srq.Num())(r.T)))
				must(from.PostSend(s))(r.T)
				r.succeed(cq, 1)
				r.succeed(cqs[i], 1)
				r.want(bytes.Equal(sent, theirs.Bytes()[1000*i:][:100]), "other bytes arrived")
				r.nothing(cqs[1-i], "the message named the other queue")
			}
		}),
	},
}

// connectXRC connects the sending and the receiving queue pair of an extended
// reliable connection.
func (r *rig) connectXRC(from, to *ibverbs.QP) {
	options := ibverbs.QPAddrConfig{Port: r.Target().Port}
	cq := r.cq(1)
	probe := keep(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}))(r.T) // knows the port's address
	addr := must(probe.Addr(options))(r.T)
	path := ibverbs.AHAttr{Port: addr.Port, DLID: addr.LID, DGID: addr.GID, SGIDIndex: addr.GIDIndex, HopLimit: 1}
	init := ibverbs.InitAttr{Port: addr.Port, Access: full}
	for _, qp := range []*ibverbs.QP{from, to} {
		ok(r.T, qp.ToInit(init))
	}
	ok(r.T, from.ToRTR(ibverbs.RTRAttr{Path: path, PathMTU: addr.MTU, DestQPNum: to.Num(), RecvPSN: addr.PSN}))
	ok(r.T, to.ToRTR(ibverbs.RTRAttr{Path: path, PathMTU: addr.MTU, DestQPNum: from.Num(), RecvPSN: addr.PSN, MinRNRTimer: time.Millisecond}))
	ok(r.T, to.ToRTS(ibverbs.RTSAttr{SendPSN: addr.PSN}))
	ok(r.T, from.ToRTS(ibverbs.RTSAttr{SendPSN: addr.PSN, Timeout: normal.Timeout, RetryCount: normal.RetryCount}))
}
