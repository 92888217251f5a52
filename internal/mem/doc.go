// SPDX-License-Identifier: Apache-2.0

// Package mem provides memory outside Go's heap. C and devices may keep
// pointers to it, and it may hold pointers itself. It also provides pages of
// Go's heap.
package mem
