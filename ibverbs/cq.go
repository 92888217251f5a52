// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// ErrCQOverrun reports that more requests completed than the queue could hold,
// so completions were lost. Poll and Wait return it once the remaining
// completions are taken and the device has reported the overrun; the program
// need not read events. Create the queue and its queue pairs again, with a
// CompQueue for all outstanding requests.
var ErrCQOverrun = errors.New("overrun: completions are lost, because the queue has too few entries")

// noChannel returns the error for waiting on a queue that can only be polled.
func noChannel(op string, cq *CQ) error {
	return cerr.Refuse(op, cq.object.Name(), "the queue was made without CQConfig.Channel")
}

// MaxSpin limits the time of a call of Spin, Sleep or an exchange, whatever its
// budget. Close waits for such a call.
const MaxSpin = 5 * time.Millisecond

// CQ is a completion queue. Its methods may be called concurrently unless it is
// SingleThreaded. Several goroutines may wait; each completion goes to one of
// them.
type CQ struct {
	object    object.Object
	device    *Device
	channel   *CompChannel // nil means that the queue has no events
	raw       *libibverbs.Cq
	queue     datapath.Queue // how the queue is polled
	entries   atomic.Int32   // number of entries, from C while the queue is open
	solicited bool           // whether only failures and solicited messages raise an event
	lost      atomic.Bool    // whether an overrun has lost completions
	scheduled atomic.Int64   // time at which spun last called runtime.Gosched
	policy    waitPolicy

	woken atomic.Bool          // whether Wake was called and no Wait has returned because of it yet
	turn  chan struct{}        // full while a goroutine waits
	ready chan struct{}        // receives when another goroutine has read this queue's event
	try   func() (bool, error) // reads the channel's events until one is for this queue
	wakes bool                 // whether the device can send to ready by itself, without an event
	parks atomic.Bool          // whether a goroutine receives from ready, if wakes is true
	aside atomic.Bool          // whether waits leave the work of a device in this process to other goroutines
	muted atomic.Bool          // whether completions wake no goroutine, since a call polls for the one that is parked

	// beforePark is called before a goroutine parks in Wait, and afterPark
	// afterwards, unless they are nil; see cqInternals.OnPark.
	beforePark, afterPark func()

	// attends says whether a goroutine does the device's work while it waits
	// for ready. The others belong to the goroutine that has the turn.
	attends atomic.Bool
	over    func() bool     // whether that goroutine's wait is over, made once
	waitCtx context.Context // context of the wait
	last    <-chan struct{} // Done of the context at the last call of attend
	guarded <-chan struct{} // Done of the context whose end interrupts waits
	unguard func() bool     // ends that; nil: no context does
}

// CQConfig is the configuration of a completion queue.
type CQConfig struct {
	CompQueue     int          // minimum number of completions that the queue can hold; more than it can hold are an overrun
	Channel       *CompChannel // for Wait and Sleep; nil means that the queue can only be polled
	Vector        int          // interrupt vector, below Device.CompVectors
	SolicitedOnly bool         // whether only failures and messages sent with SendSolicited end a wait

	// Spin bounds how long Wait busy-waits before it parks the goroutine. Wait
	// busy-waits only if recent completions usually came within Spin. 0 means
	// DefaultSpin; a negative value means never. At most GOMAXPROCS/4
	// goroutines busy-wait at a time (one if GOMAXPROCS is 2 or 3, none if it
	// is 1), where GOMAXPROCS is the value at the program's start. On the device
	// in user space, a goroutine busy-waits only for other processes: what other
	// goroutines of this one do comes sooner if it parks. One more goroutine
	// does the device's work meanwhile, and watches for DefaultSpin at least,
	// and MaxSpin at most, what comes if that has paid lately, even if Spin is
	// negative, as the device's own goroutine would.
	//
	// Before it parks, Wait may also sleep in C for up to half a millisecond.
	// It does so only if recent completions usually came that soon and the
	// channel belongs to this queue alone. The same number of goroutines may
	// sleep at a time, but none with a negative Spin, and none on the device in
	// user space.
	Spin time.Duration

	// This field and those below need an extended queue, which not every device
	// has; see ibv_create_cq_ex(3).
	Fields         WCFields // fields of each completion; 0 means WCStandard and PKeyIndex
	SingleThreaded bool     // whether the program makes only one call at a time, which may save a lock
	IgnoreOverrun  bool     // whether an overrun overwrites completions without an error
	ParentDomain   *PD      // parent domain from AllocParentDomain, or nil; one with a thread domain saves the lock
}

