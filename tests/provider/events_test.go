// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// told is what the kernel writes to a device's descriptor for an event.
type told struct {
	element uint64
	typ     ibverbs.EventType
	_       uint32
}

// patience is how long an event that must come may take.
const patience = time.Minute

// tell makes an event of the device.
func (r *rig) tell(typ ibverbs.EventType, element uint64) {
	r.t.Helper()
	_, err := syscall.Write(int(r.c.Raw().AsyncFd), fakelib.Bytes(&told{element: element, typ: typ}))
	require.NoError(r.t, err)
}

func (r *rig) next() ibverbs.Event {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	return must(r.c.NextEvent(ctx))(r.t)
}

func (r *rig) srq() *ibverbs.SRQ {
	r.t.Helper()
	srq := keep(r.t, must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 4}))(r.t))
	r.p.Forget()
	return srq
}

// acknowledged looks for exactly one acknowledgement, of what was got.
func (r *rig) acknowledged(typ ibverbs.EventType, element uint64) {
	r.t.Helper()
	var got, acks []fakelib.Call
	for _, call := range r.p.Calls() {
		switch {
		case call.Name() == "ibv_ack_async_event":
			acks = append(acks, call)
		case call.Name() == "ibv_get_async_event" && int32(call.Result()) == 0:
			got = append(got, call)
		}
	}
	require.Len(r.t, got, 1)
	require.Len(r.t, acks, 1)
	raw := fakelib.Struct[libibverbs.AsyncEvent](acks[0], 0)
	require.Equal(r.t, typ, ibverbs.EventType(raw.EventType))
	if typ.Class() == ibverbs.EventClassPort || typ.Class() > ibverbs.EventClassWQ {
		require.EqualValues(r.t, element, *raw.Element.PortNum())
	} else if typ.Class() != ibverbs.EventClassDevice {
		require.Equal(r.t, element, *(*uint64)(unsafe.Pointer(&raw.Element)))
	}
	r.p.Forget()
}

// Each type of event comes as what it is, with the object of ours, and is
// acknowledged once.
func TestAsyncEvents(t *testing.T) {
	r := open(t)
	cq, qp, srq, wq := r.cq(), r.qp(ibverbs.QPTypeRC), r.srq(), r.wq()
	const port = 3
	classes := map[ibverbs.EventClass]struct {
		element uint64
		object  ibverbs.EventObject
		number  uint32
		name    string
		acks    *uint32
	}{
		ibverbs.EventClassCQ:     {uint64(address(cq.Raw())), cq, cq.Raw().Handle, "CQ", &cq.Raw().AsyncEventsCompleted},
		ibverbs.EventClassQP:     {uint64(address(qp.Raw())), qp, qp.Num(), "QP", &qp.Raw().EventsCompleted},
		ibverbs.EventClassSRQ:    {uint64(address(srq.Raw())), srq, srq.Raw().Handle, "SRQ", &srq.Raw().EventsCompleted},
		ibverbs.EventClassWQ:     {uint64(address(wq.Raw())), wq, wq.Num(), "WQ", &wq.Raw().EventsCompleted},
		ibverbs.EventClassPort:   {port, nil, port, "", nil},
		ibverbs.EventClassDevice: {0, nil, 0, "", nil},
		ibverbs.EventClassOther:  {port, nil, 0, "", nil},
	}
	seen := map[ibverbs.EventClass]uint32{}
	for typ := ibverbs.EventCQError; typ <= ibverbs.EventDeviceSpeedChange+1; typ++ {
		class := typ.Class()
		want := classes[class]
		r.tell(typ, want.element)
		ev := r.next()
		require.Equal(t, ibverbs.Event{Type: typ, Device: r.c, Object: want.object, Number: want.number}, ev, "%v", typ)
		r.acknowledged(typ, want.element)
		seen[class]++
		if want.acks != nil {
			require.Equal(t, seen[class], *want.acks, "%v", typ)
			require.Equal(t, fmt.Sprintf("%s %d of fake0: %v", want.name, want.number, typ), ev.String())
		}
		require.Equal(t, class == ibverbs.EventClassCQ, ev.CQ() == cq)
		require.Equal(t, class == ibverbs.EventClassQP, ev.QP() == qp)
		require.Equal(t, class == ibverbs.EventClassSRQ, ev.SRQ() == srq)
		got, _ := ev.Object.(*flow.WQ)
		require.Equal(t, class == ibverbs.EventClassWQ, got == wq)
		require.Equal(t, class == ibverbs.EventClassPort, ev.Port() == port)
	}
	require.Len(t, seen, len(classes), "a class without an event")

	// The queue that C says has overrun tells its pollers.
	_, err := cq.Poll(make([]ibverbs.WC, 1))
	require.ErrorIs(t, err, ibverbs.ErrCQOverrun)
}

// Several events come one by one, in order, to the goroutines that wait or ask.
func TestAsyncEventsQueue(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	element := uint64(address(qp.Raw()))
	_, ok, err := r.c.PollEvent()
	require.NoError(t, err)
	require.False(t, ok)

	var first ibverbs.Event
	waited := make(chan error)
	go func() {
		first, err = r.c.NextEvent(t.Context())
		waited <- err
	}()
	r.tell(ibverbs.EventPathMigrated, element)
	require.NoError(t, <-waited)
	require.Equal(t, ibverbs.EventPathMigrated, first.Type)
	r.tell(ibverbs.EventPathMigrateError, element)
	r.tell(ibverbs.EventLIDChange, 1)
	r.tell(ibverbs.EventQPFatal, element)
	require.Equal(t, ibverbs.EventPathMigrateError, r.next().Type)
	ev, ok, err := r.c.PollEvent()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, ibverbs.EventLIDChange, ev.Type)
	require.Equal(t, qp, r.next().QP())
	require.EqualValues(t, 3, qp.Raw().EventsCompleted)
	names := r.p.Names()
	acks := slices.DeleteFunc(names, func(name string) bool { return name != "ibv_ack_async_event" })
	require.Len(t, acks, 4)
}

