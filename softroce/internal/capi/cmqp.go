// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

func init() {
	cm.CreateQp = createCMQP
	cm.CreateQpEx = func(c *librdmacm.CmId, a *libibverbs.QpInitAttrEx) syscall.Errno {
		x := copyQPInit(a)
		err := createCMQPEx(c, &x, contextOf(&a.QpContext))
		if err == 0 {
			a.SendCq, a.RecvCq, a.Srq, a.Cap, a.CompMask, a.Pd, a.Xrcd = x.SendCq, x.RecvCq, x.Srq, x.Cap, x.CompMask, x.Pd, x.Xrcd
		}
		return err
	}
	cm.DestroyQp = func(c *librdmacm.CmId) {
		if c.Qp != nil {
			verbs.DestroyQp(c.Qp)
			c.Qp = nil
		}
		destroyCQs(c)
	}
	cm.CreateSrq = func(c *librdmacm.CmId, p *libibverbs.Pd, a *libibverbs.SrqInitAttr) syscall.Errno {
		x := libibverbs.SrqInitAttrEx{
			Attr: a.Attr, CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD,
			SrqType: libibverbs.IBV_SRQT_BASIC, Pd: p,
		}
		if c.QpType == libibverbs.IBV_QPT_XRC_RECV {
			x.SrqType = libibverbs.IBV_SRQT_XRC
		}
		err := createCMSRQ(c, &x, contextOf(&a.SrqContext))
		if err == 0 {
			a.Attr = x.Attr
		}
		return err
	}
	cm.CreateSrqEx = func(c *librdmacm.CmId, a *libibverbs.SrqInitAttrEx) syscall.Errno {
		x := copySRQInit(a)
		err := createCMSRQ(c, &x, contextOf(&a.SrqContext))
		if err == 0 {
			a.Attr, a.CompMask, a.Pd, a.Xrcd, a.Cq = x.Attr, x.CompMask, x.Pd, x.Xrcd, x.Cq
		}
		return err
	}
	cm.DestroySrq = func(c *librdmacm.CmId) {
		if c.Srq != nil {
			verbs.DestroySrq(c.Srq)
			c.Srq = nil
		}
		destroyCQs(c)
	}
	cm.InitQpAttr = func(c *librdmacm.CmId, a *libibverbs.QpAttr, mask *libibverbs.QpAttrMask) syscall.Errno {
		return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
			attr, m, err := i.e.InitQPAttr(a.QpState)
			if err != nil {
				return errno(err)
			}
			fill(unsafe.Pointer(a), oldQPAttr, &attr)
			*mask = m
			return 0
		})
	}
}

func createCMQP(c *librdmacm.CmId, p *libibverbs.Pd, a *libibverbs.QpInitAttr) syscall.Errno {
	x := libibverbs.QpInitAttrEx{
		SendCq: a.SendCq, RecvCq: a.RecvCq, Srq: a.Srq, Cap: a.Cap, QpType: a.QpType, SqSigAll: a.SqSigAll,
		CompMask: libibverbs.IBV_QP_INIT_ATTR_PD, Pd: p,
	}
	err := createCMQPEx(c, &x, contextOf(&a.QpContext))
	if err == 0 {
		a.SendCq, a.RecvCq, a.Srq, a.Cap = x.SendCq, x.RecvCq, x.Srq, x.Cap
	}
	return err
}

