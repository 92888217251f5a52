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

// #include "ring.h"
import "C"

// library is libibverbs: the objects that the program holds, by their structs
// in C's memory. The node's mutex guards them.
type library struct {
	*node.Node
	acked sync.Cond // the program has acknowledged an event; its lock is the node

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

	late []*channel // channels whose pipe was full
}

// cmLibrary is librdmacm, which stands on libibverbs. The node's mutex guards
// its objects, too.
type cmLibrary struct {
	*library
	eventChannels map[*librdmacm.EventChannel]*eventChannel
	ids           map[*librdmacm.CmId]*id
	events        map[*librdmacm.CmEvent]*cmEvent
	device        *openDevice // that ids use, nil until one does
	opened        map[*libibverbs.Context]*openDevice
}

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

// self returns the process's libraries. The first call makes them and the node.
func self() *cmLibrary {
	makeLibrary.Do(func() {
		l := newLibrary()
		l.Node = node.New(l, doorbell())
		l.acked.L = l.Node
		C.soft_set_word((*C.uint32_t)(l.Word()), C.int(l.Event()))
		C.soft_watch_fork()
		theLibrary = l
		l.Start()
		datapath.SetIdle(l.help)
	})
	return theLibrary
}

// doorbell returns the memory that C rings the node by.
func doorbell() node.Doorbell {
	bell := C.soft_bell()
	return node.Doorbell{
		Word: (*uint32)(&bell.own), Rung: (*unsafe.Pointer)(unsafe.Pointer(&bell.rung)),
		Arms: (*uint32)(&bell.arms), Dozing: (*uint32)(&bell.dozing),
	}
}

// Node returns the process's node.
func Node() *node.Node { return self().Node }

// vain is the number of empty polls in a row, since a queue was armed or had a
// completion, after which a thread helps the node.
const vain = 16

func polledInVain(queue unsafe.Pointer) bool {
	return atomic.LoadUint32((*uint32)(&(*C.struct_soft_cq)(queue).empty)) >= vain
}

// help does the node's work in the thread of a program that has polled a queue
// in vain many times.
func (l *cmLibrary) help(queue unsafe.Pointer) {
	if polledInVain(queue) {
		l.Help()
	}
}

//export soft_go_help
func soft_go_help(queue unsafe.Pointer) { theLibrary.help(queue) }

// HelpPrograms makes threads of programs that are not Go help the node while
// they poll in vain, as those of Go do.
func HelpPrograms() { C.soft_help_programs() }

// Objects counts the objects for verbena softroce stat.
func (l *library) Objects() stat.Objects {
	return stat.Objects{
		Contexts: len(l.contexts), ProtectionDomains: len(l.pds), MemoryRegions: len(l.mrs), MemoryWindows: len(l.mws),
		AddressHandles: len(l.ahs), CompletionQueues: len(l.cqs), SharedReceiveQueues: len(l.srqs),
	}
}

// deviceOf returns the device that c has opened, nil if c is not open.
func (l *library) deviceOf(c *libibverbs.Context) *engine.Device {
	if x := l.contexts[c]; x != nil {
		return x.device
	}
	return nil
}

// errno returns the errno that an error is or stems from.
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
