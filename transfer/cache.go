// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"iter"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
)

// A cache finds the region of any memory, and registers memory that has none.
// It has two kinds of regions: those that the program registered itself (add,
// remove), and cached ones, which acquire registers. The methods may be called
// concurrently.
//
// A cached region stays registered after its last use, until the cached regions
// exceed the limit. Until then the cache refers to the memory, so that the
// garbage collector cannot reuse it for another object. The cache does not see
// that a program unmaps memory that is not of Go's heap. A cached region would
// then stand for pages that the program no longer has, and a new mapping at the
// same address would be taken for the old one. The program calls forget before
// it unmaps such memory, or registers the memory itself.
type cache struct {
	limit      int64 // of cached bytes
	register   func(b []byte) (*Region, error)
	deregister func(r *Region) error

	mu       sync.Mutex // not held while memory is registered or deregistered, which takes milliseconds
	changed  sync.Cond  // a registration or a deregistration has ended
	writable index      // the regions that acquire finds, but for those in readOnly
	readOnly index      // those that acquire finds only if the memory is not to be written
	pending  []*pending // the registrations in progress
	unused   list       // the cached regions in an index without users
	ending   []*Region  // cached regions that are no longer found: in use, or being deregistered
	failed   []*Region  // cached regions whose deregistration failed; drop tries again
	size     int64      // bytes of cached regions, pending or registered, until their deregistration begins
	count    uint64     // number of registrations that have begun
	closed   bool       // whether close was called
}

// cached is what the cache knows of a region. The cache's mutex guards it.
type cached struct {
	added      bool    // whether the program registered it
	users      int     // number of acquires and uses without a release
	ended      bool    // whether acquire no longer finds it
	number     uint64  // number of the cached region's registration
	prev, next *Region // in the list of unused regions
	failure    error   // why the deregistration failed
}

// pending is a registration in progress.
type pending struct {
	bytes  []byte
	number uint64
}

// newCache returns a cache that keeps at most limit bytes of regions without
// users. register returns a new region with the memory b as its bytes.
func newCache(limit int64, register func(b []byte) (*Region, error), deregister func(r *Region) error) *cache {
	c := &cache{limit: limit, register: register, deregister: deregister}
	c.changed.L = &c.mu
	return c
}

// acquire returns a region that contains all of b. The region is not
// deregistered before the caller releases it. If there is no such region,
// acquire registers b, together with the cached regions that b overlaps, and
// waits meanwhile, also for another goroutine that already does so. If written
// is set, it returns a read-only region only if b has just been registered and
// proved to be so. It fails with an error that matches os.ErrClosed after
// close.
func (c *cache) acquire(b []byte, written bool) (*Region, error) {
	if len(b) == 0 {
		return nil, cerr.Refuse("ibv_reg_mr", "", "the memory is empty")
	}
	c.mu.Lock()
	r, err := c.known(b, written)
	c.mu.Unlock()
	if r != nil || err != nil {
		return r, err
	}
	return c.acquireNew(b, written)
}

// known returns a region that contains all of b, with one more user, or nil.
// The caller holds c.mu.
func (c *cache) known(b []byte, written bool) (*Region, error) {
	if c.closed {
		return nil, errEngineClosed
	}
	r := c.writable.find(span(b))
	if r == nil && !written {
		r = c.readOnly.find(span(b))
	}
	if r != nil {
		c.addUser(r)
	}
	return r, nil
}

// addUser adds a user to a region that has not ended. The caller holds c.mu.
func (c *cache) addUser(r *Region) {
	if r.users == 0 && !r.added {
		c.unused.remove(r)
	}
	r.users++
}

// acquireNew does the work of acquire if no region contained b.
func (c *cache) acquireNew(b []byte, written bool) (*Region, error) {
	c.mu.Lock()
	for {
		if r, err := c.known(b, written); r != nil || err != nil {
			c.mu.Unlock()
			return r, err
		}
		all := c.union(b)
		if !c.isPending(all) {
			return c.registerNew(b, all)
		}
		c.changed.Wait()
	}
}

