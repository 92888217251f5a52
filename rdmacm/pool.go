package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/owned"
)

// A Pool is what many connections share: a protection domain, a completion
// queue with its channel, and a shared receive queue with memory for messages.
// Connections use it if Config.Pool says so, dialed and accepted ones alike, and
// each then takes little more than its queue pair. Its methods may be called
// concurrently.
//
// A message arrives in memory of the pool, and is copied to the segments of the
// connection's next receive. Until there is one, the message waits here and not
// at the peer: up to PoolConfig.MaxUnread messages for each connection, after
// which it ends, so that one that does not receive holds up no other. Sends,
// writes, reads and atomics work as without a pool, and copy nothing.
//
// If all receives of the pool are taken, messages for all its connections wait
// at their peers, as Config.PeerRNRRetryCount says, until some goroutine waits
// for anything on one of them.
type Pool struct {
	name      string
	device    *ibverbs.Device
	maxUnread int

	pd        *ibverbs.PD
	channel   *ibverbs.CompChannel
	cq        *ibverbs.CQ
	srq       *ibverbs.SRQ
	collector *collector
	receives  sharedReceives
	qps       qpTable
	closer    owned.Closer

	mu      sync.Mutex // guards the fields below
	conns   map[*operations]struct{}
	entries int    // of the completion queue, that connections may take yet
	tags    uint64 // given to connections so far
	closed  bool
}

// A PoolConfig configures a Pool. The zero value and a nil *PoolConfig are
// usable.
type PoolConfig struct {
	// Entries is how many send requests may be in flight on all connections
	// together; 0 means 4096. Each connection takes Config.SendQueue + 1 of them
	// while it is open, so that no one takes the place of others. Dial and Accept
	// fail with an error matching syscall.ENOBUFS if there are not enough.
	Entries int
	// Receives is how many messages can arrive before the program looks; 0 means
	// 1024.
	Receives int
	// MessageSize is the maximum number of bytes in a message; 0 means 4096. A
	// longer one ends its connection at both ends. The memory of the pool is
	// Receives times MessageSize, and an eighth more.
	MessageSize int
	// MaxUnread is how many messages may wait on one connection until it
	// receives them; 0 means 1024. With one more, the connection ends with an
	// error matching syscall.ENOBUFS: a peer that sends faster than this program
	// receives must wait for answers. While fewer than half of Receives are
	// free, messages that wait are copied to memory of Go's heap.
	MaxUnread int
	// Spin has the same meaning as in Config. Config.Spin of the connections is
	// not used.
	Spin time.Duration
}

func (c *PoolConfig) withDefaults() PoolConfig {
	var out PoolConfig
	if c != nil {
		out = *c
	}
	out.Entries = cmp.Or(out.Entries, 4096)
	out.Receives = cmp.Or(out.Receives, 1024)
	out.MessageSize = cmp.Or(out.MessageSize, 4096)
	out.MaxUnread = cmp.Or(out.MaxUnread, 1024)
	return out
}

// maxPoolMemory bounds what a pool's memory can be.
const maxPoolMemory = 1 << 40

func (c *PoolConfig) check(device string) error {
	for _, f := range []struct {
		name string
		n    int
	}{{"Entries", c.Entries}, {"Receives", c.Receives}, {"MessageSize", c.MessageSize}, {"MaxUnread", c.MaxUnread}} {
		if f.n < 1 || f.n > math.MaxInt32/2 {
			return cerr.Refuse("NewPool", device, "PoolConfig.%s is %d, not from 1 to %d", f.name, f.n, math.MaxInt32/2)
		}
	}
	if int64(c.Receives)*int64(c.MessageSize) > maxPoolMemory {
		return cerr.Refuse("NewPool", device, "PoolConfig.Receives times PoolConfig.MessageSize is %d bytes, more than %d",
			int64(c.Receives)*int64(c.MessageSize), int64(maxPoolMemory))
	}
	return nil
}

// NewPool makes a pool on a device, which Devices, Listener.Device or
// ID.Device has returned. Connections can only use it on that device. The config
// may be nil. See ibv_create_srq(3) and ibv_create_cq(3).
func NewPool(device *ibverbs.Device, config *PoolConfig) (*Pool, error) {
	if device == nil {
		return nil, cerr.Nil("NewPool", "device")
	}
	complete := config.withDefaults()
	if err := complete.check(device.Name()); err != nil {
		return nil, err
	}
	p := &Pool{
		name: "pool on " + device.Name(), device: device, maxUnread: complete.MaxUnread,
		conns: map[*operations]struct{}{}, entries: complete.Entries,
	}
	if err := p.create(complete); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Pool) create(config PoolConfig) (err error) {
	if p.pd, err = p.device.AllocPD(); err != nil {
		return err
	}
	attr, err := p.device.QueryDevice()
	if err != nil {
		return err
	}
	if p.channel, err = p.device.CreateCompChannel(); err != nil {
		return err
	}
	slots := config.Receives + sparesFor(config.Receives)
	p.cq, err = p.device.CreateCQ(ibverbs.CQConfig{Entries: config.Entries + slots, Channel: p.channel, Spin: config.Spin})
	if err != nil {
		return err
	}
	p.collector = newCollector(p.cq, p.handOut)
	if p.srq, err = p.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: slots, MaxSGE: 1}); err != nil {
		return err
	}
	mr, err := p.pd.Alloc(slots*config.MessageSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	p.receives.mr = mr
	return p.receives.init(p.srq, mr, config.Receives, config.MessageSize, attr.VendorID == vendorSoftRoCE)
}

