// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"slices"
	"sort"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// qp is a queue pair.
type qp struct {
	c      *libibverbs.Qp
	e      *engine.QP
	domain *pd   // nil for the type XRC_RECV
	xrcd   *xrcd // for the type XRC_RECV, the domain; otherwise nil
	init   libibverbs.QpInitAttr
	tagCQ  *libibverbs.Cq // completion queue of the shared receive queue, if that matches tags
	events eventCounts
}

func (q *qp) soft() *softQP { return (*softQP)(unsafe.Pointer(q.c)) }

// softQP has the first fields of struct soft_qp, in ring.h.
type softQP struct {
	libibverbs.QpEx // begins with the fields of Qp
	send            engine.WorkQueue
	recv            engine.WorkQueue // not used with a shared receive queue
}

// sendOps are the operations that ibv_wr_* functions can post.
const sendOps = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM |
	libibverbs.IBV_QP_EX_WITH_SEND_WITH_INV | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE |
	libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_READ |
	libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
	libibverbs.IBV_QP_EX_WITH_LOCAL_INV | libibverbs.IBV_QP_EX_WITH_BIND_MW |
	libibverbs.IBV_QP_EX_WITH_FLUSH | libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE

// ofDatagrams are the attributes that AWS's driver tells.
const ofDatagrams = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_QKEY |
	libibverbs.IBV_QP_SQ_PSN | libibverbs.IBV_QP_CAP | libibverbs.IBV_QP_RNR_RETRY

func init() {
	// The device copies blocks, within which the order of bytes is not
	// promised.
	verbs.QueryQpDataInOrder = func(*libibverbs.Qp, libibverbs.WrOpcode, libibverbs.QueryQpDataInOrderFlags) int32 { return 0 }
	verbs.CreateQp = func(p *libibverbs.Pd, a *libibverbs.QpInitAttr) (*libibverbs.Qp, syscall.Errno) {
		x := libibverbs.QpInitAttrEx{
			SendCq: a.SendCq, RecvCq: a.RecvCq, Srq: a.Srq, Cap: a.Cap, QpType: a.QpType, SqSigAll: a.SqSigAll,
		}
		q, err := self().createQP(p, &x, contextOf(&a.QpContext))
		if err == 0 {
			a.Cap = x.Cap
		}
		return q, err
	}
	verbs.CreateQpEx = func(c *libibverbs.Context, a *libibverbs.QpInitAttrEx) (*libibverbs.Qp, syscall.Errno) {
		x := copyQPInit(a)
		q, err := self().createQPEx(c, &x, contextOf(&a.QpContext))
		if err == 0 {
			a.Cap = x.Cap
		}
		return q, err
	}
	verbs.OpenQp = func(c *libibverbs.Context, a *libibverbs.QpOpenAttr) (*libibverbs.Qp, syscall.Errno) {
		return self().openQP(c, a)
	}
	verbs.ModifyQp = func(q *libibverbs.Qp, a *libibverbs.QpAttr, mask libibverbs.QpAttrMask) syscall.Errno {
		var attr libibverbs.QpAttr // a copy, as the program may change its struct meanwhile
		fill(unsafe.Pointer(&attr), oldQPAttr, a)
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.modifyQP(q, &attr, mask)
	}
	verbs.QueryQp = func(c *libibverbs.Qp, a *libibverbs.QpAttr, mask libibverbs.QpAttrMask, i *libibverbs.QpInitAttr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		q := l.qps[c]
		if q == nil {
			return syscall.EINVAL
		}
		if limits := l.deviceOf(c.Context).Limits(); limits.Query == 0 || limits.Query == 1 && mask&^ofDatagrams != 0 {
			return syscall.EOPNOTSUPP
		}
		attr, err := q.e.Attr()
		if err != nil {
			return errno(err)
		}
		fill(unsafe.Pointer(a), oldQPAttr, &attr)
		*i = q.init
		setContext(&i.QpContext, contextOf(&c.QpContext))
		c.State = attr.QpState
		return 0
	}
	verbs.DestroyQp = func(q *libibverbs.Qp) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		if l.qps[q] == nil || !l.isOpen(q.Context) {
			return syscall.EINVAL
		}
		return l.destroyQP(q)
	}
	verbs.ModifyQpRateLimit = func(c *libibverbs.Qp, a *libibverbs.QpRateLimitAttr) syscall.Errno {
		return withQP(c, func(_ *library, q *qp) error {
			if a == nil {
				return syscall.EINVAL
			}
			return q.e.LimitRate(a)
		})
	}
	verbs.AttachMcast = func(c *libibverbs.Qp, g *libibverbs.Gid, _ uint16) syscall.Errno {
		return withQP(c, func(l *library, q *qp) error { return l.Attach(q.e, wire.GID(*g.Raw())) })
	}
	verbs.DetachMcast = func(c *libibverbs.Qp, g *libibverbs.Gid, _ uint16) syscall.Errno {
		return withQP(c, func(l *library, q *qp) error { return l.Detach(q.e, wire.GID(*g.Raw())) })
	}
}

