// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// EventType is the type of an event.
type EventType = librdmacm.CmEventType

// The event types. See rdma_get_cm_event(3).
const (
	// EventAddrResolved reports that the device for the destination was found.
	// ID.Device returns it. Call ID.ResolveRoute next.
	EventAddrResolved EventType = librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED
	// EventAddrError reports that ID.ResolveAddr failed. Status is the cause.
	EventAddrError EventType = librdmacm.RDMA_CM_EVENT_ADDR_ERROR
	// EventRouteResolved reports that the path to the destination was found.
	// Call ID.CreateQP, if not yet done, and ID.Connect next.
	EventRouteResolved EventType = librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED
	// EventRouteError reports that ID.ResolveRoute failed. Status is the cause.
	EventRouteError EventType = librdmacm.RDMA_CM_EVENT_ROUTE_ERROR
	// EventConnectRequest reports that a peer asks ListenID for a connection.
	// ID is a new ID, and the event has the peer's parameters. Call ID.Accept
	// or ID.Reject, and ID.Close at the end.
	EventConnectRequest EventType = librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST
	// EventConnectResponse reports that the peer has accepted an ID without a
	// queue pair from ID.CreateQP. The event has the peer's parameters. Move
	// the queue pair to the state RTS, then call ID.Establish.
	EventConnectResponse EventType = librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE
	// EventConnectError reports that connecting failed at this end. Status is
	// the cause. No event of the ID follows. Close the ID.
	EventConnectError EventType = librdmacm.RDMA_CM_EVENT_CONNECT_ERROR
	// EventUnreachable reports that the peer does not answer. For datagrams, it
	// may also report that the peer refuses; Event.Err tells which.
	EventUnreachable EventType = librdmacm.RDMA_CM_EVENT_UNREACHABLE
	// EventRejected reports that the peer refuses. Status is a Reason, and
	// PrivateData is data from the peer's program.
	EventRejected EventType = librdmacm.RDMA_CM_EVENT_REJECTED
	// EventEstablished reports that the connection is up, at either end. At the
	// end that called ID.Connect, the event has the peer's parameters. For
	// datagrams, it has the peer's Path, QPNum and QKey.
	EventEstablished EventType = librdmacm.RDMA_CM_EVENT_ESTABLISHED
	// EventDisconnected reports that the connection is over. If the peer has
	// ended it, call ID.Disconnect to answer. Close the queue pair and the ID.
	EventDisconnected EventType = librdmacm.RDMA_CM_EVENT_DISCONNECTED
	// EventDeviceRemoval reports that the device was removed from the machine.
	// Close the ID and all objects of the device; the kernel may wait for that.
	EventDeviceRemoval EventType = librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL
	// EventMulticastJoin reports that the ID has joined a multicast group.
	// Value is the value that was passed to JoinMulticast. Path, QPNum and
	// QKey address the group's members.
	EventMulticastJoin EventType = librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN
	// EventMulticastError reports that the ID could not join a multicast
	// group, or has lost it. Value is the value that was passed to
	// JoinMulticast. Call ID.LeaveMulticast.
	EventMulticastError EventType = librdmacm.RDMA_CM_EVENT_MULTICAST_ERROR
	// EventAddrChange reports that another network interface has taken over the
	// address of the ID, so the connection may stop working. Connect again.
	EventAddrChange EventType = librdmacm.RDMA_CM_EVENT_ADDR_CHANGE
	// EventTimewaitExit reports that packets of an ended connection can no
	// longer arrive, so another connection may use its queue pair.
	EventTimewaitExit EventType = librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT
	// EventAddrInfoResolved reports that ID.ResolveAddrInfo has succeeded.
	// ID.QueryAddrInfo returns the results.
	EventAddrInfoResolved EventType = librdmacm.RDMA_CM_EVENT_ADDRINFO_RESOLVED
	// EventAddrInfoError reports that ID.ResolveAddrInfo failed. Status is the
	// cause.
	EventAddrInfoError EventType = librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR
	// EventUser is an event that ID.WriteUserEvent has added. Status and
	// Arg are those passed to it.
	EventUser EventType = librdmacm.RDMA_CM_EVENT_USER
)

// An Event describes what happened to an ID. It is a copy: the C event has
// already been acknowledged.
type Event struct {
	ID       *ID // affected ID; for EventConnectRequest, a new one
	ListenID *ID // listening ID, for EventConnectRequest
	Type     EventType
	Status   int // 0, an errno, a negative errno or a reason, depending on Type; see Err

	// For connections and datagrams:
	PrivateData []byte // data from the peer, padded with zeros to the transport's maximum
	QPNum       uint32 // the peer's queue pair, or the destination for a multicast group

	ResponderResources int // RDMA reads and atomics that the peer wants to have in flight
	InitiatorDepth     int // number of RDMA reads and atomics that the peer can answer at once
	FlowControl        bool
	RetryCount         int // retry count that the peer wants this end to use
	RNRRetryCount      int // retry count for messages for which the peer has no receive
	SRQ                bool

	// For datagrams, with EventEstablished and EventMulticastJoin:
	Path ibverbs.AHAttr // path to the peer or group, for an address handle
	QKey uint32         // queue key that datagrams to the peer or group must carry

	Value any    // value given to JoinMulticast, for multicast events
	Arg   uint64 // number given to WriteUserEvent, for EventUser

	broken error // reason why no more events can be read, or nil; this event is the last
}

