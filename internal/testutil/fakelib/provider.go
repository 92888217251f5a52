// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/dl"
)

// The constants and types of testdata/provider.c, with the same layouts.
const (
	maxArgs  = 8
	maxCalls = 4096
	maxPlans = 16
)

type memory struct {
	next    *memory
	address uintptr
	size    uintptr
	bytes   [0]byte
}

type record struct {
	name   [48]byte
	count  int64
	args   [maxArgs]int64
	result int64
	copies *memory
	// C's struct has the plan after this member.
}

type provider struct {
	calls int64
	log   [maxCalls]*record
	plans int64
	plan  [maxPlans]plan
	live  int64

	held, released int64 // whether a call blocks, and whether it may continue; accessed atomically
	busy           int64 // 1 while a thread uses the log or the plans; accessed atomically
}

// plan says what one call of a function does.
type plan struct {
	name              [48]byte
	object            int64
	holds             int64
	instead           int64
	result, error     int64
	arg, offset, size int64
	bytes             [256]byte
}

// Provider is the libibverbs in a process of ProviderMain. It has one device,
// fake0, which has every operation. Calls that create objects return structs
// that are filled in as a provider does, with nothing behind them. Every call
// of a function or operation is recorded. Destroying an object twice, or
// something that is no object, ends the process.
type Provider struct {
	t testing.TB
	c *provider
}

// OpenProvider returns the library without recorded calls and without plans. At
// the end of the test, all objects must be destroyed and all plans used.
func OpenProvider(t testing.TB) *Provider {
	t.Helper()
	return open(t, "libibverbs.so.1")
}

// OpenCM returns the librdmacm in a process of CMMain; see OpenProvider. It
// knows one host, which has every address and accepts every connection. So a
// call that starts something causes the event for its success. A plan can
// change the event: events are recorded as calls of "event", whose argument 0
// is the struct. Listening causes a connection request, and rdma_write_cm_event
// causes the event of a plan.
func OpenCM(t testing.TB) *Provider {
	t.Helper()
	return open(t, "librdmacm.so.1")
}

// OpenVendor returns a driver's library in a process of VendorMain; see
// OpenProvider. The queue pairs that it creates are objects of libibverbs.
func OpenVendor(t testing.TB, name string) *Provider {
	t.Helper()
	return open(t, name)
}

// open does the work of OpenProvider for the library with that name.
func open(t testing.TB, name string) *Provider {
	t.Helper()
	p := &Provider{t: t}
	library := dl.Library{
		Name: name, Symbols: []string{"provider"},
		Set: func(_ int, address unsafe.Pointer) { p.c = (*provider)(address) },
	}
	require.NoError(t, library.Load())
	require.NotNil(t, p.c, "this process has another %s", name)
	p.Forget()
	p.use(func() { p.c.plans = 0 })
	live := p.c.live
	t.Cleanup(func() {
		if !t.Failed() {
			require.Eventually(t, func() bool { return p.c.live == live }, 10*time.Second, time.Millisecond, "objects of C are left")
			require.Zero(t, p.c.plans, "plans are left")
		}
	})
	return p
}

// use calls f, which uses the log or the plans, while no thread of C does.
func (p *Provider) use(f func()) {
	for !atomic.CompareAndSwapInt64(&p.c.busy, 0, 1) {
		runtime.Gosched()
	}
	defer atomic.StoreInt64(&p.c.busy, 0)
	f()
}

// Forget drops the recorded calls.
func (p *Provider) Forget() { p.use(func() { p.c.calls = 0 }) }

// Calls returns the calls in the order in which they ended.
func (p *Provider) Calls() []Call {
	p.t.Helper()
	var calls []Call
	p.use(func() {
		require.LessOrEqual(p.t, p.c.calls, int64(maxCalls), "more calls than can be written down")
		for _, c := range p.c.log[:p.c.calls] {
			calls = append(calls, Call{p.t, c})
		}
	})
	return calls
}

// Names returns the names of the functions that were called, in the order in
// which the calls ended.
func (p *Provider) Names() []string {
	p.t.Helper()
	var names []string
	for _, c := range p.Calls() {
		names = append(names, c.Name())
	}
	return names
}

// Only returns the only recorded call, and drops it. It must be a call of the
// function called name.
func (p *Provider) Only(name string) Call {
	p.t.Helper()
	require.Equal(p.t, []string{name}, p.Names())
	c := p.Calls()[0]
	p.Forget()
	return c
}

// Last returns the last recorded call of a function. The test fails if there is
// none.
func (p *Provider) Last(function string) Call {
	p.t.Helper()
	calls := p.Calls()
	for i := len(calls) - 1; i >= 0; i-- {
		if calls[i].Name() == function {
			return calls[i]
		}
	}
	require.Fail(p.t, "not called", "%s in %v", function, p.Names())
	return Call{}
}

