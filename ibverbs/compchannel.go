package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// CompChannel delivers the events of the completion queues made with it.
// Waiting for them costs no thread. One channel may serve many queues, but
// they then share the cost of each other's events. Its methods may be called
// concurrently.
type CompChannel struct {
	object object.Object
	device *Device
	raw    *libibverbs.CompChannel

	mu  sync.Mutex
	cqs map[*libibverbs.Cq]*CQ

	// nil until somebody waits: once the netpoller has the descriptor, each event
	// wakes a thread of the runtime, also while somebody sleeps.
	fd        *netpoll.FD
	beginning sync.Mutex // guards fd
}

// CreateCompChannel makes a completion channel; see
// ibv_create_comp_channel(3).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.CreateCompChannel(d.raw)
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	name := fmt.Sprintf("completion channel %d of %s", raw.Fd, d.Name())
	if err := netpoll.SetNonblock(int(raw.Fd)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), libibverbs.DestroyCompChannel(raw))
	}
	ch := &CompChannel{device: d, raw: raw, cqs: map[*libibverbs.Cq]*CQ{}}
	ch.object.Init(name, &d.object)
	return ch, nil
}

// Raw returns the C object, which is valid until Close. Its descriptor does not
// block.
func (ch *CompChannel) Raw() *libibverbs.CompChannel { return ch.raw }

// Close destroys the channel; see ibv_destroy_comp_channel(3). While it serves
// completion queues, Close does nothing and returns a BusyError.
func (ch *CompChannel) Close() error {
	return ch.self().Close(nil, func() error {
		// Nobody waits on fd: every waiter has a queue, and there is none. If C
		// refuses, because of a queue that it alone knows, fd is still needed.
		if err := ch.destroy(); err != nil {
			return wrap(ch.object.Name(), err)
		}
		if ch.fd != nil {
			_ = ch.fd.Close() // a duplicate, and there is no second try
		}
		return nil
	})
}

func (ch *CompChannel) destroy() error {
	err := libibverbs.DestroyCompChannel(ch.raw)
	if errors.Is(err, syscall.EBUSY) && ch.device.isRemoved() {
		// C counts the queues that it keeps for ever, and keeps the descriptor.
		return os.NewFile(uintptr(ch.raw.Fd), ch.object.Name()).Close()
	}
	return err
}

func (ch *CompChannel) add(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.cqs[cq.raw] = cq
}

func (ch *CompChannel) remove(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.cqs, cq.raw)
}

// waiter returns what to wait on, which there is from the first wait on.
func (ch *CompChannel) waiter() (fd *netpoll.FD, err error) {
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if ch.fd == nil {
		ch.fd, err = netpoll.New(int(ch.raw.Fd), ch.object.Name())
	}
	return ch.fd, err
}

// wake makes whoever waits for a queue look at it again.
func (ch *CompChannel) wake(cq *CQ) {
	cq.signal()
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if ch.fd != nil { // or the first to wait begins after this, and finds his queue signaled
		ch.fd.Kick()
	}
}

// of returns the queue that is open with a channel's event, nil if it has been
// closed.
func (ch *CompChannel) of(raw *libibverbs.Cq) *CQ {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.cqs[raw]
}

// read takes events off the channel until one is for the queue wanted, or
// there are no more. It runs in one goroutine at a time, and not while the
// channel is destroyed, because a waiting queue keeps it open.
func (ch *CompChannel) read(wanted *CQ) (done bool, err error) {
	for {
		raw, _, err := libibverbs.GetCqEvent(ch.raw)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return done, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return false, wrap(ch.object.Name(), err)
		}
		switch cq := ch.of(raw); {
		case cq == wanted:
			done = true
		case cq != nil:
			cq.signal()
		}
		// At once, so that destroying the queue never waits for it.
		if err := libibverbs.AckCqEvents(raw, 1); err != nil {
			return false, err
		}
	}
}
