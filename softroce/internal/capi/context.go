// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"slices"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// context is a device that the program has opened.
type context struct {
	c      *libibverbs.Context
	card   *node.Card
	device *engine.Device
	file   *deviceFile // file that the context shares with the contexts that import it
	fd     int         // eventfd whose counter is the number of events, as a semaphore
	events []event     // asynchronous events that the program has not taken
	closed bool        // whether the context is being closed; if so, its objects do not wait for acknowledgements
	calls  int         // number of calls that have unlocked the node for a time, see unlocked
	// retiring has completion queues whose destruction waits until the
	// program has acknowledged completion events.
	retiring []*softCQ
}

// event is an asynchronous event that the program has not taken yet.
type event struct {
	kind    libibverbs.EventType
	object  *eventCounts // event counts of the object that the event is about; nil: the event is about the device or the port
	element uint64       // content of the union in struct ibv_async_event: the object's address or the port's number
}

// eventCounts counts the asynchronous events of an object that the program has
// taken and acknowledged.
type eventCounts struct{ taken, acked uint64 }

const compVectors = 2

// newDevice returns the struct by which the program knows a card.
func newDevice(c *node.Card, iWARP bool) *libibverbs.Device {
	d := alloc[libibverbs.Device]()
	d.NodeType, d.TransportType = libibverbs.IBV_NODE_CA, libibverbs.IBV_TRANSPORT_IB
	if iWARP {
		d.NodeType, d.TransportType = libibverbs.IBV_NODE_RNIC, libibverbs.IBV_TRANSPORT_IWARP
	}
	copy(d.Name[:], c.Name())
	copy(d.DevName[:], c.FileName())
	copy(d.DevPath[:], "/sys/class/infiniband_verbs/"+c.FileName())
	copy(d.IbdevPath[:], "/sys/class/infiniband/"+c.Name())
	return d
}

// cardOf returns the card that the program knows as d, or nil.
func (l *library) cardOf(d *libibverbs.Device) *node.Card {
	if i := slices.Index(l.structs, d); i >= 0 {
		return l.Cards()[i]
	}
	return nil
}

// alloc returns a zero T, allocated with C's allocator.
func alloc[T any]() *T {
	var zero T
	return (*T)(allocMemory(1, uint64(unsafe.Sizeof(zero))))
}

// contextOf returns the context that the program has given to an object. The
// result is not a pointer: the program may store any number there, and Go's
// stacks must hold only valid pointers.
func contextOf(p *unsafe.Pointer) uintptr { return *(*uintptr)(unsafe.Pointer(p)) }

// setContext sets the context of an object in C's memory.
func setContext(p *unsafe.Pointer, context uintptr) { *(*uintptr)(unsafe.Pointer(p)) = context }

// free frees memory that alloc returned.
func free[T any](p *T) { freeMemory(unsafe.Pointer(p)) }

func init() {
	verbs.GetDeviceList = getDeviceList
	verbs.FreeDeviceList = func(list **libibverbs.Device) { free(list) }
	verbs.GetDeviceIndex = func(d *libibverbs.Device) int32 { return int32(slices.Index(self().structs, d)) }
	verbs.GetDeviceGuid = func(d *libibverbs.Device) libibverbs.Be64 { return self().guid(d) }
	verbs.OpenDevice = func(d *libibverbs.Device) (*libibverbs.Context, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		c := l.cardOf(d)
		if c == nil {
			return nil, syscall.EINVAL
		}
		return l.open(c)
	}
	verbs.CloseDevice = func(c *libibverbs.Context) syscall.Errno { return self().close(c) }
	verbs.GetAsyncEvent = func(c *libibverbs.Context, e *libibverbs.AsyncEvent) syscall.Errno {
		return self().takeAsyncEvent(c, e)
	}
	verbs.AckAsyncEvent = func(e *libibverbs.AsyncEvent) { self().ackAsyncEvent(e) }
	verbs.ForkInit = func() syscall.Errno { return 0 }
	verbs.IsForkInitialized = func() libibverbs.ForkStatus { return libibverbs.IBV_FORK_UNNEEDED } // the device pins no pages
}

