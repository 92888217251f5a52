package rdmacm

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// EventType says what happened to an id.
type EventType = librdmacm.CmEventType

// The types of events; rdma_get_cm_event(3) describes each.
const (
	EventAddrResolved     EventType = librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED
	EventAddrError        EventType = librdmacm.RDMA_CM_EVENT_ADDR_ERROR
	EventRouteResolved    EventType = librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED
	EventRouteError       EventType = librdmacm.RDMA_CM_EVENT_ROUTE_ERROR
	EventConnectRequest   EventType = librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST
	EventConnectResponse  EventType = librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE
	EventConnectError     EventType = librdmacm.RDMA_CM_EVENT_CONNECT_ERROR
	EventUnreachable      EventType = librdmacm.RDMA_CM_EVENT_UNREACHABLE
	EventRejected         EventType = librdmacm.RDMA_CM_EVENT_REJECTED
	EventEstablished      EventType = librdmacm.RDMA_CM_EVENT_ESTABLISHED
	EventDisconnected     EventType = librdmacm.RDMA_CM_EVENT_DISCONNECTED
	EventDeviceRemoval    EventType = librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL
	EventMulticastJoin    EventType = librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN
	EventMulticastError   EventType = librdmacm.RDMA_CM_EVENT_MULTICAST_ERROR
	EventAddrChange       EventType = librdmacm.RDMA_CM_EVENT_ADDR_CHANGE
	EventTimewaitExit     EventType = librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT
	EventAddrInfoResolved EventType = librdmacm.RDMA_CM_EVENT_ADDRINFO_RESOLVED
	EventAddrInfoError    EventType = librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR
	EventUser             EventType = librdmacm.RDMA_CM_EVENT_USER
)

// Event is a copy of what C reported; C's own is acknowledged already.
type Event struct {
	ID       *ID // what it happened to; of EventConnectRequest, a new one
	ListenID *ID // of EventConnectRequest, the id that listens
	Type     EventType
	Status   int // 0, an errno, -errno or a reason, as the type has it; see Err

	// Of connections and of datagrams.

	PrivateData []byte // the transport's maximum; what the peer sent, then zeros
	QPNum       uint32 // the peer's; of a multicast group, where its messages are sent to

	// Of connections.

	ResponderResources int // RDMA reads and atomics that the peer wants to have under way
	InitiatorDepth     int // and that it can answer
	FlowControl        bool
	RetryCount         int // that the peer wants this end to have
	RNRRetryCount      int // and without a receive at the peer
	SRQ                bool

	// Of datagrams, with EventEstablished and EventMulticastJoin.

	Path ibverbs.AHAttr // to the peer or group, for an address handle
	QKey uint32         // that datagrams to it must carry

	Value any    // of a multicast group, what JoinMulticast was given
	Arg   uint64 // of EventUser, what WriteUserEvent was given
}

// copyEvent copies an event of C, other than its ids.
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
		// C has the caller's context where other events have private data.
		if known, ok := joins.Load(ud.PrivateData); ok {
			j := known.(*join)
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
	ev.Path, ev.QPNum, ev.QKey = ahAttrOf(&ud.AhAttr), ud.QpNum, ud.Qkey
}

// Err returns nil for an event that reports progress, a *RejectedError for
// EventRejected, and for EventUnreachable if there is an answer about datagrams
// behind it, and an *EventError for any other failure or end.
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
		return &EventError{Type: ev.Type, Status: ev.Status}
	}
	return nil
}

// datagramReasons are the reasons of the statuses with which a peer refuses to
// tell of a queue pair for datagrams.
var datagramReasons = map[int]Reason{1: ReasonNoListener, 2: ReasonConsumer, 3: ReasonNoQP, 4: 25, 5: 31}

// EventError is an event that reports a failure, or the end of a connection.
type EventError struct {
	Type   EventType
	Status int
}

func (e *EventError) Error() string {
	text := eventTexts[e.Type]
	if text == "" {
		text = e.Type.String()
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

// errno returns the errno in the status, 0 if it has none: -1 stands for a
// failure whose errno the library lost, and a positive status is an errno only
// where the library itself made the event.
func (e *EventError) errno() syscall.Errno {
	switch {
	case e.Status < -1:
		return syscall.Errno(-e.Status)
	case e.Status > 0 && (e.Type == EventConnectError || e.Type == EventAddrInfoError):
		return syscall.Errno(e.Status)
	}
	return 0
}

// Unwrap returns the errno that the event stands for.
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
