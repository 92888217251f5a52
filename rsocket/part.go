// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// part has what some connections of a pool share on one device.
type part struct {
	pool   *Pool
	pd     *ibverbs.PD
	srq    *ibverbs.SRQ
	pump   pump
	memory slabs

	// Guarded by the pool's mu.
	conns        int
	sends        int // requests left to reserve
	receivesLeft int // receives left to reserve; unused with Pool.Receives

	mu       sync.Mutex // guards the fields below
	byNum    map[uint32]*Conn
	receives receives
	failed   bool // whether the completion queue has failed
}

// reserve reserves what a connection needs. It returns false if there is no
// room.
func (s *part) reserve(config *Config) bool {
	receives := config.RecvQueue + spareReceives
	if s.pool.Receives > 0 {
		receives = 0 // all are posted
	}
	if s.sends < config.SendQueue || s.receivesLeft < receives || s.hasFailed() {
		return false
	}
	s.conns++
	s.sends -= config.SendQueue
	s.receivesLeft -= receives
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
		s.receivesLeft += config.RecvQueue + spareReceives
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
	s := &part{pool: p, byNum: map[uint32]*Conn{}}
	s.pump.init(s.handle)
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
	s.sends, s.receivesLeft = conns*config.SendQueue, conns*each
	if p.Receives > 0 {
		s.receivesLeft = min(p.Receives, attr.MaxSRQWR, attr.MaxCQE-s.sends)
	}
	if s.pd, err = device.AllocPD(); err != nil {
		return s, err
	}
	s.memory.pd = s.pd
	if err := s.pump.create(device, s.sends+s.receivesLeft, config.Spin); err != nil {
		return s, err
	}
	if s.srq, err = s.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: s.receivesLeft}); err != nil {
		return s, err
	}
	if err := s.receives.init(); err != nil {
		return s, err
	}
	s.receives.queue = s.srq
	if p.Receives > 0 {
		s.wantReceives(s.receivesLeft)
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

// add makes the part pass on the completions of a connection's queue pair. If
// an earlier queue pair had the same number, add first takes all completions of
// that one.
func (s *part) add(c *Conn) {
	num := c.qp.Num()
	if s.find(num) != nil {
		s.pump.takeAll()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byNum[num] = c
}

func (s *part) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if num := c.qp.Num(); s.byNum[num] == c {
		delete(s.byNum, num)
	}
}

// has reports whether a connection was added, and not removed.
func (s *part) has(c *Conn) bool { return s.find(c.qp.Num()) == c }

// find returns the connection whose queue pair has the number, or nil.
func (s *part) find(num uint32) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNum[num]
}

// handle passes completions to their connections. err is the queue's failure,
// if any. The caller holds the pump.
func (s *part) handle(wcs []ibverbs.WC, err error) {
	s.repost(wcs)
	for len(wcs) > 0 {
		k := 1
		for k < len(wcs) && wcs[k].QPNum() == wcs[0].QPNum() {
			k++
		}
		if c := s.find(wcs[0].QPNum()); c != nil { // else it is gone
			c.handle(wcs[:k], nil)
		}
		wcs = wcs[k:]
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	s.failed = true
	all := slices.Collect(maps.Values(s.byNum))
	s.mu.Unlock()
	for _, c := range all {
		c.handle(nil, err)
	}
}

// hasFailed reports whether the completion queue has failed.
func (s *part) hasFailed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// wantReceives changes the number of posted receives by n. A decrease takes
// effect as receives complete.
func (s *part) wantReceives(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receives.owed += n
	_ = s.receives.refill() // the next call tries again
}

// repost replaces completed receives.
func (s *part) repost(wcs []ibverbs.WC) {
	n := 0
	for i := range wcs {
		if wcs[i].ID() == receiveID {
			n++
		}
	}
	if n > 0 {
		s.wantReceives(n)
	}
}
