// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"fmt"
	"math/bits"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	qpsReset = libibverbs.IBV_QPS_RESET
	qpsInit  = libibverbs.IBV_QPS_INIT
	qpsRTR   = libibverbs.IBV_QPS_RTR
	qpsRTS   = libibverbs.IBV_QPS_RTS
	qpsSQD   = libibverbs.IBV_QPS_SQD
	qpsSQE   = libibverbs.IBV_QPS_SQE
	qpsErr   = libibverbs.IBV_QPS_ERR
	stateBit = libibverbs.IBV_QP_STATE
)

var attrBits = map[string]libibverbs.QpAttrMask{
	"cur_qp_state": libibverbs.IBV_QP_CUR_STATE, "en_sqd_async_notify": libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY,
	"qp_access_flags": libibverbs.IBV_QP_ACCESS_FLAGS, "pkey_index": libibverbs.IBV_QP_PKEY_INDEX, "port_num": libibverbs.IBV_QP_PORT,
	"qkey": libibverbs.IBV_QP_QKEY, "ah_attr": libibverbs.IBV_QP_AV, "path_mtu": libibverbs.IBV_QP_PATH_MTU,
	"timeout": libibverbs.IBV_QP_TIMEOUT, "retry_cnt": libibverbs.IBV_QP_RETRY_CNT, "rnr_retry": libibverbs.IBV_QP_RNR_RETRY,
	"rq_psn": libibverbs.IBV_QP_RQ_PSN, "max_rd_atomic": libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, "alt_ah_attr": libibverbs.IBV_QP_ALT_PATH,
	"min_rnr_timer": libibverbs.IBV_QP_MIN_RNR_TIMER, "sq_psn": libibverbs.IBV_QP_SQ_PSN,
	"max_dest_rd_atomic": libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, "path_mig_state": libibverbs.IBV_QP_PATH_MIG_STATE,
	"dest_qp_num": libibverbs.IBV_QP_DEST_QPN,
}

var (
	typeNames = map[string]libibverbs.QpType{
		"RC": libibverbs.IBV_QPT_RC, "UC": libibverbs.IBV_QPT_UC, "UD": libibverbs.IBV_QPT_UD,
		"XRC_SEND": libibverbs.IBV_QPT_XRC_SEND, "XRC_RECV": libibverbs.IBV_QPT_XRC_RECV,
	}
	stateNames = map[string]libibverbs.QpState{
		"reset": qpsReset, "init": qpsInit, "rtr": qpsRTR, "rts": qpsRTS, "sqd": qpsSQD, "sqe": qpsSQE, "error": qpsErr,
	}
)

// The steps are those of the table that package ibverbs checks with, which was
// compared with Linux.
func TestSteps(t *testing.T) {
	f, err := os.Open("../../../ibverbs/testdata/transitions.txt")
	require.NoError(t, err)
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		head, rest, ok := strings.Cut(lines.Text(), ": ")
		words := strings.Fields(head) // RC init -> rtr
		require.True(t, ok && len(words) == 4, lines.Text())
		kind, ok := typeNames[words[0]]
		if !ok {
			continue
		}
		found++
		s := step{stateNames[words[1]], stateNames[words[3]]}
		var want attrs
		for part := range strings.SplitSeq(strings.TrimSuffix(rest, " ok"), ";") {
			names, isRequired := strings.CutPrefix(strings.TrimSpace(part), "required ")
			names, isOptional := strings.CutPrefix(names, "optional ")
			for name := range strings.SplitSeq(names, ", ") {
				switch {
				case isRequired:
					want.required |= attrBits[name]
				case isOptional:
					want.optional |= attrBits[name]
				}
			}
		}
		if rest == "none" {
			require.NotContains(t, steps[kind], s)
			require.False(t, allowed(kind, s, stateBit), head)
			require.False(t, allowed(kind, s, ^libibverbs.QpAttrMask(0)), head)
			continue
		}
		require.Equal(t, want, steps[kind][s], head)
		require.True(t, allowed(kind, s, stateBit|want.required), head)
		require.True(t, allowed(kind, s, stateBit|want.required|want.optional), head)
		for i := 1; i < 32; i++ {
			bit := libibverbs.QpAttrMask(1) << i
			mask := stateBit | want.required ^ bit
			require.Equal(t, want.optional&bit != 0, allowed(kind, s, mask), "%s: %v", head, mask)
		}
	}
	require.Equal(t, 5*7*7, found)
}

