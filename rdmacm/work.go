// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// work describes an operation for the operation's error. It is passed by
// reference and copied once, into the operation.
type work struct {
	kind workKind
	// key of the peer's memory, or number of the queue pair that gets a
	// datagram
	key   uint32
	bytes int             // number of bytes of this end's memory, or number of requests in a batch
	addr  uint64          // address of the peer's memory
	path  *ibverbs.AHAttr // path of a datagram
}

// accessing returns the description of a request that accesses the peer's
// memory.
func accessing(kind workKind, bytes int, remote ibverbs.RemoteBuffer) *work {
	return &work{kind: kind, key: remote.RKey, bytes: bytes, addr: remote.Addr}
}

// destination describes the destination of a datagram: the address, and the
// number of the queue pair.
func (w work) destination() string {
	at := fmt.Sprintf("LID %d", w.path.DLID)
	if !w.path.DGID.IsZero() {
		at = w.path.DGID.Addr().String()
	}
	return fmt.Sprintf("%s (queue pair %d)", at, w.key)
}

type workKind uint8

const (
	unnamedWork workKind = iota // work of Post without a Transfer
	sending
	sendingDatagram
	receiving
	writing
	reading
	swapping
	adding
	posting
	checking
	confirming
	arrivingInPool
)

// atomicLen is the size of the value of an atomic operation.
const atomicLen = 8

func (w work) String() string {
	access := func(what, at string) string {
		return fmt.Sprintf("%s of %d bytes %s %#x of the peer's memory (key %#x)", what, w.bytes, at, w.addr, w.key)
	}
	switch w.kind {
	case sending:
		return fmt.Sprintf("send of %d bytes", w.bytes)
	case sendingDatagram:
		return fmt.Sprintf("datagram of %d bytes to %s", w.bytes, w.destination())
	case receiving:
		return fmt.Sprintf("receive into %d bytes", w.bytes)
	case writing:
		return access("write", "to")
	case reading:
		return access("read", "from")
	case swapping:
		return access("compare and swap", "at")
	case adding:
		return access("fetch and add", "at")
	case posting:
		return fmt.Sprintf("batch of %d requests", w.bytes)
	case checking:
		return "check whether the peer answers (Config.KeepAlive)"
	case arrivingInPool:
		return "receive of the pool"
	case confirming:
		return "empty write that was posted after other requests"
	}
	return "request that was posted without a Transfer"
}

// lengthOf returns the number of bytes of the segments.
func lengthOf(segments []ibverbs.Segment) (n int) {
	for i := range segments {
		n += segments[i].Len()
	}
	return n
}

// workError is the error of a failed operation. It names the operation.
type workError struct {
	what work
	hint string
	wc   *ibverbs.WCError
}

func (e *workError) Error() string {
	s := fmt.Sprintf("%v: %v", e.what, e.wc.Status)
	if e.wc.VendorError != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.wc.VendorError)
	}
	if e.hint != "" {
		s += ": " + e.hint
	}
	return s
}

func (e *workError) Unwrap() error { return e.wc }

// failureOf returns the error of a failed operation.
func (o *operations) failureOf(what work, wc *ibverbs.WCError) error {
	e := &workError{what: what, wc: wc, hint: wc.Status.Hint()}
	if wc.Status == ibverbs.WCLocalQPOperation {
		if problem := o.queues.portProblem(); problem != "" {
			e.hint = problem
		}
	}
	return e
}

// portProblem returns why the port could not send, or "" if it finds no reason.
// Soft-RoCE reports the same status for such a port as for a wrong request.
func (c *queues) portProblem() string {
	device, number := c.pd.Device(), c.id.PortNum()
	port, err := device.QueryPort(number)
	if err != nil {
		return ""
	}
	if port.State != link.Active {
		return fmt.Sprintf("port %d of %s is %v", number, device.Name(), port.State)
	}
	local := c.id.LocalAddr().Addr()
	if !local.IsValid() || port.LinkLayer != link.Ethernet {
		return ""
	}
	if _, err := device.BestGID(number, ibverbs.GIDConfig{Addr: local}); err != nil {
		return fmt.Sprintf("%s does not have the address %v any more", device.Name(), local)
	}
	return ""
}

// describe returns the error of a completion, which names the operation unless
// the program has posted the request itself.
func (o *operations) describe(wc *ibverbs.WCError) error {
	var what work
	if wc.ID >= userRequest || wc.Status == ibverbs.WCFlushed {
		return wc
	}
	if wc.ID&(lastRequest|sharedReceive) == sharedReceive {
		what.kind = arrivingInPool
	} else if place := wc.ID&^lastRequest - o.base; place < uint64(len(o.inFlight)) {
		o.mu.Lock()
		if op := o.inFlight[place]; op != nil {
			what = op.what
		}
		o.mu.Unlock()
	}
	return o.failureOf(what, wc)
}
