// SPDX-License-Identifier: Apache-2.0

// Package mem allocates memory outside of Go's heap. C and devices may keep
// pointers to it, and it may contain pointers. It also allocates page-aligned
// memory in Go's heap.
package mem
