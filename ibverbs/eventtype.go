package ibverbs

import "github.com/verbena-go/verbena/generated/libibverbs"

// EventType says what happened to a device or to an object on it.
type EventType libibverbs.EventType

// The types of events; ibv_get_async_event(3) describes each.
const (
	EventCQError           EventType = EventType(libibverbs.IBV_EVENT_CQ_ERR) // such as more completions than fit
	EventQPFatal           EventType = EventType(libibverbs.IBV_EVENT_QP_FATAL)
	EventQPRequestError    EventType = EventType(libibverbs.IBV_EVENT_QP_REQ_ERR)
	EventQPAccessError     EventType = EventType(libibverbs.IBV_EVENT_QP_ACCESS_ERR)
	EventCommEstablished   EventType = EventType(libibverbs.IBV_EVENT_COMM_EST) // a message came before the QP was ready to send
	EventSQDrained         EventType = EventType(libibverbs.IBV_EVENT_SQ_DRAINED)
	EventPathMigrated      EventType = EventType(libibverbs.IBV_EVENT_PATH_MIG)
	EventPathMigrateError  EventType = EventType(libibverbs.IBV_EVENT_PATH_MIG_ERR)
	EventDeviceFatal       EventType = EventType(libibverbs.IBV_EVENT_DEVICE_FATAL) // also when the device is removed
	EventPortActive        EventType = EventType(libibverbs.IBV_EVENT_PORT_ACTIVE)
	EventPortError         EventType = EventType(libibverbs.IBV_EVENT_PORT_ERR) // the link is down
	EventLIDChange         EventType = EventType(libibverbs.IBV_EVENT_LID_CHANGE)
	EventPKeyChange        EventType = EventType(libibverbs.IBV_EVENT_PKEY_CHANGE)
	EventSMChange          EventType = EventType(libibverbs.IBV_EVENT_SM_CHANGE)
	EventSRQError          EventType = EventType(libibverbs.IBV_EVENT_SRQ_ERR)
	EventSRQLimitReached   EventType = EventType(libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED)
	EventLastWQEReached    EventType = EventType(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED) // of a QP with an SRQ
	EventClientReregister  EventType = EventType(libibverbs.IBV_EVENT_CLIENT_REREGISTER)
	EventGIDChange         EventType = EventType(libibverbs.IBV_EVENT_GID_CHANGE)
	EventWQFatal           EventType = EventType(libibverbs.IBV_EVENT_WQ_FATAL)
	EventDeviceSpeedChange EventType = EventType(libibverbs.IBV_EVENT_DEVICE_SPEED_CHANGE)
)

// String returns the text that C has for the type; see ibv_event_type_str(3).
func (t EventType) String() string { return libibverbs.EventType(t).String() }

// EventClass says what kind of thing an event happened to.
type EventClass int

// The classes of events.
const (
	EventClassDevice EventClass = iota
	EventClassPort
	EventClassCQ
	EventClassQP
	EventClassSRQ
	EventClassWQ
	EventClassOther // a type that this package does not know
)

// String returns the name of the class, such as port.
func (c EventClass) String() string {
	names := [...]string{"device", "port", "CQ", "QP", "SRQ", "WQ", "other"}
	if c < 0 || int(c) >= len(names) {
		return "other"
	}
	return names[c]
}

// Class returns what kind of thing the event happened to.
func (t EventType) Class() EventClass {
	switch t {
	case EventDeviceFatal, EventDeviceSpeedChange:
		return EventClassDevice
	case EventPortActive, EventPortError, EventLIDChange, EventPKeyChange, EventSMChange,
		EventClientReregister, EventGIDChange:
		return EventClassPort
	case EventCQError:
		return EventClassCQ
	case EventQPFatal, EventQPRequestError, EventQPAccessError, EventCommEstablished, EventSQDrained,
		EventPathMigrated, EventPathMigrateError, EventLastWQEReached:
		return EventClassQP
	case EventSRQError, EventSRQLimitReached:
		return EventClassSRQ
	case EventWQFatal:
		return EventClassWQ
	}
	return EventClassOther
}

// Fatal reports whether what the event happened to can do nothing any more
// until it is reset, and mostly is to be closed and made anew. A port that is
// down is not fatal: it may come up again.
func (t EventType) Fatal() bool {
	switch t {
	case EventCQError, EventQPFatal, EventQPRequestError, EventQPAccessError, EventSRQError,
		EventWQFatal, EventDeviceFatal:
		return true
	}
	return false
}