// oldQPAttr is the size of a struct ibv_qp_attr without its last member,
// rate_limit, which programs with old headers do not have, and which the device
// neither reads nor writes.
const oldQPAttr = uint64(unsafe.Offsetof(libibverbs.QpAttr{}.RateLimit))

// copyQPInit returns a copy of a program's struct, which the program may change
// meanwhile, but for the context. Programs with old headers do not have the
// members after xrcd, and do not name them in the mask.
func copyQPInit(a *libibverbs.QpInitAttrEx) libibverbs.QpInitAttrEx {
	x := libibverbs.QpInitAttrEx{
		SendCq: a.SendCq, RecvCq: a.RecvCq, Srq: a.Srq, Cap: a.Cap, QpType: a.QpType, SqSigAll: a.SqSigAll,
		CompMask: a.CompMask, Pd: a.Pd, Xrcd: a.Xrcd,
	}
	if x.CompMask&libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
		x.CreateFlags = a.CreateFlags
	}
	if x.CompMask&libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		x.SendOpsFlags = a.SendOpsFlags
	}
	return x
}

// createQPEx creates a queue pair of any type, and sets a.Cap to the limits
// that it really has. a is a copy of the program's struct.
func (l *library) createQPEx(c *libibverbs.Context, a *libibverbs.QpInitAttrEx, context uintptr) (*libibverbs.Qp, syscall.Errno) {
	if a.QpType == libibverbs.IBV_QPT_XRC_RECV {
		return l.createXRCQP(c, a, context)
	}
	const known = libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
	if a.CompMask&^known != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	if a.CompMask&libibverbs.IBV_QP_INIT_ATTR_PD == 0 || a.Pd == nil || a.Pd.Context != c {
		return nil, syscall.EINVAL
	}
	return l.createQP(a.Pd, a, context)
}

// createQP creates a queue pair of any type but XRC_RECV, and sets a.Cap to the
// limits that it really has. a is a copy of the program's struct.
func (l *library) createQP(p *libibverbs.Pd, a *libibverbs.QpInitAttrEx, context uintptr) (*libibverbs.Qp, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if a.SendOpsFlags&^uint64(sendOps) != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	device := l.deviceOf(p.Context)
	if err := device.CheckQP(a); err != nil {
		return nil, errno(err)
	}
	limits := device.Limits()
	cap := &a.Cap
	// A slot has room for this much inline data anyway. Drivers grant such
	// room, too, and programs use it although they have not asked for it.
	cap.MaxInlineData = max(cap.MaxInlineData, min(cap.MaxSendSge*uint32(unsafe.Sizeof(libibverbs.Sge{})), limits.Inline))
	asked := *cap
	if a.Srq != nil || a.RecvCq == nil || a.QpType == libibverbs.IBV_QPT_XRC_SEND {
		cap.MaxRecvWr, cap.MaxRecvSge = 0, 0
	}
	var raw *softQP
	var err error
	l.allocating(domain, func(from *allocator) { raw, err = newQP(cap, a.SendOpsFlags, limits, from) })
	if raw == nil {
		return nil, errno(err)
	}
	q, err := l.newQP(domain, a, asked, raw)
	if err != nil {
		l.allocating(domain, func(*allocator) { freeQP(raw) })
		return nil, errno(err)
	}
	return l.keepQP(q, context), 0
}

