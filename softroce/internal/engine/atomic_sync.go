// SPDX-License-Identifier: Apache-2.0

//go:build !race || !(amd64 || arm64)

package engine

import "sync/atomic"

// cas replaces old by n in the word, and reports whether the word was old.
func cas(word *uint64, old, n uint64) bool { return atomic.CompareAndSwapUint64(word, old, n) }