// union returns b together with the cached regions that a new registration of b
// replaces. These are the ones that b overlaps, as overlapping slices are of
// one allocation. They are also the ones next to b, if a capacity proves that
// they are of the same allocation. So a program that uses a large slice piece
// by piece ends up with few regions. A region next to b is left alone if it is
// larger than what is to be registered, since otherwise each piece would
// register all earlier ones again. So is memory that can only be read: all
// together could only be read.
//
// union returns b if all together would exceed the limit. The caller holds
// c.mu.
func (c *cache) union(b []byte) []byte {
	all := b
	for grown := true; grown; {
		before := all
		for r := range c.writable.touching(span(all)) {
			if !r.added && (overlap(all, r.bytes) || len(r.bytes) <= len(all) && adjoin(all, r.bytes)) {
				all = join(all, r.bytes)
			}
		}
		grown = len(all) != len(before) || cap(all) != cap(before)
	}
	if int64(len(all)) > c.limit {
		return b
	}
	return all
}

// isPending reports whether a part of b is being registered. The caller holds
// c.mu.
func (c *cache) isPending(b []byte) bool {
	return slices.ContainsFunc(c.pending, func(p *pending) bool { return overlap(p.bytes, b) })
}

// registerNew registers all, which contains b, or b alone. The caller holds
// c.mu, which registerNew unlocks.
func (c *cache) registerNew(b, all []byte) (*Region, error) {
	c.count++
	p := &pending{bytes: all, number: c.count}
	c.pending = append(c.pending, p)
	c.size += int64(len(all))
	evicted := c.evict(c.limit)
	c.mu.Unlock()
	c.deregisterAll(evicted) // first, as the new region may need their share of the locked memory

	r, err := c.register(all)
	if err == nil && len(all) > len(b) && r.readOnly.Load() { // but not all of it
		c.deregisterAll([]*Region{r})
		r, err = c.register(b)
	}
	if outOfMemory := errors.Is(err, syscall.ENOMEM); err != nil && (outOfMemory || len(all) > len(b)) {
		if outOfMemory {
			c.evictUnused()
		}
		r, err = c.register(b) // alone: it needs the least memory
	}

	c.mu.Lock()
	c.pending = remove(c.pending, p)
	c.changed.Broadcast()
	c.size -= int64(len(all))
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.size += int64(len(r.bytes))
	r.number, r.users = p.number, 1
	start, end := span(r.bytes)
	replaced := c.end(start, end, func(old *Region) bool {
		return contains(r.bytes, old.bytes) && (old.readOnly.Load() || !r.readOnly.Load())
	})
	c.indexOf(r).insert(r)
	c.mu.Unlock()
	c.deregisterAll(replaced)
	return r, nil
}

// indexOf returns the index that a region belongs to. The caller holds c.mu.
func (c *cache) indexOf(r *Region) *index {
	if r.readOnly.Load() {
		return &c.readOnly
	}
	return &c.writable
}

// setReadOnly records that a device has a region's memory, or a part of it, as
// memory that can only be read. Other regions of that memory may be writable.
func (c *cache) setReadOnly(r *Region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isFound := c.indexOf(r).remove(r)
	r.readOnly.Store(true)
	if isFound {
		c.readOnly.insert(r)
	}
}

// use adds a user to a region that the program registered, for a request that
// names the region. It fails with an error that matches os.ErrClosed if the
// region was removed, and after close.
func (c *cache) use(r *Region) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errEngineClosed
	case !r.added || r.ended:
		return cerr.Argument("Batch.Submit", r.String(), cerr.InvalidAs(os.ErrClosed, "the region is closed"))
	}
	c.addUser(r)
	return nil
}

// release ends one use of a region. It may deregister cached regions without
// users: this one if it has been replaced or forgotten, and the least recently
// used ones if the cached regions exceed the limit.
func (c *cache) release(r *Region) {
	c.mu.Lock()
	if r.users == 0 {
		c.mu.Unlock()
		panic("transfer: release of a region without users")
	}
	r.users--
	var done []*Region
	if r.users == 0 && !r.added {
		if r.ended {
			c.size -= int64(len(r.bytes))
			done = []*Region{r}
		} else {
			c.unused.push(r)
			done = c.evict(c.limit)
		}
	}
	c.mu.Unlock()
	c.deregisterAll(done)
}

