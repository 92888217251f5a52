// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"os"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/mem"
)

// slab is registered memory from which the device sends. It is allocated by Go,
// so a goroutine may still copy to it after its region was closed.
type slab struct {
	region *ibverbs.MR
	bytes  []byte
}

// slabs keeps unused slabs for reuse, and creates more when needed.
type slabs struct {
	pd *ibverbs.PD

	mu     sync.Mutex
	free   map[int][]*slab // unused slabs by length
	all    []*slab
	closed bool
}

// take returns a slab of size bytes that no request uses.
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

// give takes back a slab that no request uses any more.
func (m *slabs) give(s *slab) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.free == nil {
		m.free = map[int][]*slab{}
	}
	m.free[len(s.bytes)] = append(m.free[len(s.bytes)], s)
}

// close closes all slabs.
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