// vendorSoftRoCE is what the kernel's rxe driver reports.
const vendorSoftRoCE = 0xffffff

// PD returns the protection domain of the connections, for memory that they
// share. Close that memory before the pool.
func (p *Pool) PD() *ibverbs.PD {
	if p == nil {
		return nil
	}
	return p.pd
}

// check returns an error if p was not made by NewPool.
func (p *Pool) check() error {
	if p == nil || p.device == nil {
		return notMade("pool")
	}
	return nil
}

// Close releases the pool's resources. While connections use the pool, Close does
// nothing and returns an *ibverbs.BusyError. While there is memory on its
// protection domain, Close returns an *ibverbs.BusyError too, although no
// connection can use the pool any more, and can be called again.
func (p *Pool) Close() error {
	if err := p.check(); err != nil {
		return err
	}
	if err := p.shut(); err != nil {
		return err
	}
	return p.closer.Do(func() error {
		var steps []func() error
		if p.srq != nil {
			steps = append(steps, p.srq.Close)
		}
		if p.cq != nil {
			steps = append(steps, p.cq.Close)
		}
		if p.channel != nil {
			steps = append(steps, p.channel.Close)
		}
		if p.receives.mr != nil {
			steps = append(steps, p.receives.mr.Close)
		}
		if p.pd != nil {
			steps = append(steps, p.pd.Close)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// shut lets no more connections join, unless there are some already.
func (p *Pool) shut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 {
		var names []string
		for o := range p.conns {
			names = append(names, o.queues.id.object.Name())
		}
		return cerr.Busy(p.name, names)
	}
	p.closed = true
	return nil
}

// A request ID of a connection that shares a completion queue has a tag, so that a completion that comes when the
// connection is gone is not taken for that of a later queue pair with the same number.
const (
	placeBits = 21
	tagBits   = 40
)

// tagged returns the base of the request IDs with the nth tag.
func tagged(n uint64) uint64 { return (n%(1<<tagBits-1) + 1) << placeBits }

// tags counts the connections that use completion queues of the program.
var tags atomic.Uint64

// forcePool, which only tests set, returns a pool for a connection that has none, and a function that says that the
// connection has left it.
var forcePool func(*ID) (pool *Pool, left func(), err error)

// join reserves places in the completion queue for a connection that may have
// so many send requests in flight.
func (p *Pool) join(o *operations, sends int) error {
	serial := p.receives.join() // before p.mu, which live locks while the receives are locked
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("%s: %w", p.name, os.ErrClosed)
	case sends > p.entries:
		return cerr.Argument(opCreateQP, o.queues.id.name(), cerr.InvalidAs(syscall.ENOBUFS,
			"Config.SendQueue needs %d entries, and the %s has %d left for its %d connections: raise PoolConfig.Entries",
			sends, p.name, p.entries, len(p.conns)))
	}
	p.entries -= sends
	p.conns[o] = struct{}{}
	p.tags++
	o.base = tagged(p.tags)
	o.serial = serial
	return nil
}

// leave undoes join. lost is how many completions of the connection may still come.
func (p *Pool) leave(o *operations, sends, lost int) {
	p.qps.remove(o)
	p.mu.Lock()
	if _, joined := p.conns[o]; !joined {
		p.mu.Unlock()
		return
	}
	delete(p.conns, o)
	p.entries += sends - lost
	p.mu.Unlock()
	p.receives.left(p.live)
}

// live calls f for each connection.
func (p *Pool) live(f func(serial, received uint64)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for o := range p.conns {
		f(o.serial, o.received.Load())
	}
}

// handOut hands out completions to the connections that they are for. The
// caller leads.
func (p *Pool) handOut(wcs []ibverbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		o := p.qps.find(wc.QPNum())
		if wc.ID()&(userRequest|lastRequest|sharedReceive) == sharedReceive {
			p.arrived(o, wc)
			continue
		}
		if o == nil || wc.ID() < userRequest && !o.isOwn(wc.ID()) {
			continue // of a queue pair that is gone
		}
		o.note(wc)
		o.mu.Lock()
		o.complete(wc)
		o.mu.Unlock()
	}
	p.receives.refill()
	if p.receives.loses && p.receives.unsettled() {
		p.receives.settle(p.live)
	}
}

// arrived takes the completion of a shared receive, on a connection or, if that is gone, on nil.
func (p *Pool) arrived(o *operations, wc *ibverbs.WC) {
	slot := uint32(wc.ID())
	number := p.receives.take(slot)
	switch {
	case number == 0:
	case o == nil:
		p.receives.give(slot)
	case wc.Status() != ibverbs.WCSuccess:
		p.receives.give(slot)
		o.received.Store(number)
		o.note(wc)
	default:
		o.received.Store(number)
		o.arrive(wc, slot)
	}
}
