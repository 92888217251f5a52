// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// endpointTimeout is the time in milliseconds that rdma_create_ep allows for
// each of two steps: resolving the address and resolving the route.
const endpointTimeout = 2000

func init() {
	cm.CreateEp = func(out **librdmacm.CmId, info *librdmacm.Addrinfo, p *libibverbs.Pd, a *libibverbs.QpInitAttr) syscall.Errno {
		c, err := self().createID(nil, 0, info.AiPortSpace, info.AiQpType)
		if err != 0 {
			return err
		}
		if info.AiFlags&librdmacm.RAI_PASSIVE != 0 {
			err = passive(c, info, p, a)
		} else {
			err = active(c, info, p, a)
		}
		if err != 0 {
			cm.DestroyEp(c)
			return err
		}
		*out = c
		return 0
	}
	cm.DestroyEp = func(c *librdmacm.CmId) {
		if c.Qp != nil {
			cm.DestroyQp(c)
		}
		if c.Srq != nil {
			cm.DestroySrq(c)
		}
		cm.DestroyId(c)
	}
	cm.GetRequest = getRequest
}

// passive prepares an ID for listening. If a is not nil, passive keeps it for
// the queue pairs of connection requests to the ID.
func passive(c *librdmacm.CmId, info *librdmacm.Addrinfo, p *libibverbs.Pd, a *libibverbs.QpInitAttr) syscall.Errno {
	return withID(c, func(l *cmLibrary, i *id) syscall.Errno {
		if err := l.bind(i, info.AiSrcAddr); err != 0 {
			return err
		}
		if p != nil {
			c.Pd = p
		}
		if a != nil {
			i.qpInit = alloc[libibverbs.QpInitAttr]()
			*i.qpInit = *a
			i.qpInit.QpType = info.AiQpType
		}
		return 0
	})
}

// active prepares an ID for connecting: it resolves the address and the route,
// and creates a queue pair if a is not nil.
func active(c *librdmacm.CmId, info *librdmacm.Addrinfo, p *libibverbs.Pd, a *libibverbs.QpInitAttr) syscall.Errno {
	if err := cm.ResolveAddr(c, info.AiSrcAddr, info.AiDstAddr, endpointTimeout); err != 0 {
		return err
	}
	if err := resolveRoute(c, info); err != 0 {
		return err
	}
	if a != nil {
		a.QpType = info.AiQpType
		if err := createCMQP(c, p, a); err != 0 {
			return err
		}
	}
	const mostPrivate = 256
	if info.AiConnectLen > mostPrivate {
		return syscall.EINVAL
	}
	return withID(c, func(_ *cmLibrary, i *id) syscall.Errno {
		if info.AiConnect != nil {
			i.connect = append([]byte(nil), unsafe.Slice((*byte)(info.AiConnect), info.AiConnectLen)...)
		}
		return 0
	})
}

// resolveRoute sets the route of the ID to the one in info. If info has none,
// it resolves the route.
func resolveRoute(c *librdmacm.CmId, info *librdmacm.Addrinfo) syscall.Errno {
	const most = 1 << 12
	if info.AiRouteLen == 0 {
		return cm.ResolveRoute(c, endpointTimeout)
	}
	if info.AiRoute == nil || info.AiRouteLen > most {
		return syscall.EINVAL
	}
	return completed(c, func(_ *cmLibrary, i *id) syscall.Errno {
		return i.setPath(unsafe.Slice((*byte)(info.AiRoute), info.AiRouteLen))
	})
}

// getRequest takes a connection request to a synchronous listener, for which
// the semaphore of the listener's channel was read, and stores the ID of the
// request in out. If another event has arrived, getRequest stores the event in
// listen.Event and fails. With nil for out, it only says whether listen is
// synchronous.
func getRequest(listen *librdmacm.CmId, out **librdmacm.CmId) syscall.Errno {
	var channel *librdmacm.EventChannel
	var attr *libibverbs.QpInitAttr
	err := withID(listen, func(l *cmLibrary, i *id) syscall.Errno {
		if !i.sync {
			return syscall.EINVAL
		}
		if out == nil { // the call begins
			l.ackOwn(i)
		}
		channel, attr = i.channel.c, i.qpInit
		return 0
	})
	if out == nil {
		return err
	}
	if err != 0 {
		return syscall.EBADF // it was destroyed since
	}
	e, err := self().takeCMEvent(channel)
	if err != 0 {
		return err
	}
	switch {
	case e.Event == librdmacm.RDMA_CM_EVENT_REJECTED:
		err = syscall.ECONNREFUSED
	case e.Status < 0:
		err = syscall.Errno(-e.Status)
	case e.Status > 0:
		err = syscall.Errno(e.Status)
	case e.Event != librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST:
		err = syscall.EINVAL
	case attr != nil:
		a := alloc[libibverbs.QpInitAttr]()
		defer free(a)
		*a = *attr
		err = createCMQP(e.Id, listen.Pd, a)
	}
	if err != 0 {
		listen.Event = e
		return err
	}
	e.Id.Event = e
	*out = e.Id
	return 0
}