// CreateCQ creates a completion queue; see ibv_create_cq(3). If the device
// cannot do what config asks for, the error matches errors.ErrUnsupported.
func (d *Device) CreateCQ(config CQConfig) (*CQ, error) {
	parents := []*object.Object{d.self()}
	if config.Channel != nil {
		parents = append(parents, &config.Channel.object)
	}
	if config.ParentDomain != nil {
		parents = append(parents, &config.ParentDomain.object)
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if config.Channel != nil {
		if err := sameDevice("ibv_create_cq", d.Name(), d.raw, config.Channel.self(), config.Channel.device.raw); err != nil {
			return nil, err
		}
	}
	if domain := config.ParentDomain; domain != nil {
		if err := sameDevice("ibv_create_cq", d.Name(), d.raw, domain.self(), domain.device.raw); err != nil {
			return nil, err
		}
		if domain.parent == nil {
			return nil, badCQ(d, "ParentDomain is %s, which is not a parent domain; AllocParentDomain makes one", domain.object.Name())
		}
	}
	if err := inRange("CompQueue", config.CompQueue, 1, math.MaxInt32); err != nil {
		return nil, cerr.Argument("ibv_create_cq", d.Name(), err)
	}
	if vectors := max(d.CompVectors(), 1); config.Vector < 0 || config.Vector >= vectors {
		return nil, badCQ(d, "Vector is %d, not from 0 to %d", config.Vector, vectors-1)
	}
	cq := &CQ{
		device: d, channel: config.Channel, solicited: config.SolicitedOnly,
		turn: make(chan struct{}, 1), ready: make(chan struct{}, 1),
	}
	cq.policy.init(config, datapath.HasDevice())
	if err := d.watchEvents(); err != nil {
		return nil, err
	}
	if err := cq.create(config); err != nil {
		d.unwatchEvents()
		err = d.explain(err, completionQueues, leastRequest*config.CompQueue)
		return nil, d.tooMuch(err, fmt.Sprintf("%d entries on %s", config.CompQueue, d.Name()), cqSizes(config.CompQueue))
	}
	cq.noteCap()
	if cq.channel != nil {
		cq.try = func() (bool, error) { return cq.channel.read(cq) }
		cq.wakes = datapath.SetWake(cq.raw, cq.rouse)
		cq.channel.add(cq)
	}
	cq.object.Init(fmt.Sprintf("CQ %d of %s", cq.raw.Handle, d.Name()), parents...)
	register(unsafe.Pointer(cq.raw), cq)
	return cq, nil
}

func cqSizes(entries int) func(DeviceAttr) []size {
	return func(a DeviceAttr) []size { return []size{{"CompQueue", entries, a.MaxCQE}} }
}

func badCQ(d *Device, format string, args ...any) error {
	return cerr.Refuse("ibv_create_cq", d.Name(), format, args...)
}

func (cq *CQ) create(config CQConfig) (err error) {
	var channel *libibverbs.CompChannel
	if config.Channel != nil {
		channel = config.Channel.raw
	}
	if config.Fields == 0 && !config.SingleThreaded && !config.IgnoreOverrun && config.ParentDomain == nil {
		cq.raw, err = libibverbs.CreateCq(cq.device.raw, int32(config.CompQueue), nil, channel, int32(config.Vector))
		cq.queue = datapath.NewQueue(cq.raw)
		return err
	}
	attr := libibverbs.CqInitAttrEx{
		Cqe: uint32(config.CompQueue), Channel: channel, CompVector: uint32(config.Vector), WcFlags: uint64(config.Fields),
	}
	for flag, on := range map[libibverbs.CreateCqAttrFlags]bool{
		libibverbs.IBV_CREATE_CQ_ATTR_SINGLE_THREADED: config.SingleThreaded,
		libibverbs.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN:  config.IgnoreOverrun,
	} {
		if on {
			attr.CompMask |= libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS
			attr.Flags |= flag
		}
	}
	if config.ParentDomain != nil {
		attr.CompMask |= libibverbs.IBV_CQ_INIT_ATTR_MASK_PD
		attr.ParentDomain = config.ParentDomain.raw
	}
	ex, err := libibverbs.CreateCqEx(cq.device.raw, &attr)
	if err != nil {
		return err
	}
	cq.raw = (*libibverbs.Cq)(unsafe.Pointer(ex)) // as ibv_cq_ex_to_cq does
	cq.queue = datapath.NewQueue(cq.raw)
	if config.Fields != 0 {
		cq.queue = datapath.NewQueueEx(ex, config.Fields)
	}
	return nil
}

// Device returns the device that the queue belongs to.
func (cq *CQ) Device() *Device { return cq.device }

// Cap returns how many completions the queue can hold.
func (cq *CQ) Cap() int { return int(cq.entries.Load()) }

func (cq *CQ) noteCap() { cq.entries.Store(atomic.LoadInt32(&cq.raw.Cqe)) }

// Raw returns the C object, which is valid until Close.
func (cq *CQ) Raw() *libibverbs.Cq {
	if cq.channel != nil { // C's queue refers to it
		_ = cq.channel.Raw()
	}
	return cq.raw
}

// Resize changes how many completions the queue can hold to at least entries;
// see ibv_resize_cq(3). Completions in the queue stay there. If there are more
// than entries, or the device cannot resize, Resize fails and changes nothing.
func (cq *CQ) Resize(entries int) error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	defer cq.object.Done()
	what := fmt.Sprintf("%s to %d entries", cq.object.Name(), entries)
	if err := inRange("entries", entries, 1, math.MaxInt32); err != nil {
		return cerr.Argument("ibv_resize_cq", cq.object.Name(), err)
	}
	defer cq.noteCap()
	return cq.device.tooMuch(libibverbs.ResizeCq(cq.raw, int32(entries)), what, cqSizes(entries))
}

