// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// Only this file of the package uses C. For each file that does, and for each
// name of C in it, cgo runs the C compiler: more of them would make the first
// build of every program longer.
//

/*
#cgo LDFLAGS: -ldl
#include <linux/dma-buf.h>
#include <linux/ioctl.h>
#include <stdlib.h>
#include "c.h"

extern char **environ;
static char *variable(int i) { return environ ? environ[i] : 0; }

// procmap_request is in newer versions of linux/fs.h. 104 is the size of struct procmap_query.
enum { sync_request = DMA_BUF_IOCTL_SYNC, procmap_request = _IOC(_IOC_READ | _IOC_WRITE, 'f', 17, 104) };
*/
import "C"

// libraries has the calls of each library, in the order of the enum in call.h.
var libraries = [...][]call{verbsCalls, cmCalls, detectorCalls}

// soft_go_call calls a Go function for a C function. library and function are
// the numbers that call.h and the skeleton give the two.
//
//export soft_go_call
func soft_go_call(library, function int32, args unsafe.Pointer) (unsafe.Pointer, int64, int32) {
	a := libraries[library][function](args)
	return a.pointer, a.value, a.errno
}

//export soft_go_help
func soft_go_help(queue unsafe.Pointer) { theLibrary.help(queue) }

// soft_go_ready returns once Go's runtime has started.
//
//export soft_go_ready
func soft_go_ready() {}

// Request codes of ioctl(2), which depend on the processor.
const (
	syncRequest    = C.sync_request
	procmapRequest = C.procmap_request
)

// table returns a struct of operations. i is its number in verbs_skeleton.h.
func table(i int) unsafe.Pointer { return C.soft_table(C.int(i)) }

func verbsFunction(name string) unsafe.Pointer { return C.soft_libibverbs_function(cString(name)) }

// ownCreateCQ returns the ibv_create_cq of this program's own calls.
func ownCreateCQ() unsafe.Pointer { return C.soft_own_create_cq_function() }

func cmFunction(name string) unsafe.Pointer { return C.soft_librdmacm_function(cString(name)) }

// cString returns a copy of s as a C string. The copy is in Go's memory.
func cString(s string) *C.char {
	return (*C.char)(unsafe.Pointer(unsafe.SliceData(append([]byte(s), 0))))
}

// allocMemory returns zeroed memory for n objects of size bytes, from C's
// allocator. It returns nil if there is not enough memory.
func allocMemory(n, size uint64) unsafe.Pointer { return C.calloc(C.size_t(n), C.size_t(size)) }

// allocPages returns memory from C's allocator that starts at the beginning of
// a page. It returns nil if there is not enough memory.
func allocPages(size uint64) unsafe.Pointer {
	var p unsafe.Pointer
	if C.posix_memalign(&p, C.size_t(syscall.Getpagesize()), C.size_t(size)) != 0 {
		return nil
	}
	return p
}

func freeMemory(p unsafe.Pointer) { C.free(p) }

// memoryFile returns the descriptor of a new file in memory with that text,
// which cannot be changed.
func memoryFile(text string) (int, error) {
	fd, err := C.soft_memory_file(cString(text), C.size_t(len(text)))
	if fd < 0 {
		return -1, err
	}
	return int(fd), nil
}

func takeOne(fd int) { C.soft_take_one(C.int(fd)) }

// ringSize returns the number of slots of a ring in which at most max slots are
// in use.
func ringSize(max uint32) uint32 { return uint32(C.soft_ring_size(C.uint32_t(max))) }

func initContext(c *libibverbs.Context) {
	C.soft_init_context((*C.struct_ibv_context)(unsafe.Pointer(c)))
}

// Resources for whose memory a program's allocator is asked.
const (
	resourceCQ  = C.SOFT_RESOURCE_CQ
	resourceSRQ = C.SOFT_RESOURCE_SRQ
)

func (a *allocator) raw() *C.struct_soft_allocator {
	return (*C.struct_soft_allocator)(unsafe.Pointer(a))
}

// allocQueue allocates memory for n elements of a queue, of size bytes each. It
// also returns the allocator that has the memory, which is nil for C's.
func allocQueue(a *allocator, n, size uint64, resource uint64) (unsafe.Pointer, *allocator, error) {
	from := a.raw()
	p, err := C.soft_alloc_queue(&from, C.uint64_t(n), C.uint64_t(size), C.uint64_t(resource))
	return p, (*allocator)(unsafe.Pointer(from)), err
}

func freeQueue(a *allocator, p unsafe.Pointer, resource uint64) {
	C.soft_free_queue(a.raw(), p, C.uint64_t(resource))
}

func newQP(sizes *libibverbs.QpCap, sendOps uint64, limits engine.Limits, a *allocator) (*softQP, error) {
	q, err := C.soft_new_qp(C.uint32_t(sizes.MaxSendWr), C.uint32_t(sizes.MaxSendSge), C.uint32_t(sizes.MaxInlineData),
		C.uint32_t(sizes.MaxRecvWr), C.uint32_t(sizes.MaxRecvSge), C.uint64_t(sendOps),
		C.uint32_t(limits.Lacks()), C.uint32_t(limits.ReadSGE), C.int(truth(limits.Late == 0)), a.raw())
	return (*softQP)(unsafe.Pointer(q)), err
}

