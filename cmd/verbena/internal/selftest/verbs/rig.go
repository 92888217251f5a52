// SPDX-License-Identifier: Apache-2.0

// Package verbs has the checks of one host's verbs: the libraries, the device,
// memory, queues and requests, with both ends of each connection on the device.
package verbs

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// rig is a check with the device open, and a protection domain. What it makes
// is closed at the end of the check or of the Scope around.
type rig struct {
	*check.T
	dev  *ibverbs.Device
	attr ibverbs.DeviceAttr
	pd   *ibverbs.PD
}

// open makes a rig.
func open(t *check.T) *rig {
	r := &rig{T: t}
	r.dev = keep(ibverbs.Open(t.Target().Device))(t)
	r.attr = must(r.dev.QueryDevice())(t)
	r.pd = keep(r.dev.AllocPD())(t)
	return r
}

// on makes the function of a check that needs a rig.
func on(f func(r *rig)) func(t *check.T) {
	return func(t *check.T) { f(open(t)) }
}

// must returns the value, or fails the check.
func must[T any](v T, err error) func(*check.T) T {
	return func(t *check.T) T {
		ok(t, err)
		return v
	}
}

// keep is must for an object that is closed at the end.
func keep[T io.Closer](v T, err error) func(*check.T) T {
	return func(t *check.T) T {
		ok(t, err)
		t.Close(v)
		return v
	}
}

// offered is keep for an object that a device need not offer.
func offered[T io.Closer](v T, err error) func(t *check.T, what string) T {
	return func(t *check.T, what string) T {
		if errors.Is(err, errors.ErrUnsupported) {
			t.Lacks(what)
		}
		return keep(v, err)(t)
	}
}

// ok fails the check for an error.
func ok(t *check.T, err error) {
	if err == nil {
		return
	}
	skipLocked(t, err)
	t.Failf("%v", err)
}

// skipLocked ends the check if there is no memory since the limit of locked
// memory is small: then the device is not to blame.
func skipLocked(t *check.T, err error) {
	var full *ibverbs.PostError
	if limit, low := lockedMemory(); low && errors.Is(err, syscall.ENOMEM) && !errors.As(err, &full) {
		t.Skipf("the limit of locked memory is %d KiB: raise it, as verbena doctor says", limit>>10)
	}
}

// need ends the check if the device does not have what it is about.
func (r *rig) need(has bool, what string) {
	if !has {
		r.Lacks(what)
	}
}

// want fails the check unless what it says is so.
func (r *rig) want(is bool, format string, args ...any) {
	if !is {
		r.Failf(format, args...)
	}
}

// until calls f until it reports true, and fails the check if that takes too
// long.
func (r *rig) until(what string, f func() bool) {
	for end := time.Now().Add(r.Patience()); !f(); time.Sleep(100 * time.Microsecond) {
		if r.Context().Err() != nil || time.Now().After(end) {
			r.Failf("%s: not after %v", what, r.Patience())
		}
	}
}

// iWARP reports whether the device speaks iWARP, which has fewer operations.
func (r *rig) iWARP() bool { return r.dev.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP }

const (
	pages = 8192 // bytes of an end's memory
	depth = 16   // requests in a queue

	// full allows everything that devices have in common.
	full = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead
)

// access returns full, with atomic operations if the device has them.
func (r *rig) access() ibverbs.AccessFlags {
	if r.atomics() {
		return full | ibverbs.AccessRemoteAtomic
	}
	return full
}

func (r *rig) atomics() bool { return r.attr.AtomicCap != libibverbs.IBV_ATOMIC_NONE }

// reads reports whether the device has RDMA reads.
func (r *rig) reads() bool { return r.attr.MaxQPReadAtomic > 0 && r.attr.MaxQPInitReadAtomic > 0 }

func (r *rig) alloc(n int, access ibverbs.AccessFlags) *ibverbs.MR {
	r.Reserve(n)
	return keep(r.pd.Alloc(n, access))(r.T)
}

// cq makes a completion queue that is polled.
func (r *rig) cq(entries int) *ibverbs.CQ {
	return keep(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: entries}))(r.T)
}

// end is one end of a connection.
type end struct {
	*rig
	qp             *ibverbs.QP
	sendCQ, recvCQ *ibverbs.CQ
	mr             *ibverbs.MR
	addr           ibverbs.QPAddr
}

// end makes an end that is not connected. What the config leaves open gets what
// the end needs.
func (r *rig) end(config ibverbs.QPConfig) *end {
	e := &end{rig: r, sendCQ: config.SendCQ, recvCQ: config.RecvCQ, mr: r.alloc(pages, r.access())}
	if e.sendCQ == nil {
		e.sendCQ = r.cq(depth)
	}
	if e.recvCQ == nil {
		e.recvCQ = r.cq(depth)
	}
	config.SendCQ, config.RecvCQ = e.sendCQ, e.recvCQ
	if config.SendQueue == 0 {
		config.SendQueue = depth
	}
	if config.RecvQueue == 0 && config.SRQ == nil {
		config.RecvQueue = depth
	}
	qp, err := r.pd.CreateQP(config)
	if errors.Is(err, errors.ErrUnsupported) || config.Type == ibverbs.QPTypeUC && errors.Is(err, syscall.EINVAL) {
		r.Lacks(whatQP(config))
	}
	e.qp = keep(qp, err)(r.T)
	return e
}

