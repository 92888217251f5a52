// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"bytes"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/dl"
)

// What testdata/provider.c has, with the same layouts.
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
	// C has the plan behind this.
}

type provider struct {
	calls int64
	log   [maxCalls]*record
	plans int64
	plan  [maxPlans]Plan
	live  int64

	held, released int64 // atomically
}

// Provider is the libibverbs of a process that ProviderMain made. It has one
// device, fake0, with every operation. Calls that create something give an
// object that is filled as a provider fills it, and nothing is behind it.
// Every call of a function or operation is written down. Destroying something
// twice, or what is no object, ends the process.
type Provider struct {
	t testing.TB
	c *provider
}

// OpenProvider returns the library with no calls and no plans. At the end of
// the test every object must be destroyed and every plan used.
func OpenProvider(t testing.TB) *Provider {
	t.Helper()
	return open(t, "libibverbs.so.1")
}

// OpenCM returns the librdmacm of a process that CMMain made, as OpenProvider
// returns libibverbs. It knows one host, which has every address and accepts
// every connection: a call that starts something causes the event that says
// that all is well. An event can be planned to be another: each is a call of
// "event", whose argument 0 is the struct. Listening causes a connection
// request, and rdma_write_cm_event whatever is planned.
func OpenCM(t testing.TB) *Provider {
	t.Helper()
	return open(t, "librdmacm.so.1")
}

// OpenVendor returns the library of a driver in a process that VendorMain made,
// as OpenProvider returns libibverbs. Queue pairs that it makes are those of
// libibverbs.
func OpenVendor(t testing.TB, name string) *Provider {
	t.Helper()
	return open(t, name)
}

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
	p.c.plans = 0
	live := p.c.live
	t.Cleanup(func() {
		if !t.Failed() {
			require.Eventually(t, func() bool { return p.c.live == live }, 10*time.Second, time.Millisecond, "objects of C are left")
			require.Zero(t, p.c.plans, "plans are left")
		}
	})
	return p
}

// Forget forgets the calls until now.
func (p *Provider) Forget() { p.c.calls = 0 }

// Calls returns the calls in the order in which they ended.
func (p *Provider) Calls() []Call {
	p.t.Helper()
	require.LessOrEqual(p.t, p.c.calls, int64(maxCalls), "more calls than can be written down")
	calls := make([]Call, p.c.calls)
	for i := range calls {
		calls[i] = Call{p.t, p.c.log[i]}
	}
	return calls
}

// Names returns the names of the functions called, in order.
func (p *Provider) Names() []string {
	p.t.Helper()
	var names []string
	for _, c := range p.Calls() {
		names = append(names, c.Name())
	}
	return names
}

// Only returns the call, which must be the only one, and forgets it.
func (p *Provider) Only(name string) Call {
	p.t.Helper()
	require.Equal(p.t, []string{name}, p.Names())
	c := p.Calls()[0]
	p.Forget()
	return c
}

// Last returns the last call of a function, which must have been called.
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

// Plan says what a call does.
type Plan struct {
	name              [48]byte
	holds             int64
	instead           int64
	result, error     int64
	arg, offset, size int64
	bytes             [256]byte
}

// Next plans the next call of a function, after those planned before.
func (p *Provider) Next(name string) *Plan {
	p.t.Helper()
	require.Less(p.t, p.c.plans, int64(maxPlans), "plans")
	plan := &p.c.plan[p.c.plans]
	*plan = Plan{}
	copy(plan.name[:len(plan.name)-1], name)
	p.c.plans++
	return plan
}

// Returns makes the call do nothing but return the result and leave errno.
func (p *Plan) Returns(result int64, errno syscall.Errno) *Plan {
	p.instead, p.result, p.error = 1, result, int64(errno)
	return p
}

// Hold plans that the next call of a function stays in C, as in a kernel that
// does not let it go. reached returns when the call is there, and release lets
// it go on; the end of the test does so, too.
func (p *Provider) Hold(name string) (reached, release func()) {
	p.t.Helper()
	atomic.StoreInt64(&p.c.released, 0)
	p.Next(name).holds = 1
	reached = func() {
		for atomic.LoadInt64(&p.c.held) == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	release = func() { atomic.StoreInt64(&p.c.released, 1) }
	p.t.Cleanup(release)
	return reached, release
}

// Writes makes the call, as its last step, write b at offset bytes past the
// address in argument arg. b has at most 256 bytes.
func (p *Plan) Writes(arg int, offset uintptr, b []byte) *Plan {
	p.arg, p.offset, p.size = int64(arg), int64(offset), int64(copy(p.bytes[:], b))
	return p
}

// Bytes returns the memory of a value, for Writes.
func Bytes[T any](v *T) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
}

// Call is one that was written down.
type Call struct {
	t testing.TB
	c *record
}

// Name returns the function's name.
func (c Call) Name() string {
	name, _, _ := bytes.Cut(c.c.name[:], []byte{0})
	return string(name)
}

// Arg returns an argument: the bits of a number, the address of a pointer.
func (c Call) Arg(i int) int64 {
	c.t.Helper()
	require.Less(c.t, int64(i), c.c.count, "%s has not so many arguments", c.Name())
	return c.c.args[i]
}

// Args returns all arguments.
func (c Call) Args() []int64 { return c.c.args[:c.c.count:c.c.count] }

// Result returns what C returned.
func (c Call) Result() int64 { return c.c.result }

// ResultOf returns the object that C returned.
func ResultOf[T any](c Call) *T { return *(**T)(unsafe.Pointer(&c.c.result)) }

// Struct returns what an argument pointed to when the call began. It lies in
// C's memory; pointers in it that Go's heap had are followed with Follow.
func Struct[T any](c Call, arg int) *T {
	c.t.Helper()
	return &at[T](c, uintptr(c.Arg(arg)), 1)[0]
}

// Slice returns n values that an argument pointed to, as Struct does one.
func Slice[T any](c Call, arg, n int) []T {
	c.t.Helper()
	return at[T](c, uintptr(c.Arg(arg)), n)
}

// Follow returns the n values that a pointer field of such a struct pointed
// to, and sets the field to nil, because Go must not meet the address again.
func Follow[T, P any](c Call, field *P, n int) []T {
	c.t.Helper()
	address := (*uintptr)(unsafe.Pointer(field))
	values := at[T](c, *address, n)
	*address = 0
	return values
}

// at returns the copy of n values at an address.
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
