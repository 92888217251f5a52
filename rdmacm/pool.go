// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"errors"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/owned"
	"github.com/verbena-go/verbena/internal/sealed"
)

// A Pool holds resources that many connections share: a protection domain, a
// completion queue with its channel, and a shared receive queue with memory for
// messages. A connection uses the pool if its Config.Queues is the Pool, and
// then needs little more than its own queue pair. The connections may be dialed
// or accepted, and may be on any device.
//
// The zero Pool is usable. Do not copy a Pool, and do not change its fields
// while it has connections. A Pool needs no Close: the first connection on a
// device creates the resources for that device, and the last one releases them.
//
// A message arrives in memory of the pool and is copied to the segments of the
// connection's next receive. While the connection has no receive, the message
// waits in that memory and not at the peer. A connection with more than
// MaxUnread waiting messages ends, so that a connection that does not receive
// cannot hold up the others. Sends, writes, reads and atomics work as without a
// pool, and copy nothing. Config.RecvQueue is the maximum number of receives
// that wait for a message, and Config.Segments the maximum number of their
// segments.
//
// If messages occupy all receives of the pool, further messages for any of its
// connections wait at their peers, as Config.PeerRNRRetryCount describes. They
// arrive once a goroutine waits for a transfer or a message on one of the
// connections.
type Pool struct {
	// Sends is the maximum number of send requests in flight on all
	// connections of a device together; 0 means 4096. Each open connection
	// reserves Config.SendQueue + 1 of them. If too few are left for a new
	// connection, Dial and Accept fail with an error matching
	// syscall.ENOBUFS.
	Sends int
	// Receives is the number of messages that can arrive on a device while
	// no goroutine waits for a transfer or a message on that device; 0
	// means 1024.
	Receives int
	// MessageSize is the maximum number of bytes in a message; 0 means 4096. A
	// longer message ends its connection at both ends. The pool uses Receives
	// times MessageSize bytes on each device, and an eighth more.
	MessageSize int
	// MaxUnread is the maximum number of messages that wait on one connection
	// for a receive; 0 means 1024. One more message ends the connection with an
	// error matching syscall.ENOBUFS: a peer that sends faster than this
	// program receives must wait for answers. While fewer than half of Receives
	// are free, waiting messages are copied to Go's heap.
	MaxUnread int
	// Spin is how long a call busy-waits for its completion before it parks
	// its goroutine; 0 means ibverbs.DefaultSpin. See Config.Spin. The
	// Config.Spin of the connections is ignored.
	Spin time.Duration
	// PD, if not nil, is the protection domain of the connections, for
	// memory that they share. With a PD, all connections must be on its
	// device. If PD is nil, the pool allocates a protection domain for each
	// device; close memory registered on that domain before the last
	// connection.
	PD *ibverbs.PD

	mu    sync.Mutex
	parts map[*ibverbs.Device]*part // shared resources of the devices that have connections
}

// part holds the resources that the connections of a pool share on one device.
type part struct {
	of   *Pool      // pool that the part belongs to
	pool *poolSizes // sizes of the pool
	// name in errors
	name   string
	device *ibverbs.Device

	pd        *ibverbs.PD
	foreignPD bool // whether the protection domain is Pool.PD
	channel   *ibverbs.CompChannel
	cq        *ibverbs.CQ
	srq       *ibverbs.SRQ
	collector *collector
	receives  sharedReceives
	qps       qpTable
	closer    owned.Closer

	mu      sync.Mutex // guards the fields below
	conns   map[*pooled]struct{}
	entries int    // places in the completion queue that are not reserved yet
	tags    uint64 // number of tags given to connections so far
}

// poolSizes are the sizes of a Pool, with defaults filled in.
type poolSizes struct {
	Sends, Receives, MessageSize, MaxUnread int
}

func (p *Pool) sizes() poolSizes {
	return poolSizes{cmp.Or(p.Sends, 4096), cmp.Or(p.Receives, 1024), cmp.Or(p.MessageSize, 4096), cmp.Or(p.MaxUnread, 1024)}
}

// maxPoolMemory is an upper limit for the memory of a pool.
const maxPoolMemory = 1 << 40

