// SPDX-License-Identifier: Apache-2.0

//go:build race && (amd64 || arm64)

package engine

// cas is sync/atomic's, which the race detector would take for an access of the
// program's. A device writes without it.
//
//go:noescape
func cas(word *uint64, old, n uint64) bool
