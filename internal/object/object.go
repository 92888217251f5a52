// SPDX-License-Identifier: Apache-2.0

// Package object manages the lifetimes of the objects of ibverbs and rdmacm.
// Close is idempotent and may be called from any goroutine, C never sees a
// destroyed object, parents outlive their children, and Open lists what is
// still open.
package object

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/verbena-go/verbena/internal/cerr"
)

// notMade returns the error for an object that is nil, or without Init.
func notMade() error {
	return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the object is nil, or was not made by the package's functions"))
}

// closedBit of an object's state forbids new uses. The other bits count the
// uses in progress.
const closedBit = 1 << 62

// Object is embedded in every object that represents one of C.
type Object struct {
	name    string
	parents []*Object
	state   atomic.Int64
	drained chan struct{} // receives when the last use ends after closedBit is set

	closing sync.Mutex // held during Close
	mu      sync.Mutex // guards the fields below
	gone    bool       // destroyed in C
	alive   map[*Object]struct{}
	idle    func() // see WhenIdle
}

// Init makes the object a child of its parents, and names it for messages. The
// parents must be in use (see Use) while Init runs.
func (o *Object) Init(name string, parents ...*Object) {
	o.InitUnlisted(name, parents...)
	register(o)
}

// InitUnlisted initializes an object like Init, but Open does not list it: it
// stays open for the whole life of the program and is not a leak.
func (o *Object) InitUnlisted(name string, parents ...*Object) {
	o.name = name
	o.drained = make(chan struct{}, 1)
	for _, p := range parents {
		o.AddParent(p) // some more than once: one CQ may serve both directions
	}
}

// Name returns the object's name in messages.
func (o *Object) Name() string { return o.name }

func (o *Object) adopt(child *Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.alive == nil {
		o.alive = map[*Object]struct{}{}
	}
	o.alive[child] = struct{}{}
}

func (o *Object) disown(child *Object) {
	o.mu.Lock()
	delete(o.alive, child)
	idle := o.idle
	if len(o.alive) > 0 {
		idle = nil
	}
	o.mu.Unlock()
	if idle != nil {
		idle()
	}
}

// WhenIdle calls f each time the object loses its last child, and also at once
// if it has no children.
func (o *Object) WhenIdle(f func()) {
	o.mu.Lock()
	o.idle = f
	isIdle := len(o.alive) == 0
	o.mu.Unlock()
	if isIdle {
		f()
	}
}

// Use keeps the object from being destroyed until Done. It fails after Close
// and during Close, even if that Close then fails.
func (o *Object) Use() error {
	if o == nil || o.drained == nil {
		return notMade()
	}
	if o.state.Add(1)&closedBit != 0 {
		o.Done()
		return o.closedError()
	}
	return nil
}

// Done ends a use that Use began. It is small enough to be inlined.
func (o *Object) Done() {
	if o.state.Add(-1) == closedBit {
		o.wakeClose()
	}
}

// wakeClose wakes the Close that waits in drain.
func (o *Object) wakeClose() {
	select {
	case o.drained <- struct{}{}:
	default:
	}
}

// UseAll calls Use on all objects. If one fails, it uses none.
func UseAll(objects ...*Object) (done func(), err error) {
	for i, o := range objects {
		if err := o.Use(); err != nil {
			for _, used := range objects[:i] {
				used.Done()
			}
			return nil, err
		}
	}
	return func() {
		for _, o := range objects {
			o.Done()
		}
	}, nil
}

// Closed reports whether the object is closed or being closed.
func (o *Object) Closed() bool { return o.state.Load()&closedBit != 0 }

// Err returns an error if the object is closed or being closed.
func (o *Object) Err() error {
	if o.Closed() {
		return o.closedError()
	}
	return nil
}

func (o *Object) closedError() error { return fmt.Errorf("%s: %w", o.name, os.ErrClosed) }

// Close destroys the object. If the object has children or C refuses, it stays
// usable, and Close can be called again. After refusing new uses, Close calls
// interrupt, which may be nil and makes blocked uses give up. A second Close
// does nothing.
func (o *Object) Close(interrupt func(), destroy func() error) error {
	if o == nil || o.drained == nil {
		return notMade()
	}
	o.closing.Lock()
	defer o.closing.Unlock()
	if o.isGone() {
		return nil
	}
	if err := o.busy(); err != nil {
		return err
	}
	o.drain(interrupt)
	err := o.busy() // a child may just have been added
	if err == nil {
		err = destroy()
	}
	if err != nil {
		o.state.Add(-closedBit)
		return err
	}
	o.mu.Lock()
	o.gone = true
	o.mu.Unlock()
	for _, p := range o.parents {
		p.disown(o)
	}
	unregister(o)
	return nil
}

// drain refuses new uses and waits for those in progress.
func (o *Object) drain(interrupt func()) {
	select {
	case <-o.drained: // from an earlier Close that failed
	default:
	}
	o.state.Add(closedBit)
	if interrupt != nil {
		interrupt()
	}
	for o.state.Load() != closedBit {
		<-o.drained
	}
}

func (o *Object) isGone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

func (o *Object) busy() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.alive) == 0 {
		return nil
	}
	var children []string
	for child := range o.alive {
		children = append(children, child.name)
	}
	slices.Sort(children)
	return cerr.Busy(o.name, children)
}