// attributes is what Modify changes of a queue pair.
type attributes struct {
	attr libibverbs.QpAttr
	path path
	mtu  int
}

func kept(q *QP) attributes { return attributes{q.attr, q.path, q.mtu} }

// attrFor returns attributes that are right for every step of a connected queue
// pair, and of one for datagrams.
func attrFor(to libibverbs.QpState) *libibverbs.QpAttr {
	return &libibverbs.QpAttr{
		QpState: to, PortNum: 1, PathMtu: libibverbs.IBV_MTU_1024, DestQpNum: 17, Qkey: 5, Timeout: 14, RetryCnt: 7, RnrRetry: 6,
		MinRnrTimer: 12, MaxRdAtomic: 4, MaxDestRdAtomic: 4, AhAttr: *ahAttr(2), RqPsn: 100, SqPsn: 200,
	}
}

// bring takes a queue pair from reset to a state.
func (d *node) bring(q *QP, to libibverbs.QpState) {
	way := map[libibverbs.QpState][]libibverbs.QpState{
		qpsInit: {qpsInit}, qpsRTR: {qpsInit, qpsRTR}, qpsRTS: {qpsInit, qpsRTR, qpsRTS},
		qpsSQD: {qpsInit, qpsRTR, qpsRTS, qpsSQD}, qpsErr: {qpsInit, qpsErr},
		qpsSQE: {qpsInit, qpsRTR, qpsRTS},
	}
	for _, s := range way[to] {
		required := steps[q.kind][step{q.attr.QpState, s}].required
		require.NoError(d.t, q.Modify(attrFor(s), stateBit|required))
	}
	if to == qpsSQE {
		q.setState(to) // only an error leads there
	}
	require.Equal(d.t, to, q.attr.QpState)
}

// Modify keeps to the steps in every state. What it refuses changes nothing.
func TestModifySteps(t *testing.T) {
	d := newNode(t, 1)
	pd, cq, x := d.pd(), d.cq(8), d.xrcd()
	newQP := func(kind libibverbs.QpType) *QP {
		if kind == libibverbs.IBV_QPT_XRC_RECV {
			return d.xrcQP(x)
		}
		return d.qp(pd, kind, cq, cq, nil)
	}
	for name, kind := range typeNames {
		t.Run(name, func(t *testing.T) {
			for from := qpsReset; from <= qpsErr; from++ {
				for to := qpsReset; to <= libibverbs.IBV_QPS_UNKNOWN; to++ {
					s := step{from, to}
					required := stateBit | steps[kind][s].required
					for i := range 32 {
						bit := libibverbs.QpAttrMask(1) << i
						mask := required
						if bit != stateBit {
							mask ^= bit
						}
						q := newQP(kind)
						d.bring(q, from)
						a := attrFor(to)
						a.CurQpState = from
						before := kept(q)
						err := q.Modify(a, mask)
						if !allowed(kind, s, mask) || bit == libibverbs.IBV_QP_ALT_PATH { // RoCE has none
							require.Equal(t, syscall.EINVAL, err, "%v -> %v with %v", from, to, mask)
							require.Equal(t, before, kept(q))
							require.Equal(t, uint32(from), q.send.State)
						} else {
							require.NoError(t, err, "%v -> %v with %v", from, to, mask)
							require.Equal(t, to, q.attr.QpState)
							require.Equal(t, uint32(to), q.send.State)
							if q.recv != nil {
								require.Equal(t, uint32(to), q.recv.State)
							}
						}
						require.NoError(t, q.Destroy())
					}
				}
			}
		})
	}
}