// createCMQPEx creates a queue pair for an ID. If a names no protection domain,
// completion queue or SRQ, it uses the ID's, and stores them in a. a is a copy
// of the program's struct, which a call that fails does not change.
func createCMQPEx(c *librdmacm.CmId, a *libibverbs.QpInitAttrEx, context uintptr) syscall.Errno {
	if c.Verbs == nil || c.Qp != nil {
		return syscall.EINVAL
	}
	if a.CompMask&libibverbs.IBV_QP_INIT_ATTR_PD == 0 || a.Pd == nil {
		a.CompMask |= libibverbs.IBV_QP_INIT_ATTR_PD
		a.Pd = c.Pd
	} else if a.Pd.Context != c.Verbs {
		return syscall.EINVAL
	}
	if c.RecvCq != nil && a.RecvCq != nil && c.RecvCq != a.RecvCq || c.SendCq != nil && a.SendCq != nil && c.SendCq != a.SendCq {
		return syscall.EINVAL
	}
	if c.QpType == libibverbs.IBV_QPT_XRC_RECV && (a.CompMask&libibverbs.IBV_QP_INIT_ATTR_XRCD == 0 || a.Xrcd == nil) {
		x, err := self().xrcdOf(c.Verbs)
		if err != 0 {
			return err
		}
		a.CompMask |= libibverbs.IBV_QP_INIT_ATTR_XRCD
		a.Xrcd = x
	}
	send, recv := a.Cap.MaxSendWr, a.Cap.MaxRecvWr
	if a.SendCq != nil || c.SendCq != nil {
		send = 0
	}
	if a.RecvCq != nil || c.RecvCq != nil {
		recv = 0
	}
	if err := createCQs(c, send, recv); err != 0 {
		return err
	}
	if a.SendCq == nil {
		a.SendCq = c.SendCq
	}
	if a.RecvCq == nil {
		a.RecvCq = c.RecvCq
	}
	if a.Srq == nil {
		a.Srq = c.Srq
	}
	q, err := self().createQPEx(c.Verbs, a, context)
	if err != 0 {
		destroyCQs(c)
		return err
	}
	err = withID(c, func(l *cmLibrary, i *id) syscall.Errno {
		i.setLocalECE(libibverbs.Ece{}) // the device supports no ECE options
		return l.begin(i, q)
	})
	if err != 0 {
		verbs.DestroyQp(q)
		destroyCQs(c)
		return err
	}
	c.Pd, c.Qp = a.Pd, q
	return 0
}

// createCQs creates completion queues with channels for an ID: one for sends,
// with send entries, and one for receives, with recv entries. It creates none
// for a size of 0.
func createCQs(c *librdmacm.CmId, send, recv uint32) syscall.Errno {
	for _, dir := range []struct {
		size    uint32
		channel **libibverbs.CompChannel
		cq      **libibverbs.Cq
	}{{recv, &c.RecvCqChannel, &c.RecvCq}, {send, &c.SendCqChannel, &c.SendCq}} {
		if dir.size == 0 {
			continue
		}
		channel, err := verbs.CreateCompChannel(c.Verbs)
		if err == 0 {
			*dir.channel = channel
			*dir.cq, err = verbs.CreateCq(c.Verbs, int32(min(dir.size, 1<<30)), uintptr(unsafe.Pointer(c)), channel, 0)
		}
		if err != 0 {
			destroyCQs(c)
			return err
		}
	}
	return 0
}

// destroyCQs destroys the completion queues and channels of an ID, unless its
// shared receive queue for XRC still uses them.
func destroyCQs(c *librdmacm.CmId) {
	if c.QpType == libibverbs.IBV_QPT_XRC_RECV && c.Srq != nil {
		return
	}
	recv, send := c.RecvCq, c.SendCq
	c.RecvCq, c.SendCq = nil, nil
	if recv != nil {
		verbs.DestroyCq(recv)
	}
	if send != nil && send != recv {
		verbs.DestroyCq(send)
	}
	recvChannel, sendChannel := c.RecvCqChannel, c.SendCqChannel
	c.RecvCqChannel, c.SendCqChannel = nil, nil
	if recvChannel != nil {
		verbs.DestroyCompChannel(recvChannel)
	}
	if sendChannel != nil && sendChannel != recvChannel {
		verbs.DestroyCompChannel(sendChannel)
	}
}