func (q *softQP) raw() *C.struct_soft_qp { return (*C.struct_soft_qp)(unsafe.Pointer(q)) }
func freeQP(q *softQP)                   { C.soft_free_qp(q.raw()) }
func lockQP(q *softQP)                   { C.soft_lock_qp(q.raw()) }
func unlockQP(q *softQP)                 { C.soft_unlock_qp(q.raw()) }

func newCQ(entries uint32, fields uint64, extended bool, limits engine.Limits, a *allocator) (*softCQ, error) {
	q, err := C.soft_new_cq(C.uint32_t(entries), C.uint64_t(fields), C.int(truth(extended)), C.int(truth(!limits.Solicited)), a.raw())
	return (*softCQ)(unsafe.Pointer(q)), err
}

// retireCQ removes a queue from C's table, in which events look up their queue.
// Then it waits until the program has acknowledged the queue's events, or until
// releaseCQ.
func retireCQ(q *softCQ) { C.soft_retire_cq(q.raw()) }

// releaseCQ makes retireCQ return without waiting any longer.
func releaseCQ(q *softCQ) { C.soft_release_cq(q.raw()) }

func (q *softCQ) raw() *C.struct_soft_cq { return (*C.struct_soft_cq)(unsafe.Pointer(q)) }
func freeCQ(q *softCQ)                   { C.soft_free_cq(q.raw()) }
func lockCQ(q *softCQ)                   { C.soft_lock_cq(q.raw()) }
func unlockCQ(q *softCQ)                 { C.soft_unlock_cq(q.raw()) }

func newSRQ(limit, segments uint32, a *allocator) (*softSRQ, error) {
	s, err := C.soft_new_srq(C.uint32_t(limit), C.uint32_t(segments), a.raw())
	return (*softSRQ)(unsafe.Pointer(s)), err
}

func newDM(memory []byte) *libibverbs.Dm {
	p := unsafe.Pointer(unsafe.SliceData(memory))
	return (*libibverbs.Dm)(unsafe.Pointer(C.soft_new_dm((*C.uint8_t)(p), C.uint64_t(len(memory)))))
}

func (s *softSRQ) raw() *C.struct_soft_srq { return (*C.struct_soft_srq)(unsafe.Pointer(s)) }
func freeSRQ(s *softSRQ)                   { C.soft_free_srq(s.raw()) }
func lockSRQ(s *softSRQ)                   { C.soft_lock_srq(s.raw()) }
func unlockSRQ(s *softSRQ)                 { C.soft_unlock_srq(s.raw()) }

func theBell() *bell { return (*bell)(unsafe.Pointer(C.soft_bell())) }

// The check of the memory of requests. c.h says what the functions do.

func startCheck(abort bool, origin unsafe.Pointer) syscall.Errno {
	return syscall.Errno(C.soft_check_start(C.int(truth(abort)), origin))
}

func stopCheck() (now bool) { return C.soft_check_end() != 0 }

func checkQueue(q *engine.WorkQueue, kind int, number uint32, device uint64) {
	C.soft_check_queue((*C.struct_soft_wq)(unsafe.Pointer(q)), C.int(kind), C.uint32_t(number), C.uint64_t(device))
}

func checkWrites(ticket uint32) { C.soft_check_writes(C.uint32_t(ticket)) }

func noteOverwritten(ticket, n uint32) { C.soft_check_overwritten(C.uint32_t(ticket), C.uint64_t(n)) }

func endCheck(ticket uint32) { C.soft_check_dropped(C.uint32_t(ticket)) }

func dropChecks(q *engine.WorkQueue) { C.soft_check_drop((*C.struct_soft_wq)(unsafe.Pointer(q))) }

func exemptQueue(q *engine.WorkQueue) { C.soft_check_exempt((*C.struct_soft_wq)(unsafe.Pointer(q))) }

func forgetQueue(q *engine.WorkQueue) {
	C.soft_check_queue_gone((*C.struct_soft_wq)(unsafe.Pointer(q)))
}

func checkRegion(device uint64, key uint32, iova, start, length uint64, flags int) *uint32 {
	return (*uint32)(C.soft_check_region(C.uint64_t(device), C.uint32_t(key), C.uint64_t(iova), C.uint64_t(start), C.uint64_t(length), C.int(flags)))
}

func forgetRegion(device uint64, key uint32) {
	C.soft_check_region_gone(C.uint64_t(device), C.uint32_t(key))
}

// setWord tells C where the bell is. word is the word of the bell. asleep and
// attended are the eventfds to which a thread adds that rings the bell and
// finds link.Asleep or link.Attended in the word.
func setWord(word *uint32, asleep, attended int) {
	C.soft_set_word((*C.uint32_t)(word), C.int(asleep), C.int(attended))
}

func watchFork() { C.soft_watch_fork() }

// variable returns the variable i of C's environment, as name=value. ok is
// false after the last one.
func variable(i int) (text string, ok bool) {
	v := C.variable(C.int(i))
	return C.GoString(v), v != nil
}