// An Effect is what a planned call does.
type Effect func(*plan)

// Next plans the next call of a function for which there is no plan yet.
// Without effects, the call does what it does without a plan.
func (p *Provider) Next(name string, effects ...Effect) {
	p.t.Helper()
	p.NextOf(name, 0, effects...)
}

// NextOf is Next for calls whose first argument is the object at an address. A
// call of another goroutine on another object does not use up the plan.
func (p *Provider) NextOf(name string, object int64, effects ...Effect) {
	p.t.Helper()
	next := plan{object: object}
	copy(next.name[:len(next.name)-1], name)
	for _, does := range effects {
		does(&next)
	}
	p.use(func() { // C sees the plan as a whole
		require.Less(p.t, p.c.plans, int64(maxPlans), "plans")
		p.c.plan[p.c.plans] = next
		p.c.plans++
	})
}

// Returns makes the call return result and set errno, and do nothing else but
// what it Writes.
func Returns(result int64, errno syscall.Errno) Effect {
	return func(p *plan) { p.instead, p.result, p.error = 1, result, int64(errno) }
}

// Writes makes the call write b, of at most 256 bytes, before it returns. It
// writes to the address in argument arg, plus offset.
func Writes(arg int, offset uintptr, b []byte) Effect {
	return func(p *plan) {
		p.arg, p.offset, p.size = int64(arg), int64(offset), int64(copy(p.bytes[:], b))
	}
}

// holds makes the call wait in C until Go lets it go on.
func holds(p *plan) { p.holds = 1 }

// Hold makes the next call of a function block in C. reached waits until the
// call blocks. release makes the call continue; it is also called at the end of
// the test.
func (p *Provider) Hold(name string) (reached, release func()) {
	p.t.Helper()
	atomic.StoreInt64(&p.c.released, 0)
	p.Next(name, holds)
	reached = func() {
		for atomic.LoadInt64(&p.c.held) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	release = func() { atomic.StoreInt64(&p.c.released, 1) }
	p.t.Cleanup(release)
	return reached, release
}

// Bytes returns a copy of the memory of a value, for Writes.
func Bytes[T any](v *T) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}

// Call is a recorded call.
type Call struct {
	t testing.TB
	c *record
}

// Name returns the function's name.
func (c Call) Name() string {
	name, _, _ := bytes.Cut(c.c.name[:], []byte{0})
	return string(name)
}

// Arg returns argument i: the bits of a number, or the address in a pointer.
func (c Call) Arg(i int) int64 {
	c.t.Helper()
	require.Less(c.t, int64(i), c.c.count, "%s has not so many arguments", c.Name())
	return c.c.args[i]
}

// Args returns all arguments.
func (c Call) Args() []int64 { return c.c.args[:c.c.count:c.c.count] }

// Result returns the result of the call.
func (c Call) Result() int64 { return c.c.result }

// ResultOf returns the object that the call returned.
func ResultOf[T any](c Call) *T { return *(**T)(unsafe.Pointer(&c.c.result)) }

// Struct returns a copy, in C's memory, of the struct to which an argument
// pointed when the call began. Pointers to Go's heap in it must only be
// followed with Follow.
func Struct[T any](c Call, arg int) *T {
	c.t.Helper()
	return &at[T](c, uintptr(c.Arg(arg)), 1)[0]
}

// Slice returns copies of the n values to which an argument pointed, like
// Struct.
func Slice[T any](c Call, arg, n int) []T {
	c.t.Helper()
	return at[T](c, uintptr(c.Arg(arg)), n)
}

// Follow returns copies of the n values to which field pointed, a pointer in a
// struct that Struct or Slice returned. It sets the field to nil, since Go must
// not find the old address there.
func Follow[T, P any](c Call, field *P, n int) []T {
	c.t.Helper()
	address := (*uintptr)(unsafe.Pointer(field))
	values := at[T](c, *address, n)
	*address = 0
	return values
}

// at returns the recorded copies of n values at an address.
func at[T any](c Call, address uintptr, n int) []T {
	c.t.Helper()
	var zero T
	size := unsafe.Sizeof(zero) * uintptr(n)
	for m := c.c.copies; m != nil; m = m.next {
		if m.address == address && m.size >= size {
			return unsafe.Slice((*T)(unsafe.Pointer(&m.bytes)), n)
		}
	}
	require.FailNow(c.t, "no copy", "%s did not see %d bytes at %#x", c.Name(), size, address)
	return nil
}
