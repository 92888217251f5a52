// SPDX-License-Identifier: Apache-2.0

// Package object manages the lifetimes of the objects of ibverbs and rdmacm. It
// makes Close idempotent and safe to call from any goroutine, keeps C from
// seeing a destroyed object, keeps parents open as long as they have children,
// and lists the open objects.
package object

import (
	"fmt"
	"os"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/verbena-go/verbena/internal/cerr"
)

// notMade returns the error for an object that is nil or for which Init was not
// called.
func notMade() error {
	return cerr.Argument("", "", cerr.InvalidAs(os.ErrInvalid, "the object is nil, or was not made by the package's functions"))
}

// closedBit is set in an object's state when Use must fail. The lower bits are
// the number of uses in progress.
const closedBit = 1 << 62

// Object is embedded in every type that represents an object of C.
type Object struct {
	name    string
	parents []*Object
	state   atomic.Int64  // closedBit and the number of uses in progress
	drained chan struct{} // gets a value when the last use ends while closedBit is set

	closing sync.Mutex           // held during Close
	mu      sync.Mutex           // guards the fields below
	gone    bool                 // whether the object is destroyed in C
	alive   map[*Object]struct{} // children
	idle    func()               // function that was passed to WhenIdle, or nil
}

// Init gives the object its name for messages, and makes it a child of its
// parents. The parents must be in use (see Use) while Init runs.
func (o *Object) Init(name string, parents ...*Object) {
	o.InitUnlisted(name, parents...)
	register(o)
}

// InitUnlisted is like Init, but Open does not list the object. It is for
// objects that stay open until the program ends and are no leaks.
func (o *Object) InitUnlisted(name string, parents ...*Object) {
	o.name = name
	o.drained = make(chan struct{}, 1)
	for _, p := range parents {
		o.AddParent(p) // parents may have p more than once: one CQ may serve both directions
	}
}

// Name returns the object's name for messages.
func (o *Object) Name() string { return o.name }

// adopt adds a child.
func (o *Object) adopt(child *Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.alive == nil {
		o.alive = map[*Object]struct{}{}
	}
	o.alive[child] = struct{}{}
}

// disown removes a child.
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

// WhenIdle makes the object call f each time it loses its last child. If it has
// no children now, WhenIdle calls f at once.
func (o *Object) WhenIdle(f func()) {
	o.mu.Lock()
	o.idle = f
	isIdle := len(o.alive) == 0
	o.mu.Unlock()
	if isIdle {
		f()
	}
}

// Use keeps the object from being destroyed until Done is called. It fails
// after Close, and during Close even if that fails in the end.
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

// Done ends a use that began with Use. It is small enough to be inlined.
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

// UseAll calls Use for all objects. done calls Done for all of them. If one Use
// fails, UseAll ends the uses that it began.
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

// closedError returns the error for an object that is closed or being closed.
func (o *Object) closedError() error { return fmt.Errorf("%s: %w", o.name, os.ErrClosed) }

// Close destroys the object by calling destroy. If the object has children or
// destroy fails, the object stays usable, and Close can be called again. Close
// makes Use fail, then calls interrupt, if that is not nil, to make blocked
// uses give up, and then waits for the uses in progress. After a successful
// Close, further calls do nothing.
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
	err := o.busy() // a child may have been added meanwhile
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

// drain makes Use fail, and waits for the uses in progress.
func (o *Object) drain(interrupt func()) {
	select {
	case <-o.drained: // drops a value that an earlier Close, which failed, has left
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

// isGone reports whether the object is destroyed.
func (o *Object) isGone() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

// busy returns an error that names the children, or nil if there are none.
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
	sort.Slice(children, func(i, j int) bool { return children[i] < children[j] })
	return cerr.Busy(o.name, children)
}
