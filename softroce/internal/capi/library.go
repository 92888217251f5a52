// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cmevent"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/stat"
)

// library implements libibverbs. It maps the C structs that the program holds
// to Go objects. The node's mutex guards the maps.
type library struct {
	*node.Node
	acked sync.Cond // signals that the program has acknowledged an event; uses the node's mutex

	structs  []*libibverbs.Device // structs by which the program knows the cards, in the same order
	contexts map[*libibverbs.Context]*context
	pds      map[*libibverbs.Pd]*pd
	tds      map[*libibverbs.Td]*td
	counters map[*libibverbs.CompCntr]*compCounter
	mrs      map[*libibverbs.Mr]*mr
	mws      map[*libibverbs.Mw]*mw
	dms      map[*libibverbs.Dm]*dm
	dmahs    map[*libibverbs.Dmah]*dmah
	channels map[*libibverbs.CompChannel]*channel
	cqs      map[*libibverbs.Cq]*cq
	srqs     map[*libibverbs.Srq]*srq
	qps      map[*libibverbs.Qp]*qp
	ahs      map[*libibverbs.Ah]*ah
	bufs     map[*libibverbs.Buf]*buf
	xrcds    map[*libibverbs.Xrcd]*xrcd

	byCQ  map[*engine.CQ]*cq
	bySRQ map[*engine.SRQ]*srq
	byQP  map[*engine.QP][]*qp // for XRC, a queue pair may be open several times

	// leaving has the event counts of objects that were destroyed, and that
	// wait until the program has acknowledged their asynchronous events. The
	// keys are the objects' addresses.
	leaving map[uint64]*eventCounts

	xrcFiles map[xrcFile]*xrcDomain // domains that were opened with a file

	handle uint32 // number of the newest protection domain, completion counter or device memory

	late []*channel // completion channels with events that did not fit into their pipes

	removed func(card *node.Card) // handles the removal of the card's device in librdmacm
}

// cmLibrary implements librdmacm on top of libibverbs. The node's mutex also
// guards its objects.
type cmLibrary struct {
	*library
	eventChannels map[*librdmacm.EventChannel]*eventChannel
	ids           map[*librdmacm.CmId]*id
	events        map[*librdmacm.CmEvent]*cmEvent
	devices       map[*node.Card]*openDevice          // devices for new IDs, from the time at which an ID needs the device
	opened        map[*libibverbs.Context]*openDevice // devices, and the removed devices that are still in use
}

// newLibrary returns the libraries. Their node is not set yet.
func newLibrary() *cmLibrary {
	l := &cmLibrary{
		library: &library{
			contexts: map[*libibverbs.Context]*context{}, pds: map[*libibverbs.Pd]*pd{}, tds: map[*libibverbs.Td]*td{},
			counters: map[*libibverbs.CompCntr]*compCounter{},
			mrs:      map[*libibverbs.Mr]*mr{}, mws: map[*libibverbs.Mw]*mw{}, dms: map[*libibverbs.Dm]*dm{},
			dmahs:    map[*libibverbs.Dmah]*dmah{},
			channels: map[*libibverbs.CompChannel]*channel{}, cqs: map[*libibverbs.Cq]*cq{},
			srqs: map[*libibverbs.Srq]*srq{}, qps: map[*libibverbs.Qp]*qp{}, ahs: map[*libibverbs.Ah]*ah{}, bufs: map[*libibverbs.Buf]*buf{},
			byCQ: map[*engine.CQ]*cq{}, bySRQ: map[*engine.SRQ]*srq{}, byQP: map[*engine.QP][]*qp{},
			leaving: map[uint64]*eventCounts{},
			xrcds:   map[*libibverbs.Xrcd]*xrcd{}, xrcFiles: map[xrcFile]*xrcDomain{},
		},
		eventChannels: map[*librdmacm.EventChannel]*eventChannel{}, ids: map[*librdmacm.CmId]*id{}, events: map[*librdmacm.CmEvent]*cmEvent{},
		devices: map[*node.Card]*openDevice{}, opened: map[*libibverbs.Context]*openDevice{},
	}
	l.removed = l.deviceRemoved
	return l
}

var (
	theLibrary  *cmLibrary
	makeLibrary sync.Once
)

