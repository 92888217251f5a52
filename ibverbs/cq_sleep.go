package ibverbs

import (
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
)

// Sleep is Wait in one call of C, which ends when the budget is used up, of which
// at most MaxSpin counts: it sleeps there with its thread, which another goroutine
// cannot have until the runtime's monitor notices. So it answers sooner than Wait,
// which pays for the runtime's scheduler, and uses no processor, as Spin does. It
// is for a few goroutines, each with a queue and a channel of
// its own: an event of another queue of the channel ends it too, and if somebody
// else takes this queue's event, it learns of that when the budget is used up.
// See ibv_get_cq_event(3) and poll(2).
func (cq *CQ) Sleep(wcs []WC, budget time.Duration) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if err := cq.canSleep(len(wcs)); err != nil {
		return 0, err
	}
	var p datapath.Polled
	datapath.Sleep(cq.plain(), count(wcs), unsafe.Pointer(&wcs[0]), cq.solicited, bounded(budget), &p)
	return cq.slept(opPoll, len(wcs), &p)
}

// SleepEx is Sleep for a queue that was made with CQConfig.Fields.
func (cq *CQ) SleepEx(wcs []WCEx, budget time.Duration) (int, error) {
	if err := cq.useExtended(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if err := cq.canSleep(len(wcs)); err != nil {
		return 0, err
	}
	var p datapath.Polled
	datapath.Sleep(cq.extended, count(wcs), unsafe.Pointer(&wcs[0]), cq.solicited, bounded(budget), &p)
	return cq.slept(opPollEx, len(wcs), &p)
}

func (cq *CQ) canSleep(room int) error {
	if room == 0 {
		return noRoom(cq)
	}
	if cq.channel == nil {
		return noChannel("CQ.Sleep", cq)
	}
	return nil
}

// slept is spun after sleeping, which may have taken events that others wait for:
// those of another queue, or of this one, which may have more completions than
// there was room for.
func (cq *CQ) slept(op string, limit int, p *datapath.Polled) (int, error) {
	if p.Events > 0 {
		cq.channel.wake(cq)
	}
	if p.Other != nil {
		if other := cq.channel.of((*libibverbs.Cq)(p.Other)); other != nil {
			cq.channel.wake(other)
		}
	}
	return cq.spun(op, limit, p)
}