func (p *Pool) check(config *Config, id *ID) error {
	if p == nil {
		return cerr.Refuse(opCreateQP, id.name(), "Config.Queues is a nil *Pool")
	}
	s := p.sizes()
	for _, f := range []struct {
		name string
		n    int
	}{{"Sends", s.Sends}, {"Receives", s.Receives}, {"MessageSize", s.MessageSize}, {"MaxUnread", s.MaxUnread}} {
		if f.n < 1 || f.n > math.MaxInt32/2 {
			return cerr.Refuse(opCreateQP, id.name(), "Pool.%s is %d, not from 1 to %d", f.name, f.n, math.MaxInt32/2)
		}
	}
	if int64(s.Receives)*int64(s.MessageSize) > maxPoolMemory {
		return cerr.Refuse(opCreateQP, id.name(), "Pool.Receives times Pool.MessageSize is %d bytes, more than %d",
			int64(s.Receives)*int64(s.MessageSize), int64(maxPoolMemory))
	}
	if config.PD != nil && config.PD != p.PD {
		return cerr.Refuse(opCreateQP, id.name(), "Config.PD is not Pool.PD: for a connection with a Pool, set Pool.PD")
	}
	return config.checkTagged(id)
}

func (p *Pool) create(c *Conn) error {
	device, err := c.id.Device()
	if err != nil {
		return err
	}
	o := &pooled{ops: &c.ops, hangUp: c.hangUp, messages: messages{marked: make(chan struct{})}}
	if err := inTurn(func() error { return p.join(device, o, c.config.SendQueue+1) }); err != nil {
		return err
	}
	part := o.part
	c.pd, c.foreignPD, c.ops.intake, c.ops.collector = part.pd, true, o, part.collector
	err = c.createQueues(func(_ queueSizes, config *ibverbs.QPConfig) error {
		config.SendCQ, config.RecvCQ, config.SRQ = part.cq, part.cq, part.srq
		config.SendQueue++ // for the marker
		config.RecvQueue, config.RecvSegments = 0, 0
		return nil
	}, c.createQP)
	if err == nil {
		part.qps.add(o)
	}
	return err
}

// join lets a connection use the shared resources on a device. It creates these
// for the first connection. sends is the maximum number of the connection's
// send requests in flight.
func (p *Pool) join(device *ibverbs.Device, o *pooled, sends int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	shared := p.parts[device]
	if shared == nil {
		var err error
		if shared, err = p.newPart(device); err != nil {
			return err
		}
	}
	if err := shared.join(o, sends); err != nil {
		if p.parts[device] == nil {
			err = errors.Join(err, shared.close())
		}
		return err
	}
	if p.parts == nil {
		p.parts = map[*ibverbs.Device]*part{}
	}
	p.parts[device] = shared
	return nil
}

// leave undoes join. After an error, it can be called again.
func (o *pooled) leave() error {
	shared, p := o.part, o.part.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if shared.leave(o, o.ops.sending()) > 0 {
		return nil
	}
	if p.parts[shared.device] == shared { // no later connection may use these resources
		delete(p.parts, shared.device)
	}
	return shared.close()
}

func (p *Pool) newPart(device *ibverbs.Device) (*part, error) {
	if p.PD != nil && p.PD.Device() != device {
		return nil, cerr.Refuse(opCreateQP, device.Name(), "Pool.PD is not of the connection's device: allocate it on the device from rdmacm.Devices or Listener.Device")
	}
	sizes := p.sizes()
	s := &part{
		of: p, pool: &sizes, name: "pool on " + device.Name(), device: device,
		pd: p.PD, foreignPD: p.PD != nil, conns: map[*pooled]struct{}{}, entries: sizes.Sends,
	}
	if err := s.create(p.Spin); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *part) create(spin time.Duration) (err error) {
	if s.pd == nil {
		if s.pd, err = s.device.AllocPD(); err != nil {
			return err
		}
	}
	attr, err := s.device.QueryDevice()
	if err != nil {
		return err
	}
	if s.channel, err = s.device.CreateCompChannel(); err != nil {
		return err
	}
	slots := s.pool.Receives + sparesFor(s.pool.Receives)
	s.cq, err = s.device.CreateCQ(ibverbs.CQConfig{CompQueue: s.pool.Sends + slots, Channel: s.channel, Spin: spin})
	if err != nil {
		return err
	}
	sealed.Open(s.cq.Internals()).SetAside(true) // the goroutine that waits hands what comes to others
	s.collector = newCollector(s.cq, s.handOut)
	if s.srq, err = s.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: slots, RecvSegments: 1}); err != nil {
		return err
	}
	mr, err := s.pd.Alloc(slots*s.pool.MessageSize, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	s.receives.mr = mr
	return s.receives.init(s.srq, mr, s.pool.Receives, s.pool.MessageSize, attr.VendorID == vendorSoftRoCE)
}