// self returns the libraries of this process. The first call creates them and
// the node.
func self() *cmLibrary {
	makeLibrary.Do(func() {
		l := newLibrary()
		// Not l, whose methods are those of l.library: Go's compiler leaves a
		// promoted method by a jump, so that with -race each call would add
		// a function to the caller's stack in reports (golang.org/issue/81478).
		l.Node = node.New(l.library, doorbell())
		beginChecks(l.Node.Check())
		for _, c := range l.Cards() {
			l.structs = append(l.structs, newDevice(c, l.Node.Limits().IWARP))
		}
		l.acked.L = l.Node
		setWord(l.Word(), l.Event(), l.WaitEvent())
		watchFork()
		theLibrary = l
		l.Start()
		datapath.SetDevice(&datapath.Device{
			Idle: l.help, Relieve: l.Relieve, Resume: l.Resume, Silence: l.Silence, Received: l.Received, WokeOthers: l.WokeOthers,
			SetWake: l.setWake, Attend: l.Attend, MayAttend: l.MayAttend, Interrupt: l.Interrupt, Park: l.Park, Supersede: l.Supersede,
			NewChannel: l.newChannel, OpenChannel: l.openChannel,
		})
		cmevent.SetDevice(l.openEventChannel)
	})
	return theLibrary
}

// bell has the fields of struct soft_bell, in c.h.
type bell struct {
	rung              unsafe.Pointer
	own, arms, dozing uint32
	tells             uint32
}

// tellsDetector is the value of tells in programs that are built with -race.
const tellsDetector = 1

// doorbell returns the memory through which C notifies the node.
func doorbell() node.Doorbell {
	b := theBell()
	if detector.Enabled {
		b.tells = tellsDetector
	}
	return node.Doorbell{Word: &b.own, Rung: &b.rung, Arms: &b.arms, Dozing: &b.dozing}
}

// Node returns the node of this process.
func Node() *node.Node { return self().Node }

// helpAfter is the number of empty polls in a row after which the polling
// thread runs steps of the worker. A completion starts the count again, and so
// does arming the queue.
const helpAfter = 16

// foundEmpty reports whether the last polls of a queue, at least helpAfter of
// them, found it empty.
func foundEmpty(queue unsafe.Pointer) bool {
	return atomic.LoadUint32(&(*softCQ)(queue).empty) >= helpAfter
}

// help runs a step of the worker in the thread that polls queue, if foundEmpty
// returns true for the queue.
func (l *cmLibrary) help(queue unsafe.Pointer) {
	if foundEmpty(queue) {
		l.Help(&(*softCQ)(queue).ring)
	}
}

// Removed reports that the device of a card has been unplugged.
func (l *library) Removed(card *node.Card) { l.removed(card) }

// Objects returns the numbers of objects for "verbena softroce stat".
func (l *library) Objects(c *node.Card) stat.Objects {
	device := l.structs[c.Index()]
	contexts := 0
	for _, x := range l.contexts {
		if x.card == c {
			contexts++
		}
	}
	return stat.Objects{
		Contexts: contexts, ProtectionDomains: l.protectionDomains(device),
		MemoryRegions:       count(l.mrs, device, func(o *libibverbs.Mr) *libibverbs.Context { return o.Context }),
		MemoryWindows:       count(l.mws, device, func(o *libibverbs.Mw) *libibverbs.Context { return o.Context }),
		AddressHandles:      count(l.ahs, device, func(o *libibverbs.Ah) *libibverbs.Context { return o.Context }),
		CompletionQueues:    count(l.cqs, device, func(o *libibverbs.Cq) *libibverbs.Context { return o.Context }),
		SharedReceiveQueues: count(l.srqs, device, func(o *libibverbs.Srq) *libibverbs.Context { return o.Context }),
	}
}

// count returns the number of objects of a device. of returns the context of an
// object.
func count[C, O any](all map[*C]O, device *libibverbs.Device, of func(*C) *libibverbs.Context) (n int) {
	for c := range all {
		if of(c).Device == device {
			n++
		}
	}
	return n
}

// deviceOf returns the device that the program has opened as c, or nil if c is
// not open or is being closed.
func (l *library) deviceOf(c *libibverbs.Context) *engine.Device {
	if !l.isOpen(c) {
		return nil
	}
	return l.contexts[c].device
}

// errno returns the errno in err's chain. It returns 0 if err is nil, and EIO
// if the chain has no errno.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return syscall.EIO
}
