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
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/node"
	"github.com/verbena-go/verbena/softroce/internal/stat"
)

// library implements libibverbs. It has the objects that the program holds,
// keyed by their structs in C's memory. The node's mutex guards them.
type library struct {
	*node.Node
	acked sync.Cond // signals that the program has acknowledged an event; its lock is the node's

	contexts map[*libibverbs.Context]*context
	pds      map[*libibverbs.Pd]*pd
	mrs      map[*libibverbs.Mr]*mr
	mws      map[*libibverbs.Mw]*mw
	channels map[*libibverbs.CompChannel]*channel
	cqs      map[*libibverbs.Cq]*cq
	srqs     map[*libibverbs.Srq]*srq
	qps      map[*libibverbs.Qp]*qp
	ahs      map[*libibverbs.Ah]*ah
	bufs     map[*libibverbs.Buf]*buf

	byCQ  map[*engine.CQ]*cq
	bySRQ map[*engine.SRQ]*srq
	byQP  map[*engine.QP]*qp

	late []*channel // completion channels whose pipe was full
}

// cmLibrary implements librdmacm on top of libibverbs. The node's mutex also
// guards its objects.
type cmLibrary struct {
	*library
	eventChannels map[*librdmacm.EventChannel]*eventChannel
	ids           map[*librdmacm.CmId]*id
	events        map[*librdmacm.CmEvent]*cmEvent
	device        *openDevice                         // device that new IDs use; nil until an ID needs it
	opened        map[*libibverbs.Context]*openDevice // device, and removed devices that are still in use
}

// newLibrary returns the libraries without a node.
func newLibrary() *cmLibrary {
	return &cmLibrary{
		library: &library{
			contexts: map[*libibverbs.Context]*context{}, pds: map[*libibverbs.Pd]*pd{},
			mrs: map[*libibverbs.Mr]*mr{}, mws: map[*libibverbs.Mw]*mw{},
			channels: map[*libibverbs.CompChannel]*channel{}, cqs: map[*libibverbs.Cq]*cq{},
			srqs: map[*libibverbs.Srq]*srq{}, qps: map[*libibverbs.Qp]*qp{}, ahs: map[*libibverbs.Ah]*ah{}, bufs: map[*libibverbs.Buf]*buf{},
			byCQ: map[*engine.CQ]*cq{}, bySRQ: map[*engine.SRQ]*srq{}, byQP: map[*engine.QP]*qp{},
		},
		eventChannels: map[*librdmacm.EventChannel]*eventChannel{}, ids: map[*librdmacm.CmId]*id{}, events: map[*librdmacm.CmEvent]*cmEvent{},
		opened: map[*libibverbs.Context]*openDevice{},
	}
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
		l.Node = node.New(l, doorbell())
		l.acked.L = l.Node
		setWord(l.Word(), l.Event())
		watchFork()
		theLibrary = l
		l.Start()
		datapath.SetIdle(l.help)
	})
	return theLibrary
}

// bell has the fields of struct soft_bell.
type bell struct {
	rung              unsafe.Pointer
	own, arms, dozing uint32
}

// doorbell returns the memory through which C notifies the node.
func doorbell() node.Doorbell {
	b := theBell()
	return node.Doorbell{Word: &b.own, Rung: &b.rung, Arms: &b.arms, Dozing: &b.dozing}
}

// Node returns the node of this process.
func Node() *node.Node { return self().Node }

// vain is the number of empty polls in a row after which the polling thread
// runs a step of the worker. Arming the queue or a completion starts the count
// again.
const vain = 16

// polledInVain reports whether the last polls of a queue were empty, vain times
// or more.
func polledInVain(queue unsafe.Pointer) bool {
	return atomic.LoadUint32(&(*softCQ)(queue).empty) >= vain
}

// help runs a step of the worker in the thread that polls queue, if its last
// polls were empty.
func (l *cmLibrary) help(queue unsafe.Pointer) {
	if polledInVain(queue) {
		l.Help()
	}
}

// HelpPrograms makes polling threads of programs that are not written in Go run
// steps of the worker, like those of Go programs.
func HelpPrograms() { helpPrograms() }

// Objects returns the numbers of objects for "verbena softroce stat".
func (l *library) Objects() stat.Objects {
	return stat.Objects{
		Contexts: len(l.contexts), ProtectionDomains: len(l.pds), MemoryRegions: len(l.mrs), MemoryWindows: len(l.mws),
		AddressHandles: len(l.ahs), CompletionQueues: len(l.cqs), SharedReceiveQueues: len(l.srqs),
	}
}

// deviceOf returns the device that the program has opened as c, or nil if c is
// not open.
func (l *library) deviceOf(c *libibverbs.Context) *engine.Device {
	if x := l.contexts[c]; x != nil {
		return x.device
	}
	return nil
}

// errno returns the errno in err's chain, 0 for nil, or EIO if there is none.
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