// add makes acquire find a region that the program registered. The region does
// not count against the limit. It may overlap other regions; acquire returns
// any one that contains the memory. add fails with an error that matches
// os.ErrClosed after close.
func (c *cache) add(r *Region) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errEngineClosed
	case r.added:
		return cerr.Refuse("ibv_reg_mr", "", "the region is in the cache already")
	}
	r.added = true
	if len(r.bytes) > 0 {
		c.indexOf(r).insert(r)
	}
	return nil
}

// remove takes back a region that the program registered: acquire no longer
// finds it, and the caller may deregister it. Before that, remove deregisters
// the cached regions that overlap it, as forget does, so that later calls of
// acquire do not add users to them. It returns false if ctx ends meanwhile, or
// the region itself has users; acquire still finds it then. It may be called
// again after it has returned true.
func (c *cache) remove(ctx context.Context, r *Region) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.ended {
		return true
	}
	start, end := span(r.bytes)
	if r.users > 0 || !c.endOld(ctx, start, end, c.count) || r.users > 0 {
		return false
	}
	r.ended = true
	c.indexOf(r).remove(r)
	return true
}

// forget deregisters the cached regions that overlap b. It waits until those
// that are in use have no users any more, so the caller must not be one of
// them. Regions that acquire registers after forget was called stay. forget
// returns the errors of deregistrations.
func (c *cache) forget(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return c.drop(span(b))
}

// close deregisters all cached regions. It waits until those that are in use
// have no users any more. Regions that the program registered stay registered.
// close returns the errors of deregistrations, including earlier ones that no
// caller has got. It may be called more than once, and then tries those again.
func (c *cache) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	return c.drop(0, math.MaxUint)
}

// drop deregisters the cached regions that have memory between start and end,
// and waits until it has happened. It ignores registrations that begin
// meanwhile.
func (c *cache) drop(start, end uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.count
	matches := func(r *Region) bool { return overlaps(r.bytes, start, end) }
	var again []*Region
	for _, r := range c.failed {
		if matches(r) {
			again = append(again, r)
		}
	}
	c.failed = slices.DeleteFunc(c.failed, matches)
	c.ending = append(c.ending, again...)
	c.deregisterUnlocked(again)
	c.endOld(context.Background(), start, end, last)

	var errs []error
	for _, r := range c.failed {
		if r.number <= last && matches(r) {
			errs = append(errs, r.failure)
		}
	}
	return errors.Join(errs...)
}

// endOld ends the cached regions that have memory between start and end, and
// waits until they are deregistered or failed to be. It returns false if ctx
// ends before. It ignores registrations with larger numbers than last. The
// caller holds c.mu, which endOld unlocks meanwhile.
func (c *cache) endOld(ctx context.Context, start, end uintptr, last uint64) bool {
	isOld := func(r *Region) bool { return r.number <= last && overlaps(r.bytes, start, end) }
	isOldPending := func(p *pending) bool { return p.number <= last && overlaps(p.bytes, start, end) }
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	for {
		c.deregisterUnlocked(c.end(start, end, isOld))
		switch {
		case !slices.ContainsFunc(c.pending, isOldPending) && !slices.ContainsFunc(c.ending, isOld):
			return true
		case ctx.Err() != nil:
			return false
		}
		c.changed.Wait()
	}
}

// evictUnused deregisters all cached regions without users. It also waits for
// other goroutines that are deregistering regions.
func (c *cache) evictUnused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	evicted := c.evict(0)
	var unused []*Region
	for _, r := range c.ending {
		if r.users == 0 {
			unused = append(unused, r)
		}
	}
	c.deregisterUnlocked(evicted)
	for slices.ContainsFunc(unused, func(r *Region) bool { return slices.Contains(c.ending, r) }) {
		c.changed.Wait()
	}
}

// evict ends the least recently used of the cached regions without users, until
// the cached regions do not exceed limit. It returns the ended ones, which the
// caller deregisters. The caller holds c.mu.
func (c *cache) evict(limit int64) (ended []*Region) {
	for c.size > limit && c.unused.first != nil {
		r := c.unused.first
		c.endOne(r)
		ended = append(ended, r)
	}
	return ended
}

