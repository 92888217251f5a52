// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"sync"
	"sync/atomic"
)

// qpTable maps the numbers of queue pairs to their intakes. find takes no lock.
// The table is a hash table with linear probing. A removed entry is replaced by
// gone. The table is rebuilt when half of it is in use.
type qpTable struct {
	entries atomic.Pointer[[]atomic.Pointer[pooled]]

	mu   sync.Mutex
	used int // number of entries that are not nil
}

// gone marks a removed entry.
var gone = new(pooled)

const smallestTable = 16

// start returns the index at which the search for a number begins, in a table
// whose size is a power of 2.
func start(num uint32, size int) int { return int(num*2654435769>>7) & (size - 1) }

// find returns the intake of the queue pair with the number, or nil.
func (t *qpTable) find(num uint32) *pooled {
	table := t.entries.Load()
	if table == nil {
		return nil
	}
	entries := *table
	for i := start(num, len(entries)); ; i = (i + 1) & (len(entries) - 1) {
		o := entries[i].Load()
		if o == nil || o != gone && o.ops.num == num {
			return o
		}
	}
}

// add adds an intake under the number of its queue pair, which must not be in
// the table yet.
func (t *qpTable) add(o *pooled) {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := t.entries.Load()
	if table == nil || 2*(t.used+1) > len(*table) {
		table = t.grow(table)
	}
	t.used++
	put(*table, o)
	t.entries.Store(table)
}

// put puts an intake into an entry that was never used, so that a concurrent
// find cannot get another queue pair's intake.
func put(entries []atomic.Pointer[pooled], o *pooled) {
	i := start(o.ops.num, len(entries))
	for entries[i].Load() != nil {
		i = (i + 1) & (len(entries) - 1)
	}
	entries[i].Store(o)
}

// grow returns a table with the intakes of the old one, and with room for at
// least as many more.
func (t *qpTable) grow(old *[]atomic.Pointer[pooled]) *[]atomic.Pointer[pooled] {
	var all []*pooled
	if old != nil {
		for i := range *old {
			if o := (*old)[i].Load(); o != nil && o != gone {
				all = append(all, o)
			}
		}
	}
	size := smallestTable
	for size < 4*(len(all)+1) {
		size *= 2
	}
	table := make([]atomic.Pointer[pooled], size)
	for _, o := range all {
		put(table, o)
	}
	t.used = len(all)
	return &table
}

// remove removes an intake if the table has it.
func (t *qpTable) remove(o *pooled) {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := t.entries.Load()
	if table == nil {
		return
	}
	entries := *table
	for i := start(o.ops.num, len(entries)); ; i = (i + 1) & (len(entries) - 1) {
		switch entries[i].Load() {
		case nil:
			return
		case o:
			entries[i].Store(gone)
			return
		}
	}
}
