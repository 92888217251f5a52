package ibverbs

import (
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/datapath"
)

// Sleep is Wait in a call of C that ends when the budget is used up, of which at
// most MaxSpin counts: it sleeps there with its thread, which another goroutine
// cannot have until the runtime's monitor notices. So it answers nearly as soon
// as C does, where Wait pays for the runtime's scheduler, and uses no processor,
// as Spin does. It is for a few goroutines, each with a queue and a channel of
// its own: if another one takes the queue's event off the channel, Sleep learns
// of it when the budget is used up. See ibv_get_cq_event(3) and poll(2).
func (cq *CQ) Sleep(wcs []WC, budget time.Duration) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	return cq.sleep(opPoll, cq.plain(), count(wcs), unsafe.Pointer(&wcs[0]), bounded(budget))
}

// SleepEx is Sleep for a queue that was made with CQConfig.Fields.
func (cq *CQ) SleepEx(wcs []WCEx, budget time.Duration) (int, error) {
	if err := cq.useExtended(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	return cq.sleep(opPollEx, cq.extended, count(wcs), unsafe.Pointer(&wcs[0]), bounded(budget))
}

func (cq *CQ) sleep(op string, q datapath.Queue, limit int, out unsafe.Pointer, budget time.Duration) (int, error) {
	if cq.channel == nil {
		return 0, fmt.Errorf("sleep for %s: %w", cq.object.Name(), errNoChannel)
	}
	begin := time.Now()
	for left := budget; ; left = budget - time.Since(begin) {
		var p datapath.Polled
		datapath.Sleep(q, limit, out, cq.solicited, int(cq.channel.raw.Fd), max(left, 0), &p)
		if n, err := cq.polled(op, limit, &p); n != 0 || err != nil {
			return n, err
		}
		if p.Events == 0 || left <= 0 {
			return 0, nil
		}
		// The event comes off the channel, or the next sleep would be none.
		if err := cq.channel.fd.Take(cq.takeOne); err != nil {
			return 0, err
		}
	}
}

// takeOne takes an event off the channel. It is for this queue or wakes whoever
// waits for the other one.
func (cq *CQ) takeOne() (bool, error) {
	got, err := cq.channel.readOne()
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return false, nil
	case err != nil:
		return false, err
	case got != nil:
		got.signal()
	}
	return true, nil
}