// touching returns the regions that acquire finds and that overlap the memory
// from start to end, or are next to it. The caller holds c.mu.
func (c *cache) touching(start, end uintptr) iter.Seq[*Region] {
	return func(yield func(*Region) bool) {
		for _, x := range [...]index{c.writable, c.readOnly} {
			for r := range x.touching(start, end) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// end ends the cached regions that match, of those that overlap the memory from
// start to end. It returns those without users, which the caller deregisters.
// The caller holds c.mu.
func (c *cache) end(start, end uintptr, matches func(r *Region) bool) (unused []*Region) {
	var ended []*Region
	for r := range c.touching(start, end) {
		if !r.added && matches(r) {
			ended = append(ended, r)
		}
	}
	for _, r := range ended {
		c.endOne(r)
		if r.users == 0 {
			unused = append(unused, r)
		}
	}
	return unused
}

// endOne makes acquire no longer find a cached region. If it has no users, the
// caller must deregister it; otherwise the last release does. The caller holds
// c.mu.
func (c *cache) endOne(r *Region) {
	r.ended = true
	c.indexOf(r).remove(r)
	c.ending = append(c.ending, r)
	if r.users == 0 {
		c.unused.remove(r)
		c.size -= int64(len(r.bytes))
	}
}

// deregisterUnlocked calls deregisterAll without c.mu, which the caller holds.
func (c *cache) deregisterUnlocked(regions []*Region) {
	c.mu.Unlock()
	c.deregisterAll(regions)
	c.mu.Lock()
}

// deregisterAll deregisters ended regions without users. The caller does not
// hold c.mu.
func (c *cache) deregisterAll(regions []*Region) {
	for _, r := range regions {
		err := c.deregister(r)
		c.mu.Lock()
		c.ending = remove(c.ending, r)
		r.failure = err
		if err != nil {
			c.failed = append(c.failed, r) // the device may still access the memory, so the cache refers to it
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// A list holds cached regions without users in the order of their last use.
type list struct{ first, last *Region }

// push adds a region as the last one.
func (l *list) push(r *Region) {
	r.prev, r.next = l.last, nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
}

// remove removes a region of the list.
func (l *list) remove(r *Region) {
	if r.prev == nil {
		l.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
}

// remove returns all without one, and leaves no reference to it behind.
func remove[E comparable](all []E, one E) []E {
	return slices.DeleteFunc(all, func(e E) bool { return e == one })
}

// span returns the addresses of the first byte of b and of the one after the
// last. Memory of Go's heap does not move.
func span(b []byte) (start, end uintptr) {
	start = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return start, start + uintptr(len(b))
}

// overlap reports whether a and b share a byte.
func overlap(a, b []byte) bool {
	start, end := span(b)
	return overlaps(a, start, end)
}

// overlaps reports whether a byte of b is between start and end.
func overlaps(b []byte, start, end uintptr) bool {
	first, behind := span(b)
	return first < end && start < behind
}

// contains reports whether all of b is in a.
func contains(a, b []byte) bool {
	aStart, aEnd := span(a)
	bStart, bEnd := span(b)
	return aStart <= bStart && bEnd <= aEnd
}

// adjoin reports whether one of a and b begins where the other one ends, in the
// same allocation. Only the capacity of the first proves the latter: the next
// bytes may be another object of the heap.
func adjoin(a, b []byte) bool {
	aStart, aEnd := span(a)
	bStart, bEnd := span(b)
	return aEnd == bStart && cap(a) > len(a) || bEnd == aStart && cap(b) > len(b)
}

// join returns the memory of a and b, which overlap or adjoin. Its capacity is
// all that the capacities of both prove to be of the allocation.
func join(a, b []byte) []byte {
	aStart, aEnd := span(a)
	bStart, bEnd := span(b)
	first, start := a, aStart
	if bStart < aStart {
		first, start = b, bStart
	}
	limit := max(aStart+uintptr(cap(a)), bStart+uintptr(cap(b)))
	return unsafe.Slice(unsafe.SliceData(first), limit-start)[:max(aEnd, bEnd)-start]
}