// whatQP describes what a device that cannot make such queue pairs lacks.
func whatQP(config ibverbs.QPConfig) string {
	switch {
	case config.SendOps != 0:
		return fmt.Sprintf("extended requests %v", config.SendOps)
	case config.Type == ibverbs.QPTypeUC:
		return "unreliable connections"
	case config.Type == ibverbs.QPTypeUD:
		return "datagrams"
	}
	return "reliable connections"
}

// normal is how ends are connected whose requests succeed.
var normal = ibverbs.ConnectConfig{Timeout: time.Second, RetryCount: 5}

// connect connects two ends with each other.
func (r *rig) connect(a, b *end, of ibverbs.ConnectConfig) {
	r.connectWith(a, b, of, r.access(), r.access())
}

// connectWith connects two ends, which permit different accesses.
func (r *rig) connectWith(a, b *end, of ibverbs.ConnectConfig, permitA, permitB ibverbs.AccessFlags) {
	options := ibverbs.QPAddrConfig{Port: r.Target().Port}
	a.addr, b.addr = must(a.qp.Addr(options))(r.T), must(b.qp.Addr(options))(r.T)
	if a.qp.Type() == ibverbs.QPTypeUC {
		of = ibverbs.ConnectConfig{}
		permitA, permitB = permitA&ibverbs.AccessRemoteWrite, permitB&ibverbs.AccessRemoteWrite
	}
	toB, toA := of, of
	toB.Access, toA.Access = permitA|ibverbs.AccessLocalWrite, permitB|ibverbs.AccessLocalWrite
	for _, err := range []error{a.qp.ConnectTo(a.addr, b.addr, toB), b.qp.ConnectTo(b.addr, a.addr, toA)} {
		if err != nil && r.iWARP() && r.Target().Kind == check.Card {
			r.Skipf("iWARP cards connect through rdma_cm alone: %v", err)
		}
		ok(r.T, err)
	}
}

// pair makes two ends that are connected with each other.
func (r *rig) pair() (a, b *end) { return r.pairOf(ibverbs.QPConfig{}, normal) }

func (r *rig) pairOf(config ibverbs.QPConfig, of ibverbs.ConnectConfig) (a, b *end) {
	a, b = r.end(config), r.end(config)
	r.connect(a, b, of)
	return a, b
}

// post posts what fill puts into a batch.
func (e *end) post(fill func(s *ibverbs.SendBatch) error) {
	s := must(ibverbs.NewSendBatch(2*depth, maxSegments))(e.T)
	ok(e.T, fill(s))
	must(e.qp.PostSend(s))(e.T)
}

// receive posts a receive.
func (e *end) receive(id uint64, segments ...ibverbs.Segment) {
	b := must(ibverbs.NewRecvBatch(1, maxSegments))(e.T)
	ok(e.T, b.Recv(id, segments...))
	must(e.qp.PostRecv(b))(e.T)
}

// maxSegments is how many segments a request of a check has at most.
const maxSegments = 32

// completions takes n completions, whatever their status is.
func (r *rig) completions(cq *ibverbs.CQ, n int) []ibverbs.WC {
	wcs := make([]ibverbs.WC, n)
	end := time.Now().Add(r.Patience())
	for got := 0; got < n; {
		k := must(cq.Spin(wcs[got:], time.Millisecond))(r.T)
		got += k
		if k == 0 && (r.Context().Err() != nil || time.Now().After(end)) {
			r.Failf("%d of %d completions came within %v", got, n, r.Patience())
		}
	}
	return wcs
}

// succeed takes n completions, which must be successful and have the IDs 1 to
// n.
func (r *rig) succeed(cq *ibverbs.CQ, n int) []ibverbs.WC {
	wcs := r.completions(cq, n)
	for i := range wcs {
		ok(r.T, wcs[i].Err())
		r.want(wcs[i].ID() == uint64(i+1), "completion %d has the ID %d", i+1, wcs[i].ID())
	}
	return wcs
}

// nothing fails the check if the queue has a completion.
func (r *rig) nothing(cq *ibverbs.CQ, why string) {
	var wcs [1]ibverbs.WC
	if must(cq.Poll(wcs[:]))(r.T) > 0 {
		r.Failf("a completion (ID %d, %v) although %s", wcs[0].ID(), wcs[0].Status(), why)
	}
}

// fill fills memory with bytes that tell their place, and returns a copy.
func fill(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return append([]byte(nil), b...)
}