// newQP returns the queue pair for an object that the program has not got yet.
// asked has the limits that the program has asked for.
func (l *library) newQP(domain *pd, a *libibverbs.QpInitAttrEx, asked libibverbs.QpCap, raw *softQP) (*qp, error) {
	p := domain.c
	if l.domain(p) != domain { // the call of the program's allocator has unlocked the node
		return nil, syscall.EINVAL
	}
	config := engine.QPConfig{Send: &raw.send, Attr: libibverbs.QpInitAttrEx{ // all but the context
		Cap: asked, QpType: a.QpType, SqSigAll: a.SqSigAll, CompMask: a.CompMask, CreateFlags: a.CreateFlags, SendOpsFlags: a.SendOpsFlags,
	}}
	for _, dir := range []struct {
		c  *libibverbs.Cq
		to **engine.CQ
	}{{a.SendCq, &config.SendCQ}, {a.RecvCq, &config.RecvCQ}} {
		if dir.c == nil {
			continue
		}
		q := l.cqs[dir.c]
		if q == nil || dir.c.Context != p.Context {
			return nil, syscall.EINVAL
		}
		*dir.to = q.e
	}
	var tagCQ *libibverbs.Cq
	if a.Srq != nil {
		s := l.srqs[a.Srq]
		if s == nil || a.Srq.Context != p.Context {
			return nil, syscall.EINVAL
		}
		config.SRQ = s.e
		if s.cq != nil {
			tagCQ = s.cq.c
		}
	}
	recvCQ := a.RecvCq
	if a.QpType == libibverbs.IBV_QPT_XRC_SEND {
		recvCQ = nil
	}
	if a.Srq == nil {
		config.Recv = &raw.recv
	}
	e, err := domain.e.CreateQP(config)
	if err != nil {
		return nil, err
	}
	raw.send.Owner, raw.recv.Owner = uint64(e.Number()), uint64(e.Number())
	q := &qp{c: (*libibverbs.Qp)(unsafe.Pointer(raw)), e: e, domain: domain, tagCQ: tagCQ}
	domain.users++
	q.c.Context, q.c.Pd, q.c.SendCq, q.c.RecvCq, q.c.Srq = p.Context, p, a.SendCq, recvCQ, a.Srq
	q.init = libibverbs.QpInitAttr{
		SendCq: a.SendCq, RecvCq: recvCQ, Srq: a.Srq, Cap: a.Cap, QpType: a.QpType, SqSigAll: a.SqSigAll,
	}
	l.check(q)
	return q, nil
}

// keepQP completes the C object of a queue pair, and makes the queue pair known
// by it.
func (l *library) keepQP(q *qp, context uintptr) *libibverbs.Qp {
	q.c.QpNum, q.c.Handle, q.c.QpType, q.c.State = q.e.Number(), q.e.Number(), q.e.Type(), q.e.State()
	setContext(&q.c.QpContext, context)
	l.qps[q.c] = q
	l.byQP[q.e] = append(l.byQP[q.e], q)
	return q.c
}

