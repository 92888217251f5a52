package ibverbs

import (
	"context"
	"unsafe"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// noChannel refuses to wait for a queue that was made to be polled.
func noChannel(op string, cq *CQ) error {
	return cerr.Refuse(op, cq.object.Name(), "the queue was made without CQConfig.Channel")
}

// Wait is Poll that waits until there are completions. It returns an error that
// is ctx.Err() when ctx ends, and one that is os.ErrClosed on Close, which may
// be one that C then refuses. Completions that are there win over a ctx that is
// done. It holds no thread.
func (cq *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	return cq.wait(ctx, opPoll, cq.plain(), count(wcs), unsafe.Pointer(&wcs[0]))
}

// WaitEx is Wait for a queue that was made with CQConfig.Fields.
func (cq *CQ) WaitEx(ctx context.Context, wcs []WCEx) (int, error) {
	if err := cq.useExtended(); err != nil {
		return 0, err
	}
	cq.object.Done()
	if len(wcs) == 0 {
		return 0, noRoom(cq)
	}
	return cq.wait(ctx, opPollEx, cq.extended, count(wcs), unsafe.Pointer(&wcs[0]))
}

func (cq *CQ) wait(ctx context.Context, op string, q datapath.Queue, limit int, out unsafe.Pointer) (int, error) {
	if ctx == nil {
		return 0, cerr.Nil("CQ.Wait", "ctx")
	}
	if cq.channel == nil {
		return 0, noChannel("CQ.Wait", cq)
	}
	select {
	case cq.turn <- struct{}{}: // even with a ctx that is done: completions win
	default:
		select {
		case cq.turn <- struct{}{}:
		case <-ctx.Done():
			return 0, netpoll.ContextError(ctx)
		}
	}
	defer func() { <-cq.turn }()
	for {
		n, err := cq.pollOrArm(op, q, limit, out)
		if n > 0 || err != nil {
			return n, err
		}
		fd, err := cq.channel.waiter()
		if err != nil {
			return 0, err
		}
		if err := fd.Wait(ctx, cq.ready, cq.try); err != nil {
			return 0, err
		}
	}
}

// pollOrArm asks for an event and then looks, in this order, so that a
// completion which arrives in between is not missed.
func (cq *CQ) pollOrArm(op string, q datapath.Queue, limit int, out unsafe.Pointer) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	var p datapath.Polled
	datapath.PollOrArm(q, limit, out, cq.solicited, &p)
	return cq.polled(op, limit, &p)
}
