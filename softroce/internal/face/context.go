// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"encoding/binary"
	"slices"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

/*
#include <stdlib.h>
#include <sys/eventfd.h>
#include "ring.h"
*/
import "C"

// context is an opened device.
type context struct {
	c      *libibverbs.Context
	device *engine.Device
	fd     int // event semaphore of the asynchronous events
	events []event
	closed bool // its objects go, whatever events of theirs the program has not acknowledged
}

// event is an asynchronous event that nobody has taken yet.
type event struct {
	kind    libibverbs.EventType
	object  *counted64 // nil: the device's or the port's
	element uint64
}

// counted64 counts the events of an object that the program took and acknowledged.
type counted64 struct{ taken, acked uint64 }

const (
	deviceName  = "soft0"
	compVectors = 2
	portNumber  = 1
)

var softDevice = func() *libibverbs.Device {
	d := alloc[libibverbs.Device]()
	d.NodeType = libibverbs.IBV_NODE_CA
	d.TransportType = libibverbs.IBV_TRANSPORT_IB
	copy(d.Name[:], deviceName)
	return d
}()

// alloc returns a zero T in C's memory.
func alloc[T any]() *T {
	var zero T
	p := C.calloc(1, C.size_t(unsafe.Sizeof(zero)))
	return (*T)(p)
}

// contextOf returns what the program wants to find again in a context's place. It need not be a pointer, and Go's stacks
// must not have it as one.
func contextOf(p *unsafe.Pointer) uintptr { return *(*uintptr)(unsafe.Pointer(p)) }

// setContext sets a context in memory of C's.
func setContext(p *unsafe.Pointer, context uintptr) { *(*uintptr)(unsafe.Pointer(p)) = context }

func free[T any](p *T) { C.free(unsafe.Pointer(p)) }

func init() {
	verbs.GetDeviceList = getDeviceList
	verbs.FreeDeviceList = func(list **libibverbs.Device) { free(list) }
	verbs.GetDeviceIndex = func(*libibverbs.Device) int32 { return 0 }
	verbs.GetDeviceGuid = func(*libibverbs.Device) libibverbs.Be64 { return self().guid() }
	verbs.OpenDevice = func(*libibverbs.Device) (*libibverbs.Context, syscall.Errno) {
		n := self()
		n.lock()
		defer n.unlock()
		return n.open()
	}
	verbs.ImportDevice = func(int32) (*libibverbs.Context, syscall.Errno) {
		return nil, syscall.ENODEV // no file is one of this device
	}
	verbs.CloseDevice = func(c *libibverbs.Context) syscall.Errno { return self().close(c) }
	verbs.GetAsyncEvent = func(c *libibverbs.Context, e *libibverbs.AsyncEvent) syscall.Errno { return self().getAsyncEvent(c, e) }
	verbs.AckAsyncEvent = func(e *libibverbs.AsyncEvent) { self().ackAsyncEvent(e) }
	verbs.ForkInit = func() syscall.Errno { return 0 }
	verbs.IsForkInitialized = func() libibverbs.ForkStatus { return libibverbs.IBV_FORK_UNNEEDED } // no page is pinned
}

// guid returns the GUID of the device, 0 if there is none.
func (n *node) guid() libibverbs.Be64 {
	n.lock()
	defer n.unlock()
	attr, err := n.device.Attr()
	if err != nil {
		return 0
	}
	return attr.OrigAttr.NodeGuid
}

func getDeviceList(count *int32) (**libibverbs.Device, syscall.Errno) {
	n := self()
	n.lock()
	defer n.unlock()
	devices := int32(0)
	list := alloc[[2]*libibverbs.Device]()
	if !n.removed {
		list[0] = softDevice
		devices = 1
	}
	if count != nil {
		*count = devices
	}
	return &list[0], 0
}

func (n *node) open() (*libibverbs.Context, syscall.Errno) {
	if n.removed {
		return nil, syscall.ENODEV
	}
	fd, err := C.eventfd(0, C.EFD_SEMAPHORE|C.EFD_CLOEXEC)
	if fd < 0 {
		return nil, errno(err)
	}
	vc := alloc[libibverbs.VerbsContext]()
	*vc = *tableVerbsContext()
	c := &vc.Context
	c.Device = softDevice
	c.CmdFd = -1 // there is no file, and no other process can reach the objects
	c.AsyncFd = int32(fd)
	c.NumCompVectors = compVectors
	C.soft_init_context((*C.struct_ibv_context)(unsafe.Pointer(c)))
	n.refreshGIDs()
	n.contexts[c] = &context{c: c, device: n.device, fd: int(fd)}
	return c, 0
}

