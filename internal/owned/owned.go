// SPDX-License-Identifier: Apache-2.0

// Package owned closes objects that were created for a connection or an
// endpoint, and that must be closed with it.
package owned

import (
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// Regions has the memory regions of an owner, which are closed with the owner
// if the program has not closed them before.
type Regions []*ibverbs.MR

// Add adds a region, and drops regions that are closed. It calls Close on a
// region without bytes, since another goroutine may be closing it: the region
// needs its protection domain until Close has returned.
func (r *Regions) Add(mr *ibverbs.MR) {
	isClosed := func(mr *ibverbs.MR) bool { return mr.Bytes() == nil && mr.Close() == nil }
	*r = append(slices.DeleteFunc(*r, isClosed), mr)
}

// Close closes all regions. After an error, it can be called again, and closes
// the remaining regions.
func (r *Regions) Close() error {
	for len(*r) > 0 {
		if err := (*r)[0].Close(); err != nil {
			return err
		}
		*r = (*r)[1:]
	}
	return nil
}

// Closer calls the function that closes an object, one call at a time, until it
// succeeds.
type Closer struct {
	mu   sync.Mutex
	done bool
}

// Do calls f, unless an earlier call of Do has succeeded.
func (c *Closer) Do(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return nil
	}
	if err := f(); err != nil {
		return err
	}
	c.done = true
	return nil
}
