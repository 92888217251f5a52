// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"math"
	"syscall"
)

// Total returns how many bytes of memory the system has, with its swap space.
// It returns the largest number if that is not known.
func Total() uint64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return math.MaxUint64
	}
	return (uint64(info.Totalram) + uint64(info.Totalswap)) * uint64(info.Unit)
}