// newSemaphore returns an eventfd whose counter each read decreases by one.
func newSemaphore() (int, syscall.Errno) {
	const semaphore = 1 // EFD_SEMAPHORE
	fd, _, err := syscall.Syscall(syscall.SYS_EVENTFD2, 0, semaphore|syscall.O_CLOEXEC, 0)
	return int(fd), err
}

// guid returns the GUID of a device, or 0 if the device is removed.
func (l *library) guid(d *libibverbs.Device) libibverbs.Be64 {
	l.Lock()
	defer l.Unlock()
	c := l.cardOf(d)
	if c == nil {
		return 0
	}
	device, _ := c.Device()
	attr, err := device.Attr()
	if err != nil {
		return 0
	}
	return attr.OrigAttr.NodeGuid
}

// getDeviceList returns a list of devices that ends with a null pointer. It
// leaves out the devices that are removed.
func getDeviceList(count *int32) (**libibverbs.Device, syscall.Errno) {
	l := self()
	l.Lock()
	defer l.Unlock()
	var there []*libibverbs.Device
	for i, c := range l.Cards() {
		if _, ok := c.Device(); ok {
			there = append(there, l.structs[i])
		}
	}
	if count != nil {
		*count = int32(len(there))
	}
	return listOf(there), 0
}

// listOf returns a list in C's memory that ends with a null pointer.
func listOf[T any](all []*T) **T {
	first := (**T)(allocMemory(uint64(len(all)+1), uint64(unsafe.Sizeof((*T)(nil)))))
	copy(unsafe.Slice(first, len(all)), all)
	return first
}

// open opens the device of a card.
func (l *library) open(card *node.Card) (*libibverbs.Context, syscall.Errno) {
	fd, file, err := newDeviceFile()
	if err != nil {
		return nil, errno(err)
	}
	c, failed := l.openWith(card, fd, file)
	if failed != 0 {
		syscall.Close(fd)
		return nil, failed
	}
	return c, 0
}

// openWith opens the device of a card for the descriptor cmd of a file, which
// the context takes over.
func (l *library) openWith(card *node.Card, cmd int, file *deviceFile) (*libibverbs.Context, syscall.Errno) {
	device, err := card.Open()
	if err != nil {
		return nil, errno(err)
	}
	fd, failed := newSemaphore()
	if failed != 0 {
		l.Node.Close(device)
		return nil, failed
	}
	vc := alloc[libibverbs.VerbsContext]()
	*vc = *tableVerbsContext()
	c := &vc.Context
	c.Device = l.structs[card.Index()]
	c.CmdFd = int32(cmd)
	c.AsyncFd = int32(fd)
	c.NumCompVectors = compVectors
	initContext(c)
	l.contexts[c] = &context{c: c, card: card, device: device, file: file, fd: fd}
	file.contexts++
	return c, 0
}

// close closes an opened device. As in the kernel, its objects are destroyed
// with it.
func (l *library) close(c *libibverbs.Context) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	return l.closeContext(c)
}

// closeContext does the work of close. The caller holds the node's lock.
//
// It destroys the objects while no other call uses them: it waits for calls
// that have unlocked the node, and from the first unlocking on, calls that
// create an object or unlock the node find that the context is closed.
func (l *library) closeContext(c *libibverbs.Context) syscall.Errno {
	if !l.isOpen(c) {
		return syscall.EINVAL
	}
	x := l.contexts[c]
	x.closed = true
	for _, q := range x.retiring {
		releaseCQ(q)
	}
	l.acked.Broadcast()
	for x.calls > 0 {
		l.acked.Wait()
	}
	l.abandonMemory(c)
	l.destroyObjects(c)
	delete(l.contexts, c)
	syscall.Close(x.fd)
	syscall.Close(int(c.CmdFd))
	l.leaveFile(x) // frees c
	l.Node.Close(x.device)
	return 0
}

// freeContext frees the program's struct of a context. No object may have its
// address any more, as C's allocator may give the address to another context.
func freeContext(c *libibverbs.Context) {
	freeMemory(unsafe.Pointer(uintptr(unsafe.Pointer(c)) - unsafe.Offsetof(libibverbs.VerbsContext{}.Context)))
}