// Moderate makes the device delay an event until the given number of
// completions has arrived, or until the period has passed since the first one;
// see ibv_modify_cq(3). The period is in whole microseconds and at most 65 ms.
func (cq *CQ) Moderate(completions int, period time.Duration) error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	defer cq.object.Done()
	us := period.Microseconds()
	if completions < 0 || completions > math.MaxUint16 || us < 0 || us > math.MaxUint16 {
		return cerr.Refuse("ibv_modify_cq", cq.object.Name(), "completions is %d and period is %v, not from 0 to %d and from 0 to %v",
			completions, period, math.MaxUint16, math.MaxUint16*time.Microsecond)
	}
	attr := libibverbs.ModifyCqAttr{
		AttrMask: libibverbs.IBV_CQ_ATTR_MODERATE,
		Moderate: libibverbs.ModerateCq{CqCount: uint16(completions), CqPeriod: uint16(us)},
	}
	return wrap(cq.object.Name(), libibverbs.ModifyCq(cq.raw, &attr))
}

// Poll takes up to len(wcs) completions and returns how many it took. It does
// not wait. The status of a failed work request is in its WC; Poll itself does
// not fail for it. See ibv_poll_cq(3).
func (cq *CQ) Poll(wcs []WC) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	if len(wcs) == 0 {
		cq.object.Done()
		return 0, nil
	}
	var p datapath.Polled
	datapath.Poll(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), &p)
	cq.object.Done() // not deferred, as in PostSend
	return cq.polled(len(wcs), &p)
}

// Spin polls in one call of C until a completion arrives or the budget (at most
// MaxSpin) expires. It returns sooner than Wait, but it burns a CPU, and the
// runtime cannot preempt it.
func (cq *CQ) Spin(wcs []WC, budget time.Duration) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	var p datapath.Polled
	datapath.Spin(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), bounded(budget), &p)
	return cq.spun(len(wcs), &p)
}

// Sleep blocks in C until a completion arrives or the budget (at most MaxSpin)
// expires. It returns sooner than Wait and, unlike Spin, burns no CPU, but it
// occupies an OS thread. Give each goroutine that sleeps a queue and a
// completion channel of its own: an event of another queue on the channel ends
// Sleep early, and if another goroutine takes this queue's event, Sleep notices
// only when the budget expires. See ibv_get_cq_event(3) and poll(2).
func (cq *CQ) Sleep(wcs []WC, budget time.Duration) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	if cq.channel == nil {
		return 0, noChannel("CQ.Sleep", cq)
	}
	if err := cq.channel.open(); err != nil {
		return 0, err
	}
	var p datapath.Polled
	datapath.Sleep(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), cq.solicited, bounded(budget), &p)
	return cq.slept(len(wcs), &p)
}

