// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"context"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// fakeContext returns a device that C does not know.
func fakeContext() *Device {
	c := new(Device)
	c.object.InitUnlisted("rxe0")
	return c
}

// otherObject is of a kind that Event does not have a method for, as work
// queues are.
type otherObject struct{ _ byte } // of a size, so that each has its own address

// Close does nothing.
func (*otherObject) Close() error { return nil }

// An event is copied with the object of ours that it names, and with a number
// in any case.
func TestCopyEvent(t *testing.T) {
	rawCQ, rawQP := &libibverbs.Cq{Handle: 3}, &libibverbs.Qp{QpNum: 17}
	rawSRQ, rawWQ := &libibverbs.Srq{Handle: 4}, &libibverbs.Wq{WqNum: 5}
	cq, qp := new(CQ), new(QP)
	srq, wq := new(SRQ), new(otherObject)
	element := map[EventClass]func(*libibverbs.AsyncEventElement){
		EventClassCQ:     func(e *libibverbs.AsyncEventElement) { *e.Cq() = rawCQ },
		EventClassQP:     func(e *libibverbs.AsyncEventElement) { *e.Qp() = rawQP },
		EventClassSRQ:    func(e *libibverbs.AsyncEventElement) { *e.Srq() = rawSRQ },
		EventClassWQ:     func(e *libibverbs.AsyncEventElement) { *e.Wq() = rawWQ },
		EventClassPort:   func(e *libibverbs.AsyncEventElement) { *e.PortNum() = 2 },
		EventClassDevice: func(*libibverbs.AsyncEventElement) {},
		EventClassOther:  func(e *libibverbs.AsyncEventElement) { *e.PortNum() = 6 },
	}
	c := fakeContext()
	for eventType := EventCQError; eventType <= EventDeviceSpeedChange+1; eventType++ {
		class := eventType.Class()
		raw := libibverbs.AsyncEvent{EventType: libibverbs.EventType(eventType)}
		element[class](&raw.Element)
		want := Event{Type: eventType, Device: c}
		text := ""
		switch class {
		case EventClassCQ:
			want.Number, text = 3, "CQ 3 of rxe0: "+eventType.String()
		case EventClassQP:
			want.Number, text = 17, "QP 17 of rxe0: "+eventType.String()
		case EventClassSRQ:
			want.Number, text = 4, "SRQ 4 of rxe0: "+eventType.String()
		case EventClassWQ:
			want.Number, text = 5, "WQ 5 of rxe0: "+eventType.String()
		case EventClassPort:
			want.Number, text = 2, "rxe0 port 2: "+eventType.String()
		case EventClassDevice:
			text = "rxe0: " + eventType.String()
		case EventClassOther:
			text = "rxe0: event of type 21"
		}
		ev := c.copyEvent(&raw)
		require.Equal(t, want, ev, "of an object that is not ours")
		require.Equal(t, text, ev.String())
		require.Nil(t, ev.QP())
		require.Nil(t, ev.CQ())
		require.Equal(t, class == EventClassPort, ev.Port() == 2)

		ours := map[unsafe.Pointer]EventObject{
			unsafe.Pointer(rawCQ): cq, unsafe.Pointer(rawQP): qp, unsafe.Pointer(rawSRQ): srq, unsafe.Pointer(rawWQ): wq,
		}
		for raw, o := range ours {
			register(raw, o)
		}
		ev = c.copyEvent(&raw)
		for raw := range ours {
			unregister(raw)
		}
		switch class {
		case EventClassCQ:
			require.Same(t, cq, ev.Object)
			require.Same(t, cq, ev.CQ())
			require.Nil(t, ev.QP())
		case EventClassQP:
			require.Same(t, qp, ev.Object)
			require.Same(t, qp, ev.QP())
			require.Nil(t, ev.CQ())
		case EventClassSRQ:
			require.Same(t, srq, ev.Object)
		case EventClassWQ:
			require.Same(t, wq, ev.Object)
		default:
			require.Nil(t, ev.Object)
		}
		require.Equal(t, text, ev.String())
	}
	require.Equal(t, "a device: local catastrophic error", Event{Type: EventDeviceFatal}.String())
}