// isOpen reports whether the program has opened c and does not close it.
func (l *library) isOpen(c *libibverbs.Context) bool {
	x := l.contexts[c]
	return x != nil && !x.closed
}

// unlocked calls f with the node unlocked, for a call that uses an object of
// the context c. The close of c waits for the call.
func (l *library) unlocked(c *libibverbs.Context, f func()) {
	x := l.contexts[c]
	x.calls++
	l.Unlock()
	f()
	l.Lock()
	x.calls--
	if x.closed {
		l.acked.Broadcast()
	}
}

// AsyncEvent queues an event of the device d for the contexts that have the
// event's object, or for all contexts of d.
func (l *library) AsyncEvent(d *engine.Device, e engine.AsyncEvent) {
	switch o := e.Object.(type) {
	case *engine.CQ:
		if q := l.byCQ[o]; q != nil {
			l.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	case *engine.QP:
		for _, q := range l.byQP[o] {
			l.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	case *engine.SRQ:
		if q := l.bySRQ[o]; q != nil {
			l.post(q.c.Context, event{e.Type, &q.events, address(q.c)})
		}
	default:
		port, _ := o.(int)
		for c, x := range l.contexts {
			if x.device == d {
				l.post(c, event{e.Type, nil, element(port)})
			}
		}
	}
}

// address returns the address of a C object as a number.
func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// element returns the content of the union in struct ibv_async_event for an
// event of a port.
func element(port int) uint64 {
	var e libibverbs.AsyncEventElement
	*e.PortNum() = int32(port)
	return *(*uint64)(unsafe.Pointer(&e))
}

// post queues an event for the context c, and wakes its reader.
func (l *library) post(c *libibverbs.Context, e event) {
	x := l.contexts[c]
	if x == nil {
		return
	}
	x.events = append(x.events, e)
	one := [8]byte{}
	binary.NativeEndian.PutUint64(one[:], 1)
	syscall.Write(x.fd, one[:])
}

// takeAsyncEvent writes the next event of a context, for which the semaphore
// was read, to out. It returns EAGAIN if the event was dropped, as its object
// was destroyed. With nil for out, it only says whether c is open.
func (l *library) takeAsyncEvent(c *libibverbs.Context, out *libibverbs.AsyncEvent) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	x := l.contexts[c]
	switch {
	case x == nil:
		return syscall.EBADF
	case out == nil:
		return 0
	case len(x.events) == 0:
		return syscall.EAGAIN
	}
	e := x.events[0]
	x.events = slices.Delete(x.events, 0, 1)
	if e.object != nil {
		e.object.taken++
	}
	out.EventType = e.kind
	*(*uint64)(unsafe.Pointer(&out.Element)) = e.element
	return 0
}

func (l *library) ackAsyncEvent(e *libibverbs.AsyncEvent) {
	l.Lock()
	defer l.Unlock()
	if o := l.eventsOf(e); o != nil {
		o.acked++
		l.acked.Broadcast()
	}
}

// eventsOf returns the event counts of the object that e is about. It returns
// nil if e is about the device or a port.
func (l *library) eventsOf(e *libibverbs.AsyncEvent) *eventCounts {
	if o := l.leaving[*(*uint64)(unsafe.Pointer(&e.Element))]; o != nil {
		return o
	}
	if q := l.qps[*e.Element.Qp()]; q != nil {
		return &q.events
	}
	if q := l.cqs[*e.Element.Cq()]; q != nil {
		return &q.events
	}
	if q := l.srqs[*e.Element.Srq()]; q != nil {
		return &q.events
	}
	return nil
}

// retire drops the events of an object that the program has not taken. Then it
// waits until the program has acknowledged the events that it has taken, unless
// the context is being closed. o has the event counts of the object, which is
// at the address addr and which the program cannot use any more. The caller
// frees the object next.
func (l *library) retire(c *libibverbs.Context, addr uint64, o *eventCounts) {
	x := l.contexts[c]
	x.events = slices.DeleteFunc(x.events, func(e event) bool { return e.object == o })
	l.leaving[addr] = o
	x.calls++
	for o.taken != o.acked && !x.closed {
		l.acked.Wait()
	}
	x.calls--
	delete(l.leaving, addr)
	if x.closed {
		l.acked.Broadcast()
	}
}
