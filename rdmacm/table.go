// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "sync"

// table is a small map that goroutines share. Unlike sync.Map, it keeps the
// types of its keys and values, and is quickly compiled.
type table[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]V
}

func (t *table[K, V]) load(key K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, ok := t.entries[key]
	return value, ok
}

func (t *table[K, V]) store(key K, value V) { t.update(key, value, true) }

// add stores a value unless the key has one.
func (t *table[K, V]) add(key K, value V) { t.update(key, value, false) }

func (t *table[K, V]) update(key K, value V, replace bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	if _, there := t.entries[key]; replace || !there {
		t.entries[key] = value
	}
}

func (t *table[K, V]) delete(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.entries, key)
}