// What this package did not make has a number only.
func TestAsyncEventOfForeignObject(t *testing.T) {
	r := open(t)
	raw := must(libibverbs.CreateSrq(r.pd.Raw(), &libibverbs.SrqInitAttr{}))(t)
	r.p.Forget()
	element := uint64(address(raw))
	r.tell(ibverbs.EventSRQError, element)
	require.Equal(t, ibverbs.Event{Type: ibverbs.EventSRQError, Device: r.c, Number: raw.Handle}, r.next())
	r.acknowledged(ibverbs.EventSRQError, element)
	require.EqualValues(t, 1, raw.EventsCompleted)
	require.NoError(t, libibverbs.DestroySrq(raw))
}

// What C fails with is an error, and nothing is acknowledged.
func TestAsyncEventFails(t *testing.T) {
	r := open(t)
	r.p.Next("ibv_get_async_event", fakelib.Returns(-1, syscall.EIO))
	_, _, err := r.c.PollEvent()
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "ibv_get_async_event (fake0)")
	r.p.Next("ibv_get_async_event", fakelib.Returns(-1, syscall.EINTR))
	r.tell(ibverbs.EventSMChange, 1)
	require.Equal(t, 1, r.next().Port())
	r.p.Forget()
	_, _, err = r.c.PollEvent()
	require.NoError(t, err)
	require.Empty(t, r.p.Names())
}

// A completion queue that has overrun says so to goroutines that poll or wait,
// although none reads events. A later reader gets them all, once.
func TestOverrunIsToldByTheQueue(t *testing.T) {
	r := open(t)
	channel := keep(t, must(r.c.CreateCompChannel())(t))
	cq := keep(t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8, Channel: channel}))(t))
	other, qp := r.cq(), r.qp(ibverbs.QPTypeRC)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wcs := make([]ibverbs.WC, 1)
	waits := make(chan error)
	go func() {
		_, err := cq.Wait(ctx, wcs)
		waits <- err
	}()
	r.tell(ibverbs.EventQPFatal, uint64(address(qp.Raw())))
	for range 3 { // as for each completion that is lost
		r.tell(ibverbs.EventCQError, uint64(address(cq.Raw())))
	}
	r.tell(ibverbs.EventCQError, uint64(address(other.Raw())))
	require.ErrorIs(t, <-waits, ibverbs.ErrCQOverrun)
	_, err := cq.Poll(wcs)
	require.ErrorIs(t, err, ibverbs.ErrCQOverrun)
	require.Eventually(t, func() bool {
		_, err := other.Poll(wcs)
		return errors.Is(err, ibverbs.ErrCQOverrun)
	}, patience, time.Millisecond)

	second := new(ibverbs.Device) // has the same events
	sealed.Open(second.Internals()).InitForeign(r.c.Raw(), func() error { return nil })
	keep(t, second)
	require.Same(t, qp, r.next().QP())
	ev, ok, err := second.PollEvent()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, ibverbs.Event{Type: ibverbs.EventCQError, Device: second, Object: cq, Number: cq.Raw().Handle}, ev)
	require.Same(t, other, r.next().CQ())
	_, ok, err = r.c.PollEvent()
	require.NoError(t, err)
	require.False(t, ok)
}

// A queue pair knows of the first event that has ended it, although no
// goroutine reads events.
func TestFailureOfQP(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	element := uint64(address(qp.Raw()))
	r.tell(ibverbs.EventCommEstablished, element)
	r.tell(ibverbs.EventLastWQEReached, element)
	failed := func() bool { _, ok := qp.Failure(); return ok }
	require.False(t, failed())
	r.tell(ibverbs.EventQPAccessError, element)
	r.tell(ibverbs.EventQPFatal, element)
	require.Eventually(t, failed, patience, time.Millisecond)
	event, _ := qp.Failure()
	require.Equal(t, ibverbs.EventQPAccessError, event)
	_, ok := (*ibverbs.QP)(nil).Failure()
	require.False(t, ok)
}

// Events that were not read go away with their objects.
func TestEventsOfClosedObjects(t *testing.T) {
	r := open(t)
	cq := r.cq() // from here on, events are read
	for range 3 {
		closed := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8}))(t)
		qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: closed, RecvCQ: closed}))(t)
		srq := must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 4}))(t)
		r.tell(ibverbs.EventQPFatal, uint64(address(qp.Raw())))
		r.tell(ibverbs.EventSRQError, uint64(address(srq.Raw())))
		r.tell(ibverbs.EventCQError, uint64(address(closed.Raw())))
		require.Eventually(t, func() bool {
			_, err := closed.Poll(make([]ibverbs.WC, 1))
			return errors.Is(err, ibverbs.ErrCQOverrun)
		}, patience, time.Millisecond)
		require.NoError(t, qp.Close())
		require.NoError(t, srq.Close())
		require.NoError(t, closed.Close())
	}
	r.tell(ibverbs.EventCQError, uint64(address(cq.Raw())))
	require.Same(t, cq, r.next().CQ())
}