func TestEventsRefused(t *testing.T) {
	closed := fakeContext()
	require.NoError(t, closed.object.Close(nil, func() error { return nil }))
	for name, tt := range map[string]struct {
		c    *Device
		want error
	}{
		"nil":    {nil, os.ErrInvalid},
		"zero":   {new(Device), os.ErrInvalid},
		"closed": {closed, os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tt.c.NextEvent(t.Context())
			require.ErrorIs(t, err, tt.want)
			_, ok, err := tt.c.PollEvent()
			require.ErrorIs(t, err, tt.want)
			require.False(t, ok)
			var errs []error
			for _, err := range tt.c.Events(t.Context()) {
				errs = append(errs, err)
			}
			require.Len(t, errs, 1, "the first error is the end")
			require.ErrorIs(t, errs[0], tt.want)
		})
	}
	var none context.Context
	_, err := fakeContext().NextEvent(none)
	require.EqualError(t, err, "Device.NextEvent: ctx is nil")
}

func TestEventType(t *testing.T) {
	for i, tt := range []struct {
		eventType EventType
		text      string // what ibv_event_type_str says
		class     EventClass
		fatal     bool
	}{
		{EventCQError, "CQ error", EventClassCQ, true},
		{EventQPFatal, "local work queue catastrophic error", EventClassQP, true},
		{EventQPRequestError, "invalid request local work queue error", EventClassQP, true},
		{EventQPAccessError, "local access violation work queue error", EventClassQP, true},
		{EventCommEstablished, "communication established", EventClassQP, false},
		{EventSQDrained, "send queue drained", EventClassQP, false},
		{EventPathMigrated, "path migrated", EventClassQP, false},
		{EventPathMigrateError, "path migration request error", EventClassQP, false},
		{EventDeviceFatal, "local catastrophic error", EventClassDevice, true},
		{EventPortActive, "port active", EventClassPort, false},
		{EventPortError, "port error", EventClassPort, false},
		{EventLIDChange, "LID change", EventClassPort, false},
		{EventPKeyChange, "P_Key change", EventClassPort, false},
		{EventSMChange, "SM change", EventClassPort, false},
		{EventSRQError, "SRQ catastrophic error", EventClassSRQ, true},
		{EventSRQLimitReached, "SRQ limit reached", EventClassSRQ, false},
		{EventLastWQEReached, "last WQE reached", EventClassQP, false},
		{EventClientReregister, "client reregistration", EventClassPort, false},
		{EventGIDChange, "GID table change", EventClassPort, false},
		{EventWQFatal, "WQ fatal", EventClassWQ, true},
		{EventDeviceSpeedChange, "Device link speed change", EventClassDevice, false},
		{21, "unknown (21)", EventClassOther, false},
		{1<<32 - 1, "unknown (4294967295)", EventClassOther, false},
	} {
		if i <= 21 {
			require.EqualValues(t, i, tt.eventType, "the table has them all")
		}
		require.Equal(t, tt.text, tt.eventType.String())
		require.Equal(t, tt.class, tt.eventType.Class(), tt.text)
		require.Equal(t, tt.fatal, tt.eventType.Fatal(), tt.text)
	}
}

func TestEventClassString(t *testing.T) {
	for class, want := range map[EventClass]string{
		EventClassDevice: "device", EventClassPort: "port", EventClassCQ: "CQ", EventClassQP: "QP",
		EventClassSRQ: "SRQ", EventClassWQ: "WQ", EventClassOther: "other", -1: "EventClass(-1)", 99: "EventClass(99)",
	} {
		require.Equal(t, want, class.String())
	}
}