// Each attribute is taken over, and out of range refused.
func TestModifyAttributes(t *testing.T) {
	d := newNode(t, 1)
	small := &node{t: t, Device: New(Config{MTU: libibverbs.IBV_MTU_1024})}
	require.NoError(t, small.SetGID(0, GIDEntry{GID: testGID(1)}))
	type test struct {
		from, to libibverbs.QpState
		bit      libibverbs.QpAttrMask
		change   func(a *libibverbs.QpAttr)
		want     error
	}
	ah := func(change func(a *libibverbs.AhAttr)) func(a *libibverbs.QpAttr) {
		return func(a *libibverbs.QpAttr) { change(&a.AhAttr) }
	}
	for name, tt := range map[string]test{
		"access":              {qpsReset, qpsInit, libibverbs.IBV_QP_ACCESS_FLAGS, func(a *libibverbs.QpAttr) { a.QpAccessFlags = remoteAccess }, nil},
		"unknown access":      {qpsReset, qpsInit, libibverbs.IBV_QP_ACCESS_FLAGS, func(a *libibverbs.QpAttr) { a.QpAccessFlags = 1 << 31 }, syscall.EINVAL},
		"port 0":              {qpsReset, qpsInit, libibverbs.IBV_QP_PORT, func(a *libibverbs.QpAttr) { a.PortNum = 0 }, syscall.EINVAL},
		"port 2":              {qpsReset, qpsInit, libibverbs.IBV_QP_PORT, func(a *libibverbs.QpAttr) { a.PortNum = 2 }, syscall.EINVAL},
		"P_Key index":         {qpsReset, qpsInit, libibverbs.IBV_QP_PKEY_INDEX, func(a *libibverbs.QpAttr) { a.PkeyIndex = 1 }, syscall.EINVAL},
		"no MTU":              {qpsInit, qpsRTR, libibverbs.IBV_QP_PATH_MTU, func(a *libibverbs.QpAttr) { a.PathMtu = 0 }, syscall.EINVAL},
		"least MTU":           {qpsInit, qpsRTR, libibverbs.IBV_QP_PATH_MTU, func(a *libibverbs.QpAttr) { a.PathMtu = libibverbs.IBV_MTU_256 }, nil},
		"most MTU":            {qpsInit, qpsRTR, libibverbs.IBV_QP_PATH_MTU, func(a *libibverbs.QpAttr) { a.PathMtu = libibverbs.IBV_MTU_4096 }, nil},
		"more MTU":            {qpsInit, qpsRTR, libibverbs.IBV_QP_PATH_MTU, func(a *libibverbs.QpAttr) { a.PathMtu = 6 }, syscall.EINVAL},
		"last PSN to receive": {qpsInit, qpsRTR, libibverbs.IBV_QP_RQ_PSN, func(a *libibverbs.QpAttr) { a.RqPsn = 1<<24 - 1 }, nil},
		"PSN to receive":      {qpsInit, qpsRTR, libibverbs.IBV_QP_RQ_PSN, func(a *libibverbs.QpAttr) { a.RqPsn = 1 << 24 }, syscall.EINVAL},
		"last number":         {qpsInit, qpsRTR, libibverbs.IBV_QP_DEST_QPN, func(a *libibverbs.QpAttr) { a.DestQpNum = 1<<24 - 1 }, nil},
		"number":              {qpsInit, qpsRTR, libibverbs.IBV_QP_DEST_QPN, func(a *libibverbs.QpAttr) { a.DestQpNum = 1 << 24 }, syscall.EINVAL},
		"longest RNR timer":   {qpsInit, qpsRTR, libibverbs.IBV_QP_MIN_RNR_TIMER, func(a *libibverbs.QpAttr) { a.MinRnrTimer = 31 }, nil},
		"RNR timer":           {qpsInit, qpsRTR, libibverbs.IBV_QP_MIN_RNR_TIMER, func(a *libibverbs.QpAttr) { a.MinRnrTimer = 32 }, syscall.EINVAL},
		"most reads answered": {qpsInit, qpsRTR, libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, func(a *libibverbs.QpAttr) { a.MaxDestRdAtomic = maxRDAtomic }, nil},
		"reads answered":      {qpsInit, qpsRTR, libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, func(a *libibverbs.QpAttr) { a.MaxDestRdAtomic = 255 }, syscall.EINVAL},
		"path's port":         {qpsInit, qpsRTR, libibverbs.IBV_QP_AV, ah(func(a *libibverbs.AhAttr) { a.PortNum = 2 }), syscall.EINVAL},
		"path without GID":    {qpsInit, qpsRTR, libibverbs.IBV_QP_AV, ah(func(a *libibverbs.AhAttr) { a.Grh.Dgid = libibverbs.Gid{} }), syscall.EINVAL},
		"path to a group":     {qpsInit, qpsRTR, libibverbs.IBV_QP_AV, ah(func(a *libibverbs.AhAttr) { *a.Grh.Dgid.Raw() = groupGID }), syscall.EINVAL},
		"path from nowhere":   {qpsInit, qpsRTR, libibverbs.IBV_QP_AV, ah(func(a *libibverbs.AhAttr) { a.Grh.SgidIndex = 9 }), noData},
		"path elsewhere":      {qpsInit, qpsRTR, libibverbs.IBV_QP_AV, ah(func(a *libibverbs.AhAttr) { *a.Grh.Dgid.Raw() = testGID(7); a.Grh.FlowLabel = 99 }), nil},
		"longest timeout":     {qpsRTR, qpsRTS, libibverbs.IBV_QP_TIMEOUT, func(a *libibverbs.QpAttr) { a.Timeout = 31 }, nil},
		"timeout":             {qpsRTR, qpsRTS, libibverbs.IBV_QP_TIMEOUT, func(a *libibverbs.QpAttr) { a.Timeout = 32 }, syscall.EINVAL},
		"retries":             {qpsRTR, qpsRTS, libibverbs.IBV_QP_RETRY_CNT, func(a *libibverbs.QpAttr) { a.RetryCnt = 8 }, syscall.EINVAL},
		"RNR retries":         {qpsRTR, qpsRTS, libibverbs.IBV_QP_RNR_RETRY, func(a *libibverbs.QpAttr) { a.RnrRetry = 8 }, syscall.EINVAL},
		"reads":               {qpsRTR, qpsRTS, libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, func(a *libibverbs.QpAttr) { a.MaxRdAtomic = maxRDAtomic + 1 }, syscall.EINVAL},
		"no reads":            {qpsRTR, qpsRTS, libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, func(a *libibverbs.QpAttr) { a.MaxRdAtomic = 0 }, nil},
		"PSN to send":         {qpsRTR, qpsRTS, libibverbs.IBV_QP_SQ_PSN, func(a *libibverbs.QpAttr) { a.SqPsn = 1 << 24 }, syscall.EINVAL},
		"no migration":        {qpsRTS, qpsRTS, libibverbs.IBV_QP_PATH_MIG_STATE, func(a *libibverbs.QpAttr) { a.PathMigState = libibverbs.IBV_MIG_MIGRATED }, nil},
		"migration":           {qpsRTS, qpsRTS, libibverbs.IBV_QP_PATH_MIG_STATE, func(a *libibverbs.QpAttr) { a.PathMigState = libibverbs.IBV_MIG_ARMED }, syscall.EINVAL},
		"alternate path":      {qpsRTS, qpsRTS, libibverbs.IBV_QP_ALT_PATH, func(a *libibverbs.QpAttr) { a.AltAhAttr, a.AltPortNum = *ahAttr(2), 1 }, syscall.EINVAL},
		"another state":       {qpsRTS, qpsRTS, libibverbs.IBV_QP_CUR_STATE, func(a *libibverbs.QpAttr) { a.CurQpState = qpsSQE }, syscall.EINVAL},
		"its state":           {qpsRTS, qpsRTS, libibverbs.IBV_QP_CUR_STATE, func(a *libibverbs.QpAttr) { a.CurQpState = qpsRTS }, nil},
		"unknown attribute":   {qpsInit, qpsInit, 1 << 30, func(*libibverbs.QpAttr) {}, syscall.EINVAL},
		"rate limit":          {qpsRTS, qpsRTS, libibverbs.IBV_QP_RATE_LIMIT, func(*libibverbs.QpAttr) {}, syscall.EINVAL},
		"capacities":          {qpsRTS, qpsRTS, libibverbs.IBV_QP_CAP, func(*libibverbs.QpAttr) {}, syscall.EINVAL},
		"unknown state":       {qpsInit, 9, 0, func(*libibverbs.QpAttr) {}, syscall.EINVAL},
		"far from any state":  {qpsInit, 1 << 31, 0, func(*libibverbs.QpAttr) {}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			pd, cq := d.pd(), d.cq(8)
			q := d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil)
			d.bring(q, tt.from)
			a := attrFor(tt.to)
			tt.change(a)
			mask := steps[q.kind][step{tt.from, tt.to}].required | tt.bit | stateBit
			before := kept(q)
			require.Equal(t, tt.want, q.Modify(a, mask))
			if tt.want != nil {
				require.Equal(t, before, kept(q))
				return
			}
			got, err := q.Attr()
			require.NoError(t, err)
			want := attrAfter(before.attr, *a, mask)
			want.Cap = got.Cap
			require.Equal(t, want, got)
			if tt.to >= qpsRTR {
				require.Equal(t, 128<<got.PathMtu, q.mtu)
				require.Equal(t, *a.AhAttr.Grh.Dgid.Raw(), [16]byte(q.path.dgid))
				require.Equal(t, testGID(1), q.path.sgid)
				require.Equal(t, a.AhAttr.Grh.FlowLabel, q.path.flowLabel)
			}
		})
	}
	t.Run("MTU above the port's", func(t *testing.T) {
		q := small.qp(small.pd(), libibverbs.IBV_QPT_RC, small.cq(1), small.cq(1), nil)
		small.bring(q, qpsInit)
		a := attrFor(qpsRTR)
		mask := stateBit | steps[q.kind][step{qpsInit, qpsRTR}].required
		a.PathMtu = libibverbs.IBV_MTU_2048
		require.Equal(t, syscall.EINVAL, q.Modify(a, mask))
		a.PathMtu = libibverbs.IBV_MTU_1024
		require.NoError(t, q.Modify(a, mask))
	})
}

