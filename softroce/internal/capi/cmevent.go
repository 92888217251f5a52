// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// cmEvent is an event that the program has taken but not acknowledged yet.
type cmEvent struct {
	id    *id    // ID that the event is about; for a CONNECT_REQUEST, the listener
	group *group // multicast group that the event is about, or nil
}

// eventMemory is an event in C's memory, with its private data.
type eventMemory struct {
	event   librdmacm.CmEvent
	private [256]byte
}

// unknown is the status of an event that reports a failure in handling another
// event. Like librdmacm, the library does not tell the program the cause.
const unknown = -1

func init() {
	cm.AckCmEvent = func(e *librdmacm.CmEvent) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.ackCMEvent(e)
	}
}

func (l *cmLibrary) ackCMEvent(c *librdmacm.CmEvent) syscall.Errno {
	e := l.events[c]
	if e == nil {
		return syscall.EINVAL
	}
	delete(l.events, c)
	free(c)
	l.acknowledged(e)
	return 0
}

// acknowledged counts the acknowledgement of an event.
func (l *cmLibrary) acknowledged(e *cmEvent) {
	e.id.acked++
	if e.group != nil {
		e.group.acked++
	}
	l.acked.Broadcast()
}

// awaitAcks waits until acked is at least reported. acked is the number of
// events that the program has acknowledged. The node is unlocked while
// awaitAcks waits.
func (l *cmLibrary) awaitAcks(acked *int, reported int) {
	for *acked < reported {
		l.acked.Wait()
	}
}

// show turns an event of the manager into an event in C's memory. It also does
// the work that librdmacm does when a program takes the event. It returns nil
// if the program must not see the event.
func (l *cmLibrary) show(e *manager.Event) *librdmacm.CmEvent {
	i := e.ID.Context.(*id) // for a CONNECT_REQUEST, the listener
	own := &cmEvent{id: i}
	m := alloc[eventMemory]()
	out := &m.event
	out.Id, out.Event, out.Status = i.c, e.Type, int32(e.Status)
	switch {
	case e.Type == librdmacm.RDMA_CM_EVENT_USER:
		*out.Param.Arg() = e.Arg
	case i.c.QpType == libibverbs.IBV_QPT_UD:
		m.setUD(&e.UD)
	default:
		m.setConn(&e.Conn)
	}

	fail := func(t librdmacm.CmEventType, err syscall.Errno) {
		if err != 0 {
			out.Event, out.Status = t, unknown
		}
	}
	dropped := false
	switch e.Type {
	case librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED:
		fail(librdmacm.RDMA_CM_EVENT_ADDR_ERROR, l.queryAddr(i))
	case librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED:
		l.queryPath(i)
	case librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST:
		child, err := l.request(i, e)
		if dropped = err != 0; !dropped {
			out.Id, out.ListenId = child.c, i.c
		}
	case librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE:
		i.remoteECE = e.ECE
		if i.c.Qp == nil {
			break
		}
		out.Event = librdmacm.RDMA_CM_EVENT_ESTABLISHED
		err := l.respond(i)
		i.connectError = err != 0
		fail(librdmacm.RDMA_CM_EVENT_CONNECT_ERROR, err)
	case librdmacm.RDMA_CM_EVENT_REJECTED:
		if dropped = i.connectError; !dropped {
			l.modifyToError(i)
		}
	case librdmacm.RDMA_CM_EVENT_DISCONNECTED:
		dropped = i.connectError
	case librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN, librdmacm.RDMA_CM_EVENT_MULTICAST_ERROR:
		own.group = e.Context.(*group)
		setContext(&out.Param.Ud().PrivateData, own.group.context)
		if e.Type == librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN {
			fail(librdmacm.RDMA_CM_EVENT_MULTICAST_ERROR, l.attach(i, own.group))
		}
	}
	if dropped {
		free(m)
		l.acknowledged(own)
		return nil
	}
	l.events[out] = own
	return out
}

// setConn sets the parameters of a connection event.
func (m *eventMemory) setConn(p *manager.ConnParam) {
	to := m.event.Param.Conn()
	to.PrivateData, to.PrivateDataLen = m.setPrivate(p.PrivateData)
	to.ResponderResources, to.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	to.FlowControl, to.Srq = flag(p.FlowControl), flag(p.SRQ)
	to.RetryCount, to.RnrRetryCount = p.RetryCount, p.RNRRetryCount
	to.QpNum = p.QPNum
}

// setUD sets the parameters of a datagram event.
func (m *eventMemory) setUD(p *manager.UDParam) {
	to := m.event.Param.Ud()
	to.PrivateData, to.PrivateDataLen = m.setPrivate(p.PrivateData)
	to.AhAttr, to.QpNum, to.Qkey = p.AhAttr, p.QPNum, p.QKey
}

// setPrivate copies private data to C's memory, and returns its address and
// length.
func (m *eventMemory) setPrivate(data []byte) (unsafe.Pointer, uint8) {
	if len(data) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&m.private), uint8(copy(m.private[:], data))
}

func flag(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}
