package ibverbs

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
)

// ErrCQOverrun says that more requests completed than the queue could hold, so
// that completions are lost. Poll and Wait return it when those that are not lost
// have been taken and the device has told of the overrun, by an event that nobody
// has to ask for. The queue and its queue pairs have to be made again, with Entries
// for all requests that can be under way.
var ErrCQOverrun = errors.New("overrun: completions are lost, because the queue has too few entries")

// MaxSpin is how long a call that spins takes at most. Nothing else can happen
// to the objects that it works with, so that a Close waits for it.
const MaxSpin = 5 * time.Millisecond

const (
	opPoll   = "ibv_poll_cq"
	opPollEx = "ibv_start_poll"
)

// Poll takes up to len(wcs) completions and returns how many, without waiting;
// see ibv_poll_cq(3). A failed work request is not an error of Poll, but in
// its WC.
func (cq *CQ) Poll(wcs []WC) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	if len(wcs) == 0 {
		cq.object.Done()
		return 0, nil
	}
	var p datapath.Polled
	datapath.Poll(cq.plain(), count(wcs), unsafe.Pointer(&wcs[0]), &p)
	cq.object.Done() // not deferred: see PostSend
	return cq.polled(opPoll, len(wcs), &p)
}

// Spin is Poll that looks again and again, in one call of C, until there are
// completions or the budget is used up, of which at most MaxSpin counts. It
// answers sooner than Wait, and uses a processor for it. The runtime does not
// interrupt it.
func (cq *CQ) Spin(wcs []WC, budget time.Duration) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	var p datapath.Polled
	datapath.Spin(cq.plain(), count(wcs), unsafe.Pointer(&wcs[0]), bounded(budget), &p)
	return cq.spun(opPoll, len(wcs), &p)
}

// PollEx is Poll for a queue that was made with CQConfig.Fields; see
// ibv_create_cq_ex(3). All completions are read in one call of C.
func (cq *CQ) PollEx(wcs []WCEx) (int, error) {
	if err := cq.useExtended(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, nil
	}
	var p datapath.Polled
	datapath.Poll(cq.extended, count(wcs), unsafe.Pointer(&wcs[0]), &p)
	return cq.polled(opPollEx, len(wcs), &p)
}

// SpinEx is Spin for a queue that was made with CQConfig.Fields.
func (cq *CQ) SpinEx(wcs []WCEx, budget time.Duration) (int, error) {
	if err := cq.useExtended(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	var p datapath.Polled
	datapath.Spin(cq.extended, count(wcs), unsafe.Pointer(&wcs[0]), bounded(budget), &p)
	return cq.spun(opPollEx, len(wcs), &p)
}

func (cq *CQ) useExtended() error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	if cq.fields == 0 {
		cq.object.Done()
		return cerr.Argument(opPollEx, cq.object.Name(), cerr.InvalidAs(syscall.EOPNOTSUPP, "the queue was made without CQConfig.Fields"))
	}
	return nil
}

// plain returns the queue for polling without fields, which every queue has.
func (cq *CQ) plain() datapath.Queue { return datapath.NewQueue(cq.raw) }

// scheduleEvery is how often a goroutine that spins lets the runtime schedule. The
// runtime's monitor looks every 10 ms whether it has.
const scheduleEvery = 8 * time.Millisecond

// spun is polled after C has looked at the clock. It lets the runtime schedule if
// a goroutine that does nothing but such calls has not for some time: otherwise,
// after 10 ms, the runtime's monitor takes the goroutine's processor away and
// interrupts its thread, and wakes every 20 us for some time after that.
func (cq *CQ) spun(op string, limit int, p *datapath.Polled) (int, error) {
	if p.Now-cq.scheduled.Load() >= int64(scheduleEvery) {
		cq.scheduled.Store(p.Now)
		runtime.Gosched()
	}
	return cq.polled(op, limit, p)
}

// polled makes an error of what C said, for at most limit completions.
func (cq *CQ) polled(op string, limit int, p *datapath.Polled) (int, error) {
	if p.Value > 0 && p.Value <= int64(limit) {
		return int(p.Value), nil
	}
	return 0, cq.notPolled(op, limit, p)
}

func (cq *CQ) notPolled(op string, limit int, p *datapath.Polled) error {
	var err error
	switch {
	case p.Step == datapath.Arming && p.Value != 0:
		err = cerr.Code("ibv_req_notify_cq", p.Value, p.Errno)
	case p.Step == datapath.Reading && p.Value != 0:
		err = cerr.Code("ibv_get_cq_event", p.Value, p.Errno)
	case p.Value != 0:
		err = cerr.Poll(op, p.Value, limit, p.Errno)
	case cq.lost.Load():
		return fmt.Errorf("%s: %w", cq.object.Name(), ErrCQOverrun)
	}
	return wrap(cq.object.Name(), err)
}

func noRoom(cq *CQ) error {
	return cerr.Refuse(opPoll, cq.object.Name(), "no room for completions: wcs is empty")
}

// count returns how many completions C is asked for.
func count[T WC | WCEx](wcs []T) int { return min(len(wcs), math.MaxInt32) }

func bounded(budget time.Duration) time.Duration { return min(budget, MaxSpin) }