// The PSNs that are reported move on.
func TestReportedPSNs(t *testing.T) {
	d := newNode(t, 1)
	cq := d.cq(8)
	q := d.qp(d.pd(), libibverbs.IBV_QPT_RC, cq, cq, nil)
	d.bring(q, qpsRTS)
	postInline(t, q.send, SendSlot{Opcode: libibverbs.IBV_WR_SEND}, make([]byte, 8))
	d.Ring(q.send)
	d.Advance(0)
	a, err := q.Attr()
	require.NoError(t, err)
	require.EqualValues(t, attrFor(0).SqPsn+1, a.SqPsn)
	require.EqualValues(t, attrFor(0).RqPsn, a.RqPsn)
}

// attrAfter returns the attributes after those in mask were taken over, said in
// another way than assign does.
func attrAfter(old, a libibverbs.QpAttr, mask libibverbs.QpAttrMask) libibverbs.QpAttr {
	for ; mask != 0; mask &= mask - 1 {
		switch libibverbs.QpAttrMask(1) << bits.TrailingZeros32(uint32(mask)) {
		case libibverbs.IBV_QP_STATE:
			old.QpState = a.QpState
		case libibverbs.IBV_QP_ACCESS_FLAGS:
			old.QpAccessFlags = a.QpAccessFlags
		case libibverbs.IBV_QP_PKEY_INDEX:
			old.PkeyIndex = a.PkeyIndex
		case libibverbs.IBV_QP_PORT:
			old.PortNum = a.PortNum
		case libibverbs.IBV_QP_QKEY:
			old.Qkey = a.Qkey
		case libibverbs.IBV_QP_AV:
			old.AhAttr = a.AhAttr
		case libibverbs.IBV_QP_PATH_MTU:
			old.PathMtu = a.PathMtu
		case libibverbs.IBV_QP_TIMEOUT:
			old.Timeout = a.Timeout
		case libibverbs.IBV_QP_RETRY_CNT:
			old.RetryCnt = a.RetryCnt
		case libibverbs.IBV_QP_RNR_RETRY:
			old.RnrRetry = a.RnrRetry
		case libibverbs.IBV_QP_RQ_PSN:
			old.RqPsn = a.RqPsn
		case libibverbs.IBV_QP_MAX_QP_RD_ATOMIC:
			old.MaxRdAtomic = a.MaxRdAtomic
		case libibverbs.IBV_QP_MIN_RNR_TIMER:
			old.MinRnrTimer = a.MinRnrTimer
		case libibverbs.IBV_QP_SQ_PSN:
			old.SqPsn = a.SqPsn
		case libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC:
			old.MaxDestRdAtomic = a.MaxDestRdAtomic
		case libibverbs.IBV_QP_DEST_QPN:
			old.DestQpNum = a.DestQpNum
		}
	}
	old.CurQpState = old.QpState
	return old
}

