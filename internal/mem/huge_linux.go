// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x

package mem

import (
	"fmt"
	"math/bits"
	"syscall"
)

// MapHuge returns n bytes of zeroed memory in huge pages of page bytes. The
// pages are reserved, so accessing the memory cannot fail.
func MapHuge(n, page int) ([]byte, error) {
	if page <= 0 || page&(page-1) != 0 || n <= 0 || n%page != 0 {
		return nil, fmt.Errorf("%w: size is %d and page size %d: the size must be a positive multiple of the page size, a power of two",
			syscall.EINVAL, n, page)
	}
	const shift = 26 // MAP_HUGE_SHIFT: position of the page size's logarithm
	flags := syscall.MAP_ANON | syscall.MAP_PRIVATE | syscall.MAP_HUGETLB | bits.TrailingZeros(uint(page))<<shift
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	kib := page >> 10
	switch err {
	case nil:
		return b, nil
	case syscall.ENOMEM:
		return nil, fmt.Errorf("%w: too few huge pages of %d KiB are free; reserve some with the sysctl "+
			"vm.nr_hugepages or /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", err, kib, kib)
	}
	return nil, fmt.Errorf("%w: this system may have no huge pages of %d KiB; /sys/kernel/mm/hugepages lists "+
		"what it has, and the sysctl vm.nr_hugepages reserves them", err, kib)
}