// Wait blocks until a completion arrives and takes up to len(wcs) of them. It
// occupies no OS thread, except for a short time at first: it may busy-wait or
// sleep in C; see CQConfig.Spin. Wait needs a queue with a channel.
//
// When ctx ends, the error matches ctx.Err(), unless there are completions.
// When the queue is closed, the error matches os.ErrClosed. After Wake, Wait
// returns 0 without an error.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	attends := false
	if cq != nil && cq.channel != nil && len(wcs) > 0 && ctx != nil {
		if cq.policy.wantsPoll() {
			if n, err := cq.Poll(wcs); n > 0 || err != nil {
				return n, err
			}
		}
		talks := cq.policy.talks(&cq.policy.spins)
		mayAttend := talks && cq.wakes && !cq.aside.Load()
		attends = mayAttend && datapath.MayAttend()
		if mayAttend && !attends && cq.policy.spins.isGood() {
			datapath.Supersede()
		}
		if !attends && cq.policy.beginSpin(&cq.policy.spins, talks) {
			n, err := cq.Spin(wcs, cq.policy.spinLimit)
			cq.policy.endSpin(n > 0)
			if n > 0 || err != nil {
				return n, err
			}
		}
		if n, err := cq.nap(ctx, wcs); n > 0 || err != nil {
			return n, err
		}
	}
	return cq.waitParked(ctx, wcs, attends)
}

// nap sleeps in C for up to napLimit if a completion is likely to come in that
// time. Otherwise, it returns 0 at once.
func (cq *CQ) nap(ctx context.Context, wcs []WC) (int, error) {
	if !cq.policy.wantsNap() || !cq.channel.isOnly() {
		return 0, nil
	}
	select {
	case cq.turn <- struct{}{}:
		defer func() { <-cq.turn }()
	default:
		return 0, nil
	}
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if cq.woken.Load() || ctx.Err() != nil || !cq.policy.beginNap() {
		return 0, nil
	}
	var p datapath.Polled
	began := time.Now()
	datapath.Sleep(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), cq.solicited, napLimit, &p)
	if p.Other != nil { // the event is of a queue that was added to the channel meanwhile
		if other := cq.channel.of((*libibverbs.Cq)(p.Other)); other != nil {
			cq.channel.wake(other)
		}
	}
	n, err := cq.spun(len(wcs), &p)
	if cq.policy.endNap(n > 0, time.Since(began)) {
		cq.channel.unwatch()
	}
	return n, err
}

// Wake makes one Wait return without a completion: a Wait in progress, or else
// the next that finds no completion. A goroutine that also waits for something
// else, such as a deadline or another goroutine's request, can be woken in this
// way and needs no context for it.
func (cq *CQ) Wake() {
	if cq == nil || cq.channel == nil || cq.object.Use() != nil {
		return
	}
	defer cq.object.Done()
	cq.woken.Store(true)
	cq.channel.wake(cq)
}

// waitParked is the part of Wait that parks the goroutine.
func (cq *CQ) waitParked(ctx context.Context, wcs []WC, attends bool) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	if ctx == nil {
		return 0, cerr.Nil("CQ.Wait", "ctx")
	}
	if cq.channel == nil {
		return 0, noChannel("CQ.Wait", cq)
	}
	select {
	case cq.turn <- struct{}{}: // tried even if ctx is done, because completions take precedence
	default:
		select {
		case cq.turn <- struct{}{}:
		case <-ctx.Done():
			return 0, netpoll.ContextError(ctx)
		}
	}
	defer func() { <-cq.turn }()
	began := time.Now()
	for {
		n, err := cq.pollOrArm(wcs, cq.wakes)
		if n > 0 {
			cq.policy.endPark(time.Since(began))
		}
		if n > 0 || err != nil || cq.woken.Swap(false) {
			return n, err
		}
		if cq.beforePark != nil {
			cq.beforePark()
		}
		err = cq.park(ctx, attends)
		if cq.afterPark != nil {
			cq.afterPark()
		}
		if err != nil {
			return 0, err
		}
	}
}

