// SPDX-License-Identifier: Apache-2.0

// Package pools has tests of programs that keep connections of package rsocket
// in pools.
package pools