// close closes an opened device. As in a kernel, its objects go with it.
func (n *node) close(c *libibverbs.Context) syscall.Errno {
	n.lock()
	defer n.unlock()
	return n.closeContext(c)
}

func (n *node) closeContext(c *libibverbs.Context) syscall.Errno {
	x := n.contexts[c]
	if x == nil || x.closed {
		return syscall.EINVAL
	}
	x.closed = true
	n.destroyAll(c)
	delete(n.contexts, c)
	n.forget(x.device)
	syscall.Close(x.fd)
	C.free(unsafe.Pointer(uintptr(unsafe.Pointer(c)) - unsafe.Offsetof(libibverbs.VerbsContext{}.Context)))
	return 0
}

// destroyAll destroys the objects of an opened device in an order in which that works.
func (n *node) destroyAll(c *libibverbs.Context) {
	for o := range n.ahs {
		if o.Context == c {
			n.destroyAH(o)
		}
	}
	for o, q := range n.qps {
		if o.Context == c {
			for _, group := range q.e.Groups() {
				n.exit(q.e, group)
			}
			n.destroyQP(o)
		}
	}
	for o := range n.srqs {
		if o.Context == c {
			n.destroySRQ(o)
		}
	}
	for o := range n.cqs {
		if o.Context == c {
			n.destroyCQ(o)
		}
	}
	for o := range n.channels {
		if o.Context == c {
			n.destroyChannel(o)
		}
	}
	for o := range n.mws {
		if o.Context == c {
			n.deallocMW(o)
		}
	}
	for o := range n.mrs {
		if o.Context == c {
			n.deregister(o)
		}
	}
	for o := range n.pds {
		if o.Context == c {
			n.deallocPD(o)
		}
	}
}

// asyncEvent keeps an event of a device for whom it concerns.
func (n *node) asyncEvent(d *engine.Device, e engine.AsyncEvent) {
	switch o := e.Object.(type) {
	case *engine.CQ:
		if q := n.byCQ[o]; q != nil {
			n.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	case *engine.QP:
		if q := n.byQP[o]; q != nil {
			n.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	case *engine.SRQ:
		if q := n.bySRQ[o]; q != nil {
			n.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	default:
		port, _ := o.(int)
		for c, x := range n.contexts {
			if x.device == d {
				n.post(c, event{e.Type, nil, element(port)})
			}
		}
	}
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// element returns the union of an event of a port.
func element(port int) uint64 {
	var e libibverbs.AsyncEventElement
	*e.PortNum() = int32(port)
	return *(*uint64)(unsafe.Pointer(&e))
}

func (n *node) post(c *libibverbs.Context, e event) {
	x := n.contexts[c]
	if x == nil {
		return
	}
	x.events = append(x.events, e)
	one := [8]byte{}
	binary.NativeEndian.PutUint64(one[:], 1)
	syscall.Write(x.fd, one[:])
}

// getAsyncEvent waits for an event, unless the descriptor does not block.
func (n *node) getAsyncEvent(c *libibverbs.Context, out *libibverbs.AsyncEvent) syscall.Errno {
	for {
		var one [8]byte
		if _, err := syscall.Read(int(c.AsyncFd), one[:]); err != nil {
			return errno(err)
		}
		n.lock()
		x := n.contexts[c]
		if x == nil {
			n.unlock()
			return syscall.EINVAL
		}
		if len(x.events) == 0 { // its object is gone
			n.unlock()
			continue
		}
		e := x.events[0]
		x.events = slices.Delete(x.events, 0, 1)
		if e.object != nil {
			e.object.taken++
		}
		out.EventType = e.kind
		*(*uint64)(unsafe.Pointer(&out.Element)) = e.element
		n.unlock()
		return 0
	}
}

func (n *node) ackAsyncEvent(e *libibverbs.AsyncEvent) {
	n.lock()
	defer n.unlock()
	if o := n.eventsOf(e); o != nil {
		o.acked++
		n.acked.Broadcast()
	}
}

// eventsOf returns the counts of the object that an event is about.
func (n *node) eventsOf(e *libibverbs.AsyncEvent) *counted64 {
	if q := n.qps[*e.Element.Qp()]; q != nil {
		return &q.events
	}
	if q := n.cqs[*e.Element.Cq()]; q != nil {
		return &q.events
	}
	if q := n.srqs[*e.Element.Srq()]; q != nil {
		return &q.events
	}
	return nil
}

// retire forgets the events of an object that nobody has taken, and waits until those that were
// taken have been acknowledged, unless the object goes with its device.
func (n *node) retire(c *libibverbs.Context, o *counted64) {
	x := n.contexts[c]
	x.events = slices.DeleteFunc(x.events, func(e event) bool { return e.object == o })
	for o.taken != o.acked && !x.closed {
		n.standAside(n.acked.Wait)
	}
}