// A queue pair drains on the way to SQD, once, and tells of it if asked to.
func TestDraining(t *testing.T) {
	d := newNode(t, 1)
	pd, cq := d.pd(), d.cq(8)
	for name, notify := range map[string]uint8{"with event": 1, "without": 0} {
		t.Run(name, func(t *testing.T) {
			q := d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil)
			d.bring(q, qpsRTS)
			want := []AsyncEvent(nil)
			if notify != 0 {
				want = []AsyncEvent{{libibverbs.IBV_EVENT_SQ_DRAINED, q}}
			}
			toSQD := &libibverbs.QpAttr{QpState: qpsSQD, EnSqdAsyncNotify: notify}
			for range 2 {
				q.drained()
				d.requireEvents() // it sends
				require.NoError(t, q.Modify(toSQD, stateBit|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY))
				q.drained()
				q.drained()
				d.requireEvents(want...)
				require.NoError(t, q.Modify(&libibverbs.QpAttr{QpState: qpsSQD, Timeout: 3}, stateBit|libibverbs.IBV_QP_TIMEOUT))
				a, err := q.Attr()
				require.NoError(t, err)
				require.Zero(t, a.SqDraining, "it had drained before")
				require.NoError(t, q.Modify(&libibverbs.QpAttr{QpState: qpsRTS}, stateBit))
			}
			require.NoError(t, q.Modify(&libibverbs.QpAttr{QpState: qpsSQD}, stateBit))
			q.drained()
			d.requireEvents() // none was requested
			require.NoError(t, q.Modify(&libibverbs.QpAttr{QpState: qpsRTS}, stateBit))
			require.NoError(t, q.Modify(toSQD, stateBit|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY))
			require.NoError(t, q.Modify(&libibverbs.QpAttr{QpState: qpsRTS}, stateBit))
			q.drained()
			d.requireEvents() // it went on before it had drained
		})
	}
}

