package ibverbs

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// Event is something that happened to a device, or to an object on it, without
// a request of the program's. It is a copy: C's own is acknowledged already.
type Event struct {
	Type   EventType
	Device *Device // the one that the event was read from

	// Object is what the event happened to, as Type.Class says: a *CQ, *QP,
	// *SRQ or *WQ. It may be closed by now. It is nil if it was being closed
	// already, or was not made by this package, and for ports and devices.
	Object any

	// Number tells apart what has no Object: the number of a QP, WQ or port,
	// and for a CQ or SRQ the one in its name. It is 0 for a device.
	Number uint32
}

// QP returns the queue pair that the event happened to, nil if Object is none.
func (e Event) QP() *QP {
	qp, _ := e.Object.(*QP)
	return qp
}

// CQ returns the completion queue that the event happened to, nil if Object is
// none.
func (e Event) CQ() *CQ {
	cq, _ := e.Object.(*CQ)
	return cq
}

// SRQ returns the shared receive queue that the event happened to, nil if
// Object is none.
func (e Event) SRQ() *SRQ {
	srq, _ := e.Object.(*SRQ)
	return srq
}

// WQ returns the receive work queue that the event happened to, nil if Object
// is none.
func (e Event) WQ() *WQ {
	wq, _ := e.Object.(*WQ)
	return wq
}

// Port returns the number of the port that the event happened to, 0 if it did
// not happen to a port.
func (e Event) Port() int {
	if e.Type.Class() != EventClassPort {
		return 0
	}
	return int(e.Number)
}

// String returns what happened to what, such as "QP 17 of rxe0: send queue
// drained".
func (e Event) String() string {
	name := "a device"
	if e.Device != nil {
		name = e.Device.Name()
	}
	switch class := e.Type.Class(); class {
	case EventClassDevice:
	case EventClassPort:
		name = fmt.Sprintf("%s port %d", name, e.Number)
	case EventClassOther:
		return fmt.Sprintf("%s: event of type %d", name, uint32(e.Type))
	default:
		name = fmt.Sprintf("%s %d of %s", class, e.Number, name)
	}
	return fmt.Sprintf("%s: %s", name, e.Type)
}

// copyEvent copies an event that is not acknowledged yet: until then C keeps
// the object that it names.
func (d *Device) copyEvent(raw *libibverbs.AsyncEvent) Event {
	ev := Event{Type: EventType(raw.EventType), Device: d}
	var object unsafe.Pointer
	switch ev.Type.Class() {
	case EventClassCQ:
		cq := *raw.Element.Cq()
		object, ev.Number = unsafe.Pointer(cq), cq.Handle
	case EventClassQP:
		qp := *raw.Element.Qp()
		object, ev.Number = unsafe.Pointer(qp), qp.QpNum
	case EventClassSRQ:
		srq := *raw.Element.Srq()
		object, ev.Number = unsafe.Pointer(srq), srq.Handle
	case EventClassWQ:
		wq := *raw.Element.Wq()
		object, ev.Number = unsafe.Pointer(wq), wq.WqNum
	case EventClassPort:
		ev.Number = uint32(*raw.Element.PortNum())
	}
	ev.Object = registered(object)
	if cq := ev.CQ(); cq != nil && ev.Type == EventCQError {
		cq.overran()
	}
	if qp := ev.QP(); qp != nil && ev.Type.Fatal() {
		qp.failure.CompareAndSwap(nil, &ev.Type)
	}
	return ev
}
