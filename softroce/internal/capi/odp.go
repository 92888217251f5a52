// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"bytes"
	"errors"
	"math"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

func init() {
	verbs.AllocNullMr = func(p *libibverbs.Pd) (*libibverbs.Mr, syscall.Errno) {
		const access = libibverbs.IBV_ACCESS_LOCAL_WRITE
		m, err := self().add(p, &mr{access: access}, 0, (*engine.PD).AllocNullMR)
		if err == 0 {
			m.Rkey = 0 // peers cannot use it
		}
		return m, err
	}
	verbs.AdviseMr = func(
		p *libibverbs.Pd, advice libibverbs.IbUverbsAdviseMrAdvice, flags libibverbs.IbUverbsAdviseMrFlag, list *libibverbs.Sge, n uint32,
	) syscall.Errno {
		return self().advise(p, advice, flags, list, n)
	}
}

// registerOnDemand registers memory of the program that is paged on demand. The
// memory need not be mapped yet, but a region of huge pages needs its first
// page. IBV_ACCESS_FLUSH_PERSISTENT fails with EINVAL, since what is mapped
// there may change.
func (l *library) registerOnDemand(p *libibverbs.Pd, addr uintptr, length, iova uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
	if access&libibverbs.IBV_ACCESS_FLUSH_PERSISTENT != 0 {
		return nil, syscall.EINVAL
	}
	if length != math.MaxUint64 && access&libibverbs.IBV_ACCESS_HUGETLB != 0 && !hasHugePages(ask, uint64(addr)) {
		return nil, syscall.EINVAL
	}
	return l.add(p, &mr{access: access, mapped: true, iova: iova}, addr, func(domain *engine.PD) (*engine.MR, error) {
		return domain.RegisterOnDemand(uint64(addr), length, iova, access)
	})
}

// hasHugePages reports whether the memory at the address addr is mapped in huge
// pages. It asks the kernel or, if the kernel lacks the query, reads the list
// of all mappings.
func hasHugePages(ask func(maps uintptr, addr uint64) (procmapQuery, error), addr uint64) bool {
	maps, err := openMappings()
	if err != nil {
		return false
	}
	defer maps.Close()
	m, err := ask(maps.Fd(), addr)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return err == nil && m.pageSize > uint64(os.Getpagesize())
	}
	all, err := os.Open("/proc/self/smaps")
	if err != nil {
		return false
	}
	defer all.Close()
	return pageSizeAt(bufio.NewScanner(all), addr) > uint64(os.Getpagesize())
}

// pageSizeAt returns the page size of the mapping that contains the address
// addr, or 0 if none does. lines are the lines of /proc/self/smaps.
func pageSizeAt(lines *bufio.Scanner, addr uint64) uint64 {
	inside := false
	for lines.Scan() {
		line := lines.Bytes()
		if text, ok := bytes.CutPrefix(line, []byte("KernelPageSize:")); ok {
			if inside {
				kib, _ := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(text, []byte("kB")))), 10, 54)
				return kib << 10
			}
			continue
		}
		addresses, _, _ := bytes.Cut(line, []byte(" "))
		first, last, ok := bytes.Cut(addresses, []byte("-"))
		if !ok {
			continue
		}
		start, err := strconv.ParseUint(string(first), 16, 64)
		end, errEnd := strconv.ParseUint(string(last), 16, 64)
		if err == nil && errEnd == nil {
			inside = start <= addr && addr < end
		}
	}
	return 0
}

// maxAdvised is how many segments one call may give advice about, as many as
// fit into a message to the kernel.
const maxAdvised = math.MaxUint16 / 16

// memoryRange is memory of the program.
type memoryRange struct{ start, length uint64 }

// advise follows the program's advice on memory that is paged on demand. As the
// device has no page table of its own, it makes the kernel fetch the pages.
// Without the flag FLUSH, the advice is best effort, so that memory which
// cannot be fetched is no error.
func (l *library) advise(
	p *libibverbs.Pd, advice libibverbs.IbUverbsAdviseMrAdvice, flags libibverbs.IbUverbsAdviseMrFlag, list *libibverbs.Sge, n uint32,
) syscall.Errno {
	write := false
	switch advice {
	case libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
	case libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE:
		write = true
	default:
		return syscall.EOPNOTSUPP
	}
	if flags&^libibverbs.IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 || list == nil || n == 0 || n > maxAdvised {
		return syscall.EINVAL
	}
	ranges, err := l.advised(p, unsafe.Slice(list, n), write)
	if err != nil || advice == libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
		return errno(err)
	}
	for _, r := range ranges {
		if err := populate(r, write); err != nil && flags&libibverbs.IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 {
			return errno(err)
		}
	}
	return 0
}

// advised returns the program's memory about which it gives advice.
func (l *library) advised(p *libibverbs.Pd, list []libibverbs.Sge, write bool) ([]memoryRange, error) {
	l.Lock()
	defer l.Unlock()
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if device := l.deviceOf(p.Context); device == nil || device.Limits().ODP == 0 {
		return nil, syscall.EOPNOTSUPP
	}
	ranges := make([]memoryRange, 0, len(list))
	for _, sge := range list {
		start, err := domain.e.Prefetch(sge.Addr, uint64(sge.Length), sge.Lkey, write)
		if err != nil {
			return nil, err
		}
		if sge.Length > 0 {
			ranges = append(ranges, memoryRange{start, uint64(sge.Length)})
		}
	}
	return ranges, nil
}

// populate fetches the pages of memory, to be written or only read. It fails
// with EFAULT if some of it is not mapped, or not with that permission.
func populate(r memoryRange, write bool) error {
	const populateRead, populateWrite = 22, 23 // MADV_POPULATE_READ and MADV_POPULATE_WRITE
	advice := uintptr(populateRead)
	if write {
		advice = populateWrite
	}
	page := uint64(os.Getpagesize())
	start := r.start / page * page
	end := (r.start + r.length + page - 1) / page * page
	_, _, failed := syscall.Syscall(syscall.SYS_MADVISE, uintptr(start), uintptr(end-start), advice)
	if failed == 0 {
		return nil
	}
	// The kernel has no such advice before 5.14 and for memory of devices.
	there, err := found(openMappings, query, r.start, r.start+r.length, write)
	if err == nil && !there {
		err = syscall.EFAULT
	}
	return err
}