// createXRCQP creates a queue pair of the type XRC_RECV, which has no queues,
// and sets a.Cap. As in Linux, the program may name a protection domain, which
// is not used. a is a copy of the program's struct.
func (l *library) createXRCQP(c *libibverbs.Context, a *libibverbs.QpInitAttrEx, context uintptr) (*libibverbs.Qp, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	device := l.deviceOf(c)
	if device == nil {
		return nil, syscall.EINVAL
	}
	if err := device.CheckQP(a); err != nil {
		return nil, errno(err)
	}
	var pd *libibverbs.Pd
	if a.CompMask&libibverbs.IBV_QP_INIT_ATTR_PD != 0 {
		pd = a.Pd
	}
	x := l.xrcds[a.Xrcd]
	if a.CompMask&libibverbs.IBV_QP_INIT_ATTR_XRCD == 0 || x == nil || x.c.Context != c || pd != nil && pd.Context != c {
		return nil, syscall.EINVAL
	}
	e, err := x.domain.e.CreateQP(&libibverbs.QpInitAttrEx{QpType: a.QpType})
	if err != nil {
		return nil, errno(err)
	}
	q, failed := l.openXRCQP(x, e, context)
	if failed != 0 {
		e.Destroy()
		return nil, failed
	}
	q.Pd = pd
	a.Cap = libibverbs.QpCap{}
	return q, 0
}

// openQP opens a queue pair of the type XRC_RECV by its number.
func (l *library) openQP(c *libibverbs.Context, a *libibverbs.QpOpenAttr) (*libibverbs.Qp, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	const needed = libibverbs.IBV_QP_OPEN_ATTR_NUM | libibverbs.IBV_QP_OPEN_ATTR_XRCD | libibverbs.IBV_QP_OPEN_ATTR_TYPE
	if a.CompMask >= libibverbs.IBV_QP_OPEN_ATTR_RESERVED {
		return nil, syscall.EOPNOTSUPP
	}
	x := l.xrcds[a.Xrcd]
	if !l.isOpen(c) || a.CompMask&needed != needed || a.QpType != libibverbs.IBV_QPT_XRC_RECV || x == nil || x.c.Context != c {
		return nil, syscall.EINVAL
	}
	e := x.domain.e.XRCQP(a.QpNum)
	if e == nil {
		return nil, syscall.EINVAL
	}
	var context uintptr
	if a.CompMask&libibverbs.IBV_QP_OPEN_ATTR_CONTEXT != 0 {
		context = contextOf(&a.QpContext)
	}
	return l.openXRCQP(x, e, context)
}

// openXRCQP returns a C object for the queue pair e, which is of the type
// XRC_RECV and in the domain x.
func (l *library) openXRCQP(x *xrcd, e *engine.QP, context uintptr) (*libibverbs.Qp, syscall.Errno) {
	raw, err := newQP(&libibverbs.QpCap{}, 0, l.deviceOf(x.c.Context).Limits(), nil)
	if raw == nil {
		return nil, errno(err)
	}
	q := &qp{c: (*libibverbs.Qp)(unsafe.Pointer(raw)), e: e, xrcd: x}
	q.c.Context = x.c.Context
	q.init = libibverbs.QpInitAttr{QpType: e.Type()}
	x.users++
	return l.keepQP(q, context), 0
}

// hold runs f while no thread posts to the queue pair or polls its completion
// queues. It waits for such threads, and unlocks the node meanwhile: a thread
// that is between ibv_start_poll and ibv_end_poll may call functions that need
// the node.
func (l *library) hold(q *qp, f func() error) error {
	// A thread that polls may post, so the completion queues come first.
	// All threads lock them in the same order.
	cqs := slices.DeleteFunc([]*softCQ{
		(*softCQ)(unsafe.Pointer(q.c.SendCq)), (*softCQ)(unsafe.Pointer(q.c.RecvCq)), (*softCQ)(unsafe.Pointer(q.tagCQ)),
	}, func(c *softCQ) bool { return c == nil })
	sort.Slice(cqs, func(i, j int) bool { return address(cqs[i]) < address(cqs[j]) })
	cqs = slices.Compact(cqs)
	l.unlocked(q.c.Context, func() {
		for _, cq := range cqs {
			lockCQ(cq)
		}
		lockQP(q.soft())
	})
	defer func() {
		unlockQP(q.soft())
		for _, cq := range cqs {
			unlockCQ(cq)
		}
	}()
	if l.qps[q.c] != q {
		return syscall.EINVAL
	}
	return f()
}

