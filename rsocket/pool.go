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

// A Pool shares resources that each connection would otherwise own: a
// protection domain, a completion queue with its channel, the receives, and the
// memory that Write and ReadFrom send from. A connection then needs little more
// than its queue pair and its ReadBuffer. Connections with Config.Pool use it,
// dialed and accepted ones alike, on any device. The zero Pool is usable. A
// Pool must not be copied. It needs no Close: it frees shared resources with
// the last connection that uses them.
//
// One of the goroutines that wait on any of these connections takes the
// completions for all. A connection that is not read does not hold up others:
// its bytes wait in its own ReadBuffer.
//
// Connections that share a protection domain protect each other less: a peer
// that guesses the key of another connection's memory can write there. Use one
// Pool for peers that trust each other, or one for each such group.
type Pool struct {
	// Conns is the number of connections per shared completion queue. 0 means 64.
	// When a queue is full, the Pool makes another.
	Conns int
	// Receives is the number of messages that can arrive on the connections of
	// a shared queue before a goroutine polls. 0 means as many as all their
	// peers may send: Config.RecvQueue and a few more for each connection.
	// Fewer receives take less memory, but messages may have to wait at the
	// peers. The peers' devices send them again after 0.64 ms, until a
	// goroutine waits on one of the connections.
	Receives int

	mu    sync.Mutex
	parts []*part // those with connections
}

const defaultPoolConns = 64

// part has what some connections of a pool share on one device.
type part struct {
	pool *Pool
	pump
	pd  *ibverbs.PD
	srq *ibverbs.SRQ

	// Guarded by the pool's mu.
	conns    int
	sends    int // requests left to reserve
	receives int // receives left to reserve; unused with Pool.Receives

	memory slabs
}

// join returns a part with room for a connection. The caller gives the room
// back with leave.
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
	s.reserve(config) // it was made for more than one
	p.parts = append(p.parts, s)
	return s, nil
}

// reserve reserves what a connection needs. It returns false if there is no
// room.
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

// leave gives back what a connection has reserved, except for lost requests,
// whose completions may still come.
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

// newPart makes a part for connections with this config. After an error, the
// caller closes the part.
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
		s.receives = min(p.Receives, attr.MaxSRQWR, attr.MaxCQE-s.sends)
	}
	if s.pd, err = device.AllocPD(); err != nil {
		return s, err
	}
	s.memory.pd = s.pd
	if err := s.pump.create(device, s.sends+s.receives, config.Spin); err != nil {
		return s, err
	}
	if s.srq, err = s.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: s.receives}); err != nil {
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

// slab is registered memory to send from. It belongs to Go: a goroutine that
// copies to it after it was closed does no harm.
type slab struct {
	region *ibverbs.MR
	bytes  []byte
}

// slabs keeps unused slabs by their length, and makes more when needed.
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

// give takes back a slab that no request uses.
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
