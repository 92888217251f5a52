// SPDX-License-Identifier: Apache-2.0

// Package owned closes objects that an object of rdmacm or endpoint has
// created.
package owned

import (
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// Regions has memory regions that are closed with their owner at the latest.
type Regions []*ibverbs.MR

// Add adds a region and forgets closed ones. A region that is being closed has
// no bytes any more, but needs its protection domain until its Close is done;
// Regions.Close waits for that.
func (r *Regions) Add(mr *ibverbs.MR) {
	isClosed := func(mr *ibverbs.MR) bool { return mr.Bytes() == nil && mr.Close() == nil }
	*r = append(slices.DeleteFunc(*r, isClosed), mr)
}

// Close closes all regions. After an error, it can be called again.
func (r *Regions) Close() error {
	for len(*r) > 0 {
		if err := (*r)[0].Close(); err != nil {
			return err
		}
		*r = (*r)[1:]
	}
	return nil
}

// Closer runs a Close function until it succeeds, one call at a time.
type Closer struct {
	mu   sync.Mutex
	done bool
}

// Do calls f unless it has succeeded.
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