// vendorSoftRoCE is the vendor ID that the kernel's Soft-RoCE driver (rxe)
// reports.
const vendorSoftRoCE = 0xffffff

// close closes all resources that were created. After an error, it can be
// called again.
func (s *part) close() error {
	return s.closer.Do(func() error {
		var steps []func() error
		if s.srq != nil {
			steps = append(steps, s.srq.Close)
		}
		if s.cq != nil {
			steps = append(steps, s.cq.Close)
		}
		if s.channel != nil {
			steps = append(steps, s.channel.Close)
		}
		if s.receives.mr != nil {
			steps = append(steps, s.receives.mr.Close)
		}
		if s.pd != nil && !s.foreignPD {
			steps = append(steps, s.pd.Close)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// The ID of a request of a connection that shares a completion queue contains a
// tag. The tag distinguishes a completion of an ended connection from one of a
// later queue pair with the same number.
const (
	placeBits = 21
	tagBits   = 40
)

// tagged returns the base of the request IDs with the nth tag.
func tagged(n uint64) uint64 { return (n%(1<<tagBits-1) + 1) << placeBits }

// join reserves places in the completion queue for a connection. sends is the
// maximum number of its send requests in flight.
func (s *part) join(o *pooled, sends int) error {
	serial := s.receives.join() // called before s.mu is locked: live locks s.mu while the receives are locked
	s.mu.Lock()
	defer s.mu.Unlock()
	if sends > s.entries {
		return cerr.Argument(opCreateQP, o.ops.queues.id.name(), cerr.InvalidAs(syscall.ENOBUFS,
			"Config.SendQueue + 1 is %d, but the %s, which has %d connections, has room for only %d more send requests: raise Pool.Sends",
			sends, s.name, len(s.conns), s.entries))
	}
	s.entries -= sends
	s.conns[o] = struct{}{}
	s.tags++
	o.ops.base = tagged(s.tags)
	o.serial, o.part, o.reserved = serial, s, sends
	return nil
}

// leave undoes join, and returns the number of remaining connections. lost is
// the number of completions of the connection that may still come.
func (s *part) leave(o *pooled, lost int) int {
	s.qps.remove(o)
	s.mu.Lock()
	_, joined := s.conns[o]
	if joined {
		delete(s.conns, o)
		s.entries += o.reserved - lost
	}
	left := len(s.conns)
	s.mu.Unlock()
	if joined && left > 0 {
		s.receives.left(s.live)
	}
	return left
}

// live calls f for each connection, with its serial number and the number of
// the last shared receive that it has completed.
func (s *part) live(f func(serial, received uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.conns {
		f(o.serial, o.received.Load())
	}
}

// handOut passes completions to their connections. The caller must be the
// poller.
func (s *part) handOut(wcs []ibverbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		o := s.qps.find(wc.QPNum())
		if wc.ID()&(userRequest|lastRequest|sharedReceive) == sharedReceive {
			s.arrived(o, wc)
			continue
		}
		if o == nil || wc.ID() < userRequest && !o.ops.isOwn(wc.ID()) {
			continue // the completion is of a queue pair that was destroyed
		}
		o.ops.note(wc)
		o.ops.mu.Lock()
		o.ops.complete(wc)
		o.ops.mu.Unlock()
	}
	s.receives.refill()
	if s.receives.loses && s.receives.unsettled() {
		s.receives.settle(s.live)
	}
}

// arrived processes the completion of a shared receive. o is nil if its
// connection is gone.
func (s *part) arrived(o *pooled, wc *ibverbs.WC) {
	slot := uint32(wc.ID())
	number := s.receives.take(slot)
	switch {
	case number == 0:
	case o == nil:
		s.receives.give(slot)
	case wc.Status() != ibverbs.WCSuccess:
		s.receives.give(slot)
		o.received.Store(number)
		o.ops.note(wc)
	default:
		o.received.Store(number)
		o.ops.note(wc)
		o.arrive(wc, slot)
	}
}