// In SQD a program may change how many READs its queue pair answers at once.
// Those that were answered last are answered again, as many as the queue pair
// may keep.
func TestResponderResourcesChange(t *testing.T) {
	const before = 4
	for after := uint8(1); after <= 2*before; after++ {
		for done := range 2*before + 1 {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
			var asked []*wire.Packet
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode == wire.RCReadRequest {
					asked = append(asked, n.clone(p))
				}
				return true
			}
			read := func(id uint64) {
				a.post(SendSlot{ID: id, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), a.mr.sge(0, 8))
				n.run()
				require.Equal(t, []result{ok(id)}, results(a.send))
			}
			for i := range done {
				read(uint64(i))
			}
			b.modify(qpsSQD)
			require.NoError(t, b.qp.Modify(
				&libibverbs.QpAttr{QpState: qpsSQD, MaxDestRdAtomic: after}, stateBit|libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC))
			b.modify(qpsRTS)
			read(99)
			kept := min(done, before, int(after)-1) + 1 // with the last
			n.watch = true
			for i, p := range asked {
				n.seen = nil
				b.Receive(p)
				n.run()
				require.Len(t, n.seen, map[bool]int{true: 1}[i >= len(asked)-kept], "%d of %d READs, %d kept", i, len(asked), kept)
			}
		}
	}
}

