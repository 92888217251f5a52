// SPDX-License-Identifier: Apache-2.0

// Package mem provides memory outside Go's heap, to which C and devices may keep
// pointers, and which may hold pointers itself; and pages of Go's heap.
package mem