// copyEvent copies a C event, except its IDs.
func copyEvent(raw *librdmacm.CmEvent) *Event {
	ev := &Event{Type: raw.Event, Status: int(raw.Status)}
	switch raw.Event {
	case EventConnectRequest, EventConnectResponse, EventEstablished, EventRejected, EventUnreachable, EventDisconnected:
		if raw.Id.QpType == libibverbs.IBV_QPT_UD {
			ud := raw.Param.Ud()
			ev.copyData(ud.PrivateData, ud.PrivateDataLen)
			ev.copyDatagram(ud)
			break
		}
		p := raw.Param.Conn()
		ev.copyData(p.PrivateData, p.PrivateDataLen)
		ev.ResponderResources, ev.InitiatorDepth = int(p.ResponderResources), int(p.InitiatorDepth)
		ev.FlowControl, ev.SRQ = p.FlowControl != 0, p.Srq != 0
		ev.RetryCount, ev.RNRRetryCount = int(p.RetryCount), int(p.RnrRetryCount)
		ev.QPNum = p.QpNum
	case EventMulticastJoin, EventMulticastError:
		ud := raw.Param.Ud()
		ev.copyDatagram(ud)
		// C puts the caller's context where other events have private data.
		if j, ok := joins.load(ud.PrivateData); ok {
			ev.Value = j.value
			if ev.Type == EventMulticastJoin {
				path := ev.Path
				j.path.Store(&path)
			}
		}
	case EventUser:
		ev.Arg = *raw.Param.Arg()
	}
	return ev
}

func (ev *Event) copyData(data unsafe.Pointer, n uint8) {
	if data != nil {
		ev.PrivateData = append(ev.PrivateData, unsafe.Slice((*byte)(data), n)...)
	}
}

func (ev *Event) copyDatagram(ud *librdmacm.UdParam) {
	ev.Path, ev.QPNum, ev.QKey = ibverbs.AHAttrFromRaw(&ud.AhAttr), ud.QpNum, ud.Qkey
}

// Err returns the failure or the end that the event reports, or nil if it
// reports progress. The error is a *RejectedError for EventRejected, and for an
// EventUnreachable that carries a datagram peer's refusal, and an *EventError
// otherwise.
func (ev *Event) Err() error {
	switch ev.Type {
	case EventRejected:
		return &RejectedError{Reason: Reason(ev.Status), PrivateData: ev.PrivateData}
	case EventUnreachable:
		if reason, ok := datagramReasons[ev.Status]; ok {
			return &RejectedError{Reason: reason, PrivateData: ev.PrivateData}
		}
		return &EventError{Type: ev.Type, Status: ev.Status}
	case EventAddrError, EventRouteError, EventConnectError, EventMulticastError,
		EventAddrInfoError, EventDisconnected, EventDeviceRemoval, EventAddrChange:
		return &EventError{Type: ev.Type, Status: ev.Status, broken: ev.broken}
	}
	return nil
}

// datagramReasons maps the status with which a peer refuses a datagram request
// to a reason.
var datagramReasons = map[int]Reason{1: ReasonNoListener, 2: ReasonConsumer, 3: ReasonNoQP, 4: 25, 5: 31}

// An EventError is an event that reports a failure or the end of a connection.
type EventError struct {
	Type   EventType
	Status int // Status of the Event; Unwrap decodes it

	broken error // reason why no more events can be read, or nil
}

// Error describes the event and, if Status says it, the cause. If the event
// reports that no more events can be read, the cause is the error of
// rdma_get_cm_event.
func (e *EventError) Error() string {
	text := eventTexts[e.Type]
	if text == "" {
		text = e.Type.String()
	}
	if e.broken != nil {
		return text + ": " + e.broken.Error()
	}
	if errno := e.errno(); errno != 0 {
		return text + ": " + errno.Error()
	}
	if e.Status > 0 {
		return fmt.Sprintf("%s: reason %d", text, e.Status)
	}
	return text
}

var eventTexts = map[EventType]string{
	EventAddrError:     "address not resolved",
	EventRouteError:    "route not resolved",
	EventConnectError:  "connection failed",
	EventUnreachable:   "peer unreachable",
	EventDisconnected:  "disconnected",
	EventDeviceRemoval: "device removed",
	EventAddrChange:    "address changed",

	EventMulticastError: "multicast group not joined",
	EventAddrInfoError:  "name not resolved",
}

// errno returns the errno in the status, or 0 if there is none. A status of -1
// is a failure whose errno the library lost. A positive status is an errno only
// in events that the library itself creates.
func (e *EventError) errno() syscall.Errno {
	switch {
	case e.Status < -1:
		return syscall.Errno(-e.Status)
	case e.Status > 0 && (e.Type == EventConnectError || e.Type == EventAddrInfoError):
		return syscall.Errno(e.Status)
	}
	return 0
}

// Unwrap returns the event's errno. Without one in Status, it is
// syscall.ECONNRESET for EventDisconnected, syscall.EHOSTUNREACH for
// EventUnreachable, syscall.ENODEV for EventDeviceRemoval, and syscall.EIO
// otherwise.
func (e *EventError) Unwrap() error {
	if errno := e.errno(); errno != 0 {
		return errno
	}
	switch e.Type {
	case EventDisconnected:
		return syscall.ECONNRESET
	case EventUnreachable:
		return syscall.EHOSTUNREACH
	case EventDeviceRemoval:
		return syscall.ENODEV
	}
	return syscall.EIO
}