// A queue pair retries as often as it was told last, also after a change in
// SQD.
func TestRetriesChange(t *testing.T) {
	for _, retries := range [][2]uint8{{6, 1}, {1, 6}, {3, 0}, {0, 3}} {
		for name, tt := range map[string]struct {
			bit  libibverbs.QpAttrMask
			want libibverbs.WcStatus
		}{
			"retries":     {libibverbs.IBV_QP_RETRY_CNT, libibverbs.IBV_WC_RETRY_EXC_ERR},
			"RNR retries": {libibverbs.IBV_QP_RNR_RETRY, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR},
		} {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 8192)
			sent := 0
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode.IsSend() {
					sent++
					return tt.bit == libibverbs.IBV_QP_RNR_RETRY // else the network loses it
				}
				return true
			}
			for _, r := range retries {
				a.modify(qpsSQD)
				require.NoError(t, a.qp.Modify(&libibverbs.QpAttr{QpState: qpsSQD, RetryCnt: r, RnrRetry: r}, stateBit|tt.bit))
				a.modify(qpsRTS)
			}
			b.modify(qpsRTS)
			began := n.now
			a.post(SendSlot{ID: 1, Opcode: send}, a.mr.sge(0, 8))
			n.run()
			require.Equal(t, []result{{1, tt.want}}, results(a.send), name)
			require.Equal(t, 1+int(retries[1]), sent, name)
			if tt.bit == libibverbs.IBV_QP_RETRY_CNT {
				timeouts := map[uint8]time.Duration{0: 1, 1: 3, 3: 11, 6: 23}[retries[1]]
				require.InDelta(t, timeouts*ackTimeout, n.now-began, float64(time.Millisecond), "%v", retries)
			}
		}
	}
}

// A timeout that is set while a queue pair drains holds for what is under way.
func TestTimeoutSetWhileDraining(t *testing.T) {
	for name, state := range map[string]libibverbs.QpAttrMask{"with the state": stateBit, "alone": 0} {
		for _, before := range []uint8{0, 31} {
			t.Run(fmt.Sprint(name, " ", before), func(t *testing.T) {
				n := newNetwork(t, 1)
				a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
				a.qp.attr.Timeout = before
				a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, 8))
				a.Advance(n.now)
				require.Len(t, a.sent, 1)
				a.sent = nil // the network loses it
				a.modify(qpsSQD)
				a.Advance(n.now)
				require.NoError(t, a.qp.Modify(&libibverbs.QpAttr{QpState: qpsSQD, Timeout: 14}, state|libibverbs.IBV_QP_TIMEOUT))
				n.run()
				require.Equal(t, []result{ok(1)}, results(a.send))
				require.Less(t, n.now, 4*ackTimeout)
			})
		}
	}
}