// park waits until the queue, which was armed, is to be polled again. If
// attends is set, it does the work of a device in this process meanwhile.
func (cq *CQ) park(ctx context.Context, attends bool) error {
	if !cq.wakes {
		fd, err := cq.channel.waiter()
		if err != nil {
			return err
		}
		cq.policy.beginPark()
		return fd.Wait(ctx, cq.ready, cq.try)
	}
	if attends && cq.attend(ctx) {
		if !cq.takeReady() && ctx.Err() != nil {
			cq.dropGuard()
			return netpoll.ContextError(ctx)
		}
		return nil
	}
	datapath.Park()
	cq.parks.Store(true)
	defer cq.parks.Store(false)
	return cq.waitReady(ctx)
}

// attend waits until the queue is to be polled again, or until ctx ends, and
// does the device's work meanwhile. It returns false if the caller has to park:
// if the worker has to do the work, or if ctx is another one than at the last
// call, since watching a context takes longer than the rest.
func (cq *CQ) attend(ctx context.Context) bool {
	if cq.over == nil {
		cq.over = func() bool { return len(cq.ready) > 0 || cq.waitCtx.Err() != nil }
	}
	if done := ctx.Done(); done != nil && done != cq.guarded {
		again := done == cq.last
		if cq.last = done; !again {
			return false
		}
		cq.dropGuard()
		cq.guarded, cq.unguard = done, context.AfterFunc(ctx, datapath.Interrupt)
	}
	cq.waitCtx = ctx
	cq.attends.Store(true)
	defer cq.attends.Store(false)
	return datapath.Attend(cq.over, cq.policy.attendLimit)
}

// dropGuard makes attend forget the context of the last call. The caller has
// the turn.
func (cq *CQ) dropGuard() {
	if cq.unguard != nil {
		cq.unguard()
	}
	cq.guarded, cq.unguard, cq.last = nil, nil, nil
}

// takeReady receives from ready without waiting, and reports whether it did.
func (cq *CQ) takeReady() bool {
	select {
	case <-cq.ready:
		return true
	default:
		return false
	}
}

// waitReady waits until the queue is to be polled again, or until ctx ends.
func (cq *CQ) waitReady(ctx context.Context) error {
	if ctx.Done() == nil { // a select takes longer
		<-cq.ready
		return nil
	}
	select {
	case <-cq.ready:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-cq.ready: // a completion takes precedence
		return nil
	default:
		return netpoll.ContextError(ctx)
	}
}

// pollOrArm requests an event and then polls, in this order, so that it misses
// no completion that arrives in between. If wakes is true, it requests that the
// device sends to cq.ready, in place of the event.
func (cq *CQ) pollOrArm(wcs []WC, wakes bool) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	var p datapath.Polled
	datapath.PollOrArm(cq.queue, count(wcs), unsafe.Pointer(&wcs[0]), cq.solicited, wakes, &p)
	return cq.polled(len(wcs), &p)
}

// WaitOne waits for one completion and takes it; see ibv_poll_cq(3). To take
// many, use Wait, which costs less for each. If the work request failed, the
// error is its *WCError, and the WC identifies the request. Otherwise, WaitOne
// returns the same errors as Wait.
func (cq *CQ) WaitOne(ctx context.Context) (WC, error) {
	var wcs [1]WC
	if _, err := cq.Wait(ctx, wcs[:]); err != nil {
		return WC{}, err
	}
	return wcs[0], wcs[0].Err()
}

// Completions returns an iterator over the results of WaitOne. It continues
// after work requests that failed, and ends after any other error: the error of
// ctx, os.ErrClosed, or a failure. It takes a completion only to yield it, so
// the loop may end at any time without losing one.
//
//	for wc, err := range cq.Completions(ctx) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(wc.ID(), wc.ByteLen())
//	}
func (cq *CQ) Completions(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		for {
			wc, err := cq.WaitOne(ctx)
			var failed *WCError
			if !yield(wc, err) || err != nil && !errors.As(err, &failed) {
				return
			}
		}
	}
}

// slept decodes the result of datapath.Sleep, like spun. Sleep may have read
// events that other goroutines wait for, and slept wakes these goroutines. The
// events may be of another queue, or of this one, which may hold more
// completions than wcs had room for.
func (cq *CQ) slept(limit int, p *datapath.Polled) (int, error) {
	if p.Events > 0 {
		cq.channel.wake(cq)
	}
	if p.Other != nil {
		if other := cq.channel.of((*libibverbs.Cq)(p.Other)); other != nil {
			cq.channel.wake(other)
		}
	}
	return cq.spun(limit, p)
}