func (l *library) modifyQP(c *libibverbs.Qp, a *libibverbs.QpAttr, mask libibverbs.QpAttrMask) syscall.Errno {
	q := l.qps[c]
	if q == nil || !l.isOpen(c.Context) {
		return syscall.EINVAL
	}
	if mask&libibverbs.IBV_QP_AV != 0 {
		if err := l.Reach(&a.AhAttr); err != nil {
			return errno(err)
		}
	}
	l.Hear() // let the device see the requests that were posted before
	if mask&libibverbs.IBV_QP_STATE != 0 && a.QpState == libibverbs.IBV_QPS_ERR {
		l.Receive() // requests that are acknowledged must not be flushed
	}
	mask &^= unusedAttrs[q.e.Type()]
	modify := func() error { return q.e.Modify(a, mask) }
	var err error
	if mask&libibverbs.IBV_QP_STATE != 0 && a.QpState == libibverbs.IBV_QPS_RESET {
		err = l.hold(q, func() error {
			err := modify()
			if err == nil {
				q.uncheck(false)
			}
			return err
		})
	} else {
		err = modify()
	}
	if err == nil && mask&libibverbs.IBV_QP_STATE != 0 {
		c.State = a.QpState
	}
	return errno(err)
}

func (l *library) destroyQP(c *libibverbs.Qp) syscall.Errno {
	q := l.qps[c]
	if q == nil {
		return syscall.EINVAL
	}
	err := l.hold(q, func() error {
		if len(l.byQP[q.e]) > 1 { // the queue pair is open elsewhere
			return nil
		}
		return q.e.Destroy()
	})
	if err != nil {
		return errno(err)
	}
	if l.byQP[q.e] = slices.DeleteFunc(l.byQP[q.e], func(o *qp) bool { return o == q }); len(l.byQP[q.e]) == 0 {
		delete(l.byQP, q.e)
	}
	if q.xrcd != nil {
		q.xrcd.users--
	}
	l.Hear() // the doorbell's list may still link the queue pair's queues
	delete(l.qps, c)
	l.retire(c.Context, address(c), &q.events)
	q.uncheck(true)
	l.allocating(q.domain, func(*allocator) { freeQP(q.soft()) })
	if q.domain != nil {
		q.domain.users--
	}
	return 0
}

// closeQP ends a queue pair, also one that is in multicast groups, as its
// context is being closed.
func (l *library) closeQP(c *libibverbs.Qp) syscall.Errno {
	e := l.qps[c].e
	for _, group := range e.Groups() {
		l.Detach(e, group)
	}
	return l.destroyQP(c)
}

// unusedAttrs has the attributes that ibv_modify_qp ignores for each type of
// queue pair, as in Linux: programs set them for the queue pairs of both ends
// of an extended reliable connection.
var unusedAttrs = map[libibverbs.QpType]libibverbs.QpAttrMask{
	libibverbs.IBV_QPT_XRC_SEND: libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER,
	libibverbs.IBV_QPT_XRC_RECV: libibverbs.IBV_QP_MAX_QP_RD_ATOMIC | libibverbs.IBV_QP_RETRY_CNT | libibverbs.IBV_QP_RNR_RETRY,
}

// withQP calls f with the node locked. It returns EINVAL if c is not a queue
// pair, or if its context is being closed.
func withQP(c *libibverbs.Qp, f func(*library, *qp) error) syscall.Errno {
	l := self()
	l.Lock()
	defer l.Unlock()
	q := l.qps[c]
	if q == nil || !l.isOpen(c.Context) {
		return syscall.EINVAL
	}
	return errno(f(l.library, q))
}
