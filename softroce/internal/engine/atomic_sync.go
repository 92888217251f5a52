// SPDX-License-Identifier: Apache-2.0

//go:build !race || !(amd64 || arm64)

package engine

import "sync/atomic"

func cas(word *uint64, old, n uint64) bool { return atomic.CompareAndSwapUint64(word, old, n) }
