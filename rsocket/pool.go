// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/mem"
)

// A Pool lets connections share what each has for itself otherwise: a protection domain, a completion queue with its channel, the
// receives, and the memory that Write and ReadFrom send from. A connection then takes little more than its queue pair and its
// ReadBuffer. Connections use it if Config.Pool says so, dialed and accepted ones alike, on any device. The zero Pool is usable, and
// must not be copied. It needs no Close: what it makes for connections is freed with them.
//
// One of the goroutines that wait for anything on any of these connections takes the completions for all. A connection that
// nobody reads holds up no other: its bytes wait in its own ReadBuffer.
//
// Connections that share a protection domain protect each other less: a peer that guesses the key of another connection's
// memory can write there. Use a Pool for peers that trust each other, or a Pool for each group of those.
type Pool struct {
	// Conns is for how many connections queues are made at a time; 0 means 64. When they are in use, the Pool makes more.
	Conns int
	// Receives is how many messages can arrive on the connections that share queues before any goroutine looks; 0 means as many as all
	// their peers may send, which is Config.RecvQueue and a few for each. With fewer, which takes less memory, messages may have to
	// wait at the peers, whose devices send them again after 0.64 ms, until some goroutine waits for anything on one of the
	// connections.
	Receives int

	mu    sync.Mutex
	parts []*part // that have connections
}

const defaultPoolConns = 64

// part is what some connections of a pool share, on one device.
type part struct {
	pool *Pool
	pump
	pd  *ibverbs.PD
	srq *ibverbs.SRQ

	// Guarded by the pool's mu.
	conns    int
	sends    int // requests that connections can still reserve
	receives int // receives that they can; not used with Pool.Receives

	memory slabs
}

// join returns a part with room for a connection, which the caller gives back with leave.
func (p *Pool) join(device *ibverbs.Device, config *Config) (*part, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.parts {
		if s.pd.Device() == device && s.reserve(config) {
			return s, nil
		}
	}
	s, err := p.newPart(device, config)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.reserve(config) // it was made for more
	p.parts = append(p.parts, s)
	return s, nil
}

// reserve takes what a connection needs.
func (s *part) reserve(config *Config) bool {
	receives := config.RecvQueue + spareReceives
	if s.pool.Receives > 0 {
		receives = 0 // all are posted
	}
	if s.sends < config.SendQueue || s.receives < receives || s.hasFailed() {
		return false
	}
	s.conns++
	s.sends -= config.SendQueue
	s.receives -= receives
	s.wantReceives(receives)
	return true
}

// leave gives back what a connection has reserved, except for the requests whose completions may still come.
func (s *part) leave(config *Config, lost int) error {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Receives == 0 {
		s.receives += config.RecvQueue + spareReceives
		s.wantReceives(-config.RecvQueue - spareReceives)
	}
	s.sends += config.SendQueue - lost
	s.conns--
	if s.conns > 0 {
		return nil
	}
	p.parts = slices.DeleteFunc(p.parts, func(other *part) bool { return other == s })
	return s.close()
}

// newPart makes a part for connections like one with this config. After an error, the caller closes it.
func (p *Pool) newPart(device *ibverbs.Device, config *Config) (*part, error) {
	s := &part{pool: p}
	s.pump.init(nil)
	s.byNum = map[uint32]*Conn{}
	attr, err := device.QueryDevice()
	if err != nil {
		return s, err
	}
	each := config.RecvQueue + spareReceives
	conns := cmp.Or(max(p.Conns, 0), defaultPoolConns)
	conns = max(1, min(conns, attr.MaxCQE/(config.SendQueue+each)))
	if p.Receives <= 0 {
		conns = max(1, min(conns, attr.MaxSRQWR/each))
	}
	s.sends, s.receives = conns*config.SendQueue, conns*each
	if p.Receives > 0 {
		s.receives = min(p.Receives, attr.MaxSRQWR)
	}
	if s.pd, err = device.AllocPD(); err != nil {
		return s, err
	}
	s.memory.pd = s.pd
	if err := s.pump.create(device, s.sends+s.receives, config.Spin); err != nil {
		return s, err
	}
	if s.srq, err = s.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: s.receives}); err != nil {
		return s, err
	}
	if s.recv, err = ibverbs.NewRecvBatch(recvBatch, 1); err != nil {
		return s, err
	}
	s.postRecv = s.srq.PostRecv
	if p.Receives > 0 {
		s.wantReceives(s.receives)
	}
	return s, nil
}

// close closes everything.
func (s *part) close() error {
	errs := []error{s.memory.close()}
	if s.srq != nil {
		errs = append(errs, s.srq.Close())
	}
	errs = append(errs, s.pump.close())
	if s.pd != nil {
		errs = append(errs, s.pd.Close())
	}
	return errors.Join(errs...)
}

// slab is registered memory to send from. It is Go's: who copies to it after it was closed does no harm.
type slab struct {
	region *ibverbs.MR
	bytes  []byte
}

// slabs are those that are not in use, by their length. They grow by what is needed at a time.
type slabs struct {
	pd *ibverbs.PD

	mu     sync.Mutex
	free   map[int][]*slab
	all    []*slab
	closed bool
}

func (m *slabs) take(size int) (*slab, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, os.ErrClosed
	}
	if free := m.free[size]; len(free) > 0 {
		s := free[len(free)-1]
		m.free[size] = free[:len(free)-1]
		return s, nil
	}
	b := mem.Pages(size)
	region, err := m.pd.Register(b, 0)
	if err != nil {
		return nil, err
	}
	s := &slab{region, b}
	m.all = append(m.all, s)
	return s, nil
}

// give takes back a slab, which no request uses any more.
func (m *slabs) give(s *slab) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.free == nil {
		m.free = map[int][]*slab{}
	}
	m.free[len(s.bytes)] = append(m.free[len(s.bytes)], s)
}

func (m *slabs) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	var errs []error
	for _, s := range m.all {
		errs = append(errs, s.region.Close())
	}
	m.all, m.free = nil, nil
	return errors.Join(errs...)
}
