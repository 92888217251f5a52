// SPDX-License-Identifier: Apache-2.0

//go:build !race || !unix

package mem

// Region returns n bytes of zeroed memory for a memory region, aligned to a
// page, and a function that frees them. The memory is outside of Go's heap,
// except for up to 64 MiB in builds with -race.
func Region(n int) (b []byte, free func(), err error) { return mapRegion(n) }