// scheduleEvery is the time after which a spinning goroutine calls
// runtime.Gosched. The runtime's monitor checks every 10 ms.
const scheduleEvery = 8 * time.Millisecond

// spun decodes the result of datapath.Spin, like polled. It calls
// runtime.Gosched if goroutines have spun or slept for scheduleEvery without
// such a call. Without it, the runtime's monitor would take the goroutine's
// processor away after 10 ms and interrupt its thread, and would wake every 20
// us for some time afterwards.
func (cq *CQ) spun(limit int, p *datapath.Polled) (int, error) {
	if p.Now-cq.scheduled.Load() >= int64(scheduleEvery) {
		cq.scheduled.Store(p.Now)
		runtime.Gosched()
	}
	return cq.polled(limit, p)
}

// polled returns the number of completions in C's result, at most limit, or an
// error.
func (cq *CQ) polled(limit int, p *datapath.Polled) (int, error) {
	if p.Value > 0 && p.Value <= int64(limit) {
		return int(p.Value), nil
	}
	return 0, cq.notPolled(limit, p)
}

func (cq *CQ) notPolled(limit int, p *datapath.Polled) error {
	var err error
	switch {
	case p.Step == datapath.Arming && p.Value != 0:
		err = cerr.Code("ibv_req_notify_cq", p.Value, p.Errno)
	case p.Step == datapath.Reading && p.Value != 0:
		err = cerr.Code("ibv_get_cq_event", p.Value, p.Errno)
	case p.Value != 0:
		err = cerr.Poll(cq.queue.Op(), p.Value, limit, p.Errno)
	case cq.lost.Load():
		return fmt.Errorf("%s: %w", cq.object.Name(), ErrCQOverrun)
	}
	return wrap(cq.object.Name(), err)
}

func noRoom(cq *CQ) error {
	return cerr.Refuse(cq.queue.Op(), cq.object.Name(), "no room for completions: wcs is empty")
}

// count returns how many completions to ask C for.
func count(wcs []WC) int { return min(len(wcs), math.MaxInt32) }

func bounded(budget time.Duration) time.Duration { return min(budget, MaxSpin) }

// overran records that the device has reported an overrun of the queue.
func (cq *CQ) overran() {
	cq.lost.Store(true)
	if cq.channel != nil {
		cq.channel.wake(cq)
	}
}

func (cq *CQ) signal() {
	select {
	case cq.ready <- struct{}{}:
	default:
	}
	if cq.attends.Load() {
		datapath.Interrupt()
	}
}

// rouse is signal for the device. It reports whether a goroutine is parked: the
// queue may have been armed by a wait that then found a completion.
func (cq *CQ) rouse() (parked bool) {
	if cq.muted.Load() {
		return false
	}
	cq.signal()
	return cq.parks.Load()
}

// Close destroys the queue; see ibv_destroy_cq(3). Waiting calls fail with an
// error matching os.ErrClosed. While queue pairs use the queue, Close does
// nothing and returns a *BusyError.
func (cq *CQ) Close() error {
	return cq.self().Close(cq.interrupt, func() error {
		if cq.channel != nil {
			// This precedes the destruction in C, because the next
			// queue may have the same address.
			cq.channel.remove(cq)
		}
		handle := cq.raw.Handle
		unregister(unsafe.Pointer(cq.raw))
		if err := cq.device.unlessRemoved(libibverbs.DestroyCq(cq.raw)); err != nil {
			register(unsafe.Pointer(cq.raw), cq)
			if cq.channel != nil {
				cq.channel.add(cq)
			}
			return wrap(cq.object.Name(), err)
		}
		cq.device.unwatchEvents()
		cq.device.forgetEvents(cq, EventClassCQ, handle)
		return nil
	})
}

// interrupt ends the wait of the goroutine that holds the turn. Goroutines that
// wait for the turn find the queue closing when they get it.
func (cq *CQ) interrupt() {
	if cq.channel == nil {
		return
	}
	cq.channel.wake(cq)
	cq.turn <- struct{}{}
	cq.dropGuard()
	<-cq.turn
}
