// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/mem"
)

// part has the resources that some connections of a pool on the same device
// share.
type part struct {
	pool   *Pool
	pd     *ibverbs.PD
	srq    *ibverbs.SRQ
	words  *ibverbs.MR // on iWARP, the memory of the receives
	pump   pump
	memory slabs

	// Guarded by the pool's mu.
	conns        int // number of connections
	sends        int // number of send requests that are not reserved
	receivesLeft int // number of receives that are not reserved; unused if Pool.Receives is set

	mu       sync.Mutex       // guards the fields below
	byNum    map[uint32]*Conn // connections by the numbers of their queue pairs
	receives receives
	failed   bool // whether the completion queue has failed
}

// reserve reserves requests and receives for a connection. It returns false if
// not enough are left.
func (s *part) reserve(config *Config) bool {
	receives := config.RecvQueue + spareReceives
	if s.pool.Receives > 0 {
		receives = 0 // all receives are posted already
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

// leave frees what reserve has reserved for a connection, except for as many
// send requests as inFlight says: these stay reserved, since their completions
// may still arrive. The last connection that leaves closes the part.
func (s *part) leave(config *Config, inFlight int) error {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Receives == 0 {
		s.receivesLeft += config.RecvQueue + spareReceives
		s.wantReceives(-config.RecvQueue - spareReceives)
	}
	s.sends += config.SendQueue - inFlight
	s.conns--
	if s.conns > 0 {
		return nil
	}
	p.parts = slices.DeleteFunc(p.parts, func(other *part) bool { return other == s })
	return s.close()
}

// newPart creates a part for connections with this config. After an error, the
// caller must close the part.
func (p *Pool) newPart(device *ibverbs.Device, config *Config) (*part, error) {
	s := &part{pool: p, byNum: map[uint32]*Conn{}}
	s.pump.init(s.handle, &s.receives)
	attr, err := device.QueryDevice()
	if err != nil {
		return s, err
	}
	if attr.MaxSRQ == 0 {
		return s, fmt.Errorf("rsocket: %w: %s has no shared receive queues, which a Pool needs", errors.ErrUnsupported, device.Name())
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
	if isIWARP(device) {
		if s.words, err = s.pd.Register(mem.Pages(s.receivesLeft*wordLen), ibverbs.AccessLocalWrite); err != nil {
			return s, err
		}
	}
	s.receives.init(s.words)
	s.receives.queue = s.srq
	if p.Receives > 0 {
		s.wantReceives(s.receivesLeft)
	}
	return s, nil
}

// close closes the resources of the part.
func (s *part) close() error {
	errs := []error{s.memory.close()}
	if s.srq != nil {
		errs = append(errs, s.srq.Close())
	}
	errs = append(errs, s.pump.close())
	if s.words != nil {
		errs = append(errs, s.words.Close())
	}
	if s.pd != nil {
		errs = append(errs, s.pd.Close())
	}
	return errors.Join(errs...)
}

// add makes the part pass completions to a connection. If an earlier queue pair
// had the same number, add first takes all of its completions.
func (s *part) add(c *Conn) {
	num := c.qp.Num()
	if s.find(num) != nil {
		s.pump.takeAll()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byNum[num] = c
}

// remove makes the part drop further completions of a connection.
func (s *part) remove(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if num := c.qp.Num(); s.byNum[num] == c {
		delete(s.byNum, num)
	}
}

// has reports whether the connection was added and not removed.
func (s *part) has(c *Conn) bool { return s.find(c.qp.Num()) == c }

// find returns the connection whose queue pair has that number, or nil.
func (s *part) find(num uint32) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byNum[num]
}

// handle passes completions to their connections, with what was received. If
// the completion queue has failed, err is the reason. The caller holds the
// pump.
func (s *part) handle(wcs []ibverbs.WC, got []message, err error) {
	s.repost(wcs)
	for len(wcs) > 0 {
		k := 1
		for k < len(wcs) && wcs[k].QPNum() == wcs[0].QPNum() {
			k++
		}
		if c := s.find(wcs[0].QPNum()); c != nil { // a removed connection's completions are dropped
			c.handle(wcs[:k], got[:k], nil)
		}
		wcs, got = wcs[k:], got[k:]
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	s.failed = true
	all := slices.Collect(maps.Values(s.byNum))
	s.mu.Unlock()
	for _, c := range all {
		c.handle(nil, nil, err)
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
	s.receives.missing += n
	_ = s.receives.refill() // after an error, the next call tries again
}

// repost posts new receives in place of completed ones.
func (s *part) repost(wcs []ibverbs.WC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wcs {
		if isReceive(&wcs[i]) {
			s.receives.completed(&wcs[i])
		}
	}
	_ = s.receives.refill() // after an error, the next call tries again
}