// createCMSRQ creates a shared receive queue for an ID. If a names no
// protection domain, it uses the ID's, and stores it in a. a is a copy of the
// program's struct, which a call that fails does not change.
func createCMSRQ(c *librdmacm.CmId, a *libibverbs.SrqInitAttrEx, context uintptr) syscall.Errno {
	if c.Verbs == nil || a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_TYPE == 0 {
		return syscall.EINVAL
	}
	if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_PD == 0 || a.Pd == nil {
		a.CompMask |= libibverbs.IBV_SRQ_INIT_ATTR_PD
		a.Pd = c.Pd
	}
	if a.SrqType == libibverbs.IBV_SRQT_XRC {
		if err := completeForXRC(c, a); err != 0 {
			return err
		}
	}
	s, err := self().createSRQEx(c.Verbs, a, context)
	if err != 0 {
		if a.SrqType == libibverbs.IBV_SRQT_XRC {
			destroyCQs(c)
		}
		return err
	}
	if c.Pd == nil {
		c.Pd = a.Pd
	}
	c.Srq = s
	return 0
}

// completeForXRC adds the XRC domain and the completion queue of an ID to a,
// unless a has its own.
func completeForXRC(c *librdmacm.CmId, a *libibverbs.SrqInitAttrEx) syscall.Errno {
	if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_XRCD == 0 || a.Xrcd == nil {
		x, err := self().xrcdOf(c.Verbs)
		if err != 0 {
			return err
		}
		a.Xrcd = x
	}
	if a.CompMask&libibverbs.IBV_SRQ_INIT_ATTR_CQ == 0 || a.Cq == nil {
		if c.RecvCq == nil {
			if err := createCQs(c, 0, a.Attr.MaxWr); err != 0 {
				return err
			}
		}
		a.Cq = c.RecvCq
	}
	a.CompMask |= libibverbs.IBV_SRQ_INIT_ATTR_XRCD | libibverbs.IBV_SRQ_INIT_ATTR_CQ
	return 0
}

// begin takes a new queue pair to the state that the program expects: RTS for
// datagrams, and INIT for connections.
func (l *cmLibrary) begin(i *id, q *libibverbs.Qp) syscall.Errno {
	if err := l.modifyTo(i, q, libibverbs.IBV_QPS_INIT, nil); err != 0 {
		return err
	}
	if i.c.QpType != libibverbs.IBV_QPT_UD {
		return 0
	}
	if err := l.modifyQP(q, &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RTR}, libibverbs.IBV_QP_STATE); err != 0 {
		return err
	}
	return l.modifyQP(q, &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RTS}, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_SQ_PSN)
}

// modifyToRTS takes the ID's queue pair to RTS, if the ID has one.
// RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH stand for the values on which both
// sides have agreed.
func (l *cmLibrary) modifyToRTS(i *id, responderResources, initiatorDepth uint8) syscall.Errno {
	if i.c.Qp == nil {
		return 0
	}
	if err := l.modifyTo(i, i.c.Qp, libibverbs.IBV_QPS_INIT, nil); err != 0 {
		return err
	}
	err := l.modifyTo(i, i.c.Qp, libibverbs.IBV_QPS_RTR, func(a *libibverbs.QpAttr) {
		if responderResources != librdmacm.RDMA_MAX_RESP_RES {
			a.MaxDestRdAtomic = responderResources
		}
	})
	if err != 0 {
		return err
	}
	return l.modifyTo(i, i.c.Qp, libibverbs.IBV_QPS_RTS, func(a *libibverbs.QpAttr) {
		if initiatorDepth != librdmacm.RDMA_MAX_INIT_DEPTH {
			a.MaxRdAtomic = initiatorDepth
		}
	})
}

// modifyTo takes a queue pair to the given state, with the attributes that the
// manager returns for that state. If change is not nil, it may change the
// attributes first.
func (l *cmLibrary) modifyTo(i *id, q *libibverbs.Qp, to libibverbs.QpState, change func(*libibverbs.QpAttr)) syscall.Errno {
	attr, mask, err := i.e.InitQPAttr(to)
	if err != nil {
		return errno(err)
	}
	if change != nil {
		change(&attr)
	}
	return l.modifyQP(q, &attr, mask)
}

// modifyToError takes the ID's queue pair to the error state, if the ID has
// one.
func (l *cmLibrary) modifyToError(i *id) syscall.Errno {
	if i.c.Qp == nil {
		return 0
	}
	return l.modifyQP(i.c.Qp, &libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_ERR}, libibverbs.IBV_QP_STATE)
}
