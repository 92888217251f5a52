// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// mr is a memory region.
type mr struct {
	c        *libibverbs.Mr
	e        *engine.MR
	domain   *pd
	access   libibverbs.AccessFlags // of a region that was not imported
	checked  uint64                 // number of the device for the check of memory; 0: the memory is not checked
	mapped   bool                   // whether the region is memory of the program, at the address in c
	iova     uint64                 // address by which requests refer to the memory, if mapped is true
	imported bool                   // whether the region was imported, and e belongs to another one
	dmabuf   *dmabuf                // DMA buffer of the region; nil: the region has none
	dmah     *dmah                  // DMA handle of the region; nil: the region has none
}

func init() {
	verbs.RegMr = func(p *libibverbs.Pd, addr uintptr, length uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		return self().register(p, addr, length, uint64(addr), access)
	}
	verbs.RegMrIova = func(p *libibverbs.Pd, addr uintptr, length, iova uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		return self().register(p, addr, length, iova, access)
	}
	verbs.RegMrIova2 = func(p *libibverbs.Pd, addr uintptr, length, iova uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		return self().register(p, addr, length, iova, access)
	}
	verbs.RegMrEx = func(p *libibverbs.Pd, a *libibverbs.MrInitAttr) (*libibverbs.Mr, syscall.Errno) {
		if a == nil {
			return nil, syscall.EINVAL
		}
		return self().registerEx(p, a)
	}
	verbs.DeregMr = func(m *libibverbs.Mr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deregister(m)
	}
	verbs.ReregMr = func(m *libibverbs.Mr, flags libibverbs.ReregMrFlags, p *libibverbs.Pd, addr uintptr, length uint64, access libibverbs.AccessFlags) (int, syscall.Errno) {
		return self().reregister(m, flags, p, addr, length, access)
	}
}

// region returns the memory of length bytes from addr on. It fails with EFAULT
// if some of it is not mapped, or lacks a permission that access needs, and
// with EINVAL if access has IBV_ACCESS_FLUSH_PERSISTENT and some is not
// persistent.
func region(addr uintptr, length uint64, access libibverbs.AccessFlags) ([]byte, error) {
	if length == 0 || length > 1<<47 || uint64(addr)+length < length {
		return nil, syscall.EINVAL
	}
	there, err := found(openMappings, query, uint64(addr), uint64(addr)+length, writes(access))
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, syscall.EFAULT
	}
	if access&libibverbs.IBV_ACCESS_FLUSH_PERSISTENT != 0 {
		persistent, err := isPersistent(uint64(addr), uint64(addr)+length)
		if err != nil {
			return nil, err
		}
		if !persistent {
			return nil, syscall.EINVAL
		}
	}
	return unsafe.Slice((*byte)(pointer(addr)), length), nil
}

// writes reports whether access allows the device to write to memory.
func writes(access libibverbs.AccessFlags) bool {
	return access&(libibverbs.IBV_ACCESS_LOCAL_WRITE|libibverbs.IBV_ACCESS_REMOTE_WRITE|libibverbs.IBV_ACCESS_REMOTE_ATOMIC) != 0
}

// pointer converts an address to a pointer. If the memory is Go's, the program
// must have pinned it.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// mappings is /proc/self/maps, open for reading.
type mappings interface {
	io.ReadCloser
	Fd() uintptr
}

func openMappings() (mappings, error) {
	fd, err := syscall.Open("/proc/self/maps", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return procFile(fd), nil
}

// procFile is a descriptor of a file in /proc. An os.File takes five more
// system calls, as Go's netpoller tries to watch it.
type procFile int

func (f procFile) Fd() uintptr { return uintptr(f) }

func (f procFile) Close() error { return syscall.Close(int(f)) }

func (f procFile) Read(b []byte) (int, error) {
	n, err := syscall.Read(int(f), b)
	switch {
	case err != nil:
		return 0, err
	case n == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// mapping is a range of addresses with the same permissions.
type mapping struct {
	start, end  uint64
	read, write bool
}

// procmapQuery has the fields of the kernel's struct procmap_query.
type procmapQuery struct {
	size, queryFlags, addr                     uint64
	start, end, flags, pageSize, offset, inode uint64
	devMajor, devMinor, nameSize, buildIDSize  uint32
	nameAddr, buildIDAddr                      uint64
}

// ask asks the kernel for the mapping that contains an address. maps is the
// descriptor of /proc/self/maps. ask fails with an error matching ENOENT if no
// mapping contains the address. It needs Linux 6.11.
func ask(maps uintptr, addr uint64) (procmapQuery, error) {
	q := procmapQuery{addr: addr}
	q.size = uint64(unsafe.Sizeof(q))
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, maps, procmapRequest, uintptr(unsafe.Pointer(&q))); err != 0 {
		return procmapQuery{}, err
	}
	return q, nil
}

// query returns the mapping that contains an address. It fails like ask.
func query(maps uintptr, addr uint64) (mapping, error) {
	q, err := ask(maps, addr)
	return mapping{q.start, q.end, q.flags&1 != 0, q.flags&2 != 0}, err
}

// found reports whether all memory between the addresses from and to is mapped
// with permission to read and, if write is true, with permission to write. It
// asks the kernel for the mappings of the range or, if the kernel lacks the
// query, reads the list of all mappings.
//
// Before it returns false, it looks several times: while a thread merges a
// mapping with its neighbour, the kernel sometimes leaves the mapping out of
// the list (seen on Linux 6.18).
func found(
	open func() (mappings, error), query func(maps uintptr, addr uint64) (mapping, error), from, to uint64, write bool,
) (there bool, err error) {
	for range 4 {
		maps, err := open()
		if err != nil {
			return false, err
		}
		there, err := covered(func(addr uint64) (mapping, error) { return query(maps.Fd(), addr) }, from, to, write)
		if err != nil {
			there = mapped(bufio.NewScanner(maps), from, to, write)
		}
		maps.Close()
		if there {
			return true, nil
		}
	}
	return false, nil
}

// covered reports the same as mapped. It gets the mappings from query, and
// fails if the kernel lacks the query.
func covered(query func(addr uint64) (mapping, error), from, to uint64, write bool) (bool, error) {
	for from < to {
		m, err := query(from)
		if errors.Is(err, syscall.ENOENT) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if m.start > from || m.end <= from || !m.read || write && !m.write {
			return false, nil
		}
		from = m.end
	}
	return true, nil
}

// mapped reports whether all memory between the addresses from and to can be
// read and, if write is true, written. lines are the lines of /proc/self/maps.
func mapped(lines *bufio.Scanner, from, to uint64, write bool) bool {
	for lines.Scan() {
		addresses, permissions, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		first, last, _ := bytes.Cut(addresses, []byte("-"))
		start, err := strconv.ParseUint(string(first), 16, 64)
		if err != nil {
			return false
		}
		end, err := strconv.ParseUint(string(last), 16, 64)
		if err != nil {
			return false
		}
		if end <= from {
			continue
		}
		if start > from || len(permissions) < 2 || permissions[0] != 'r' || write && permissions[1] != 'w' {
			return false
		}
		if end >= to {
			return true
		}
		from = end
	}
	return false
}

// register registers memory of the program.
func (l *library) register(p *libibverbs.Pd, addr uintptr, length, iova uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
	if access&libibverbs.IBV_ACCESS_ON_DEMAND != 0 {
		return l.registerOnDemand(p, addr, length, iova, access)
	}
	memory, err := region(addr, length, access) // slow in a program with many mappings
	if err != nil {
		return nil, errno(err)
	}
	return l.add(p, &mr{access: access, mapped: true, iova: iova}, addr, func(domain *engine.PD) (*engine.MR, error) {
		return domain.RegisterMR(memory, iova, access)
	})
}

// add completes m, which has the access and the DMA buffer, with the region
// that register creates in the protection domain. addr is the address in the C
// struct of the region.
func (l *library) add(
	p *libibverbs.Pd, m *mr, addr uintptr, register func(domain *engine.PD) (*engine.MR, error),
) (*libibverbs.Mr, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	e, err := register(domain.e)
	if err != nil {
		return nil, errno(err)
	}
	m.c, m.e, m.domain = alloc[libibverbs.Mr](), e, domain
	domain.users++
	m.c.Context, m.c.Pd, m.c.Length = p.Context, p, e.Size()
	*(*uintptr)(unsafe.Pointer(&m.c.Addr)) = addr
	m.c.Lkey, m.c.Rkey = e.Key(), e.Key()
	m.c.Handle = e.Key() >> 8
	l.mrs[m.c] = m
	l.checkMemory(m)
	return m.c, 0
}

// registerEx registers memory of the program, or a DMA buffer, as the mask in a
// says. As with Linux's driver mlx5, memory that is paged on demand cannot have
// a DMA handle.
func (l *library) registerEx(p *libibverbs.Pd, a *libibverbs.MrInitAttr) (*libibverbs.Mr, syscall.Errno) {
	const (
		ofProgram = libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_BUF
		ofFile    = libibverbs.IBV_REG_MR_MASK_FD | libibverbs.IBV_REG_MR_MASK_FD_OFFSET
		known     = libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH | ofProgram | ofFile
	)
	mask := libibverbs.MrInitAttrMask(a.CompMask)
	switch {
	case a.CompMask&^uint64(known) != 0:
		return nil, syscall.EOPNOTSUPP
	case mask&libibverbs.IBV_REG_MR_MASK_DMAH == 0:
	case a.Access&libibverbs.IBV_ACCESS_ON_DEMAND != 0:
		return nil, syscall.EINVAL
	default:
		without := *a
		without.CompMask &^= uint64(libibverbs.IBV_REG_MR_MASK_DMAH)
		return l.withDmah(p, a.Dmah, func() (*libibverbs.Mr, syscall.Errno) { return l.registerEx(p, &without) })
	}
	iova := uint64(uintptr(a.Addr))
	if mask&libibverbs.IBV_REG_MR_MASK_IOVA != 0 {
		iova = a.Iova
	}
	access := a.Access
	switch {
	case mask&ofFile == ofFile && mask&(ofProgram|libibverbs.IBV_REG_MR_MASK_IOVA) == libibverbs.IBV_REG_MR_MASK_IOVA:
		return l.registerDMABuf(p, a.FdOffset, a.Length, iova, int(a.Fd), access)
	case mask&ofFile != 0 || mask&libibverbs.IBV_REG_MR_MASK_ADDR == 0:
		return nil, syscall.EINVAL
	case mask&libibverbs.IBV_REG_MR_MASK_BUF != 0 && !l.inBuf(p, a.Buf, uintptr(a.Addr), a.Length):
		return nil, syscall.EINVAL
	}
	return l.register(p, uintptr(a.Addr), a.Length, iova, access)
}

func (l *library) deregister(c *libibverbs.Mr) syscall.Errno {
	m := l.mrs[c]
	if m == nil {
		return syscall.EINVAL
	}
	if m.e.Deregistered() {
		return syscall.EINVAL
	}
	if err := m.e.Deregister(); err != nil {
		return errno(err)
	}
	m.uncheckMemory()
	if m.dmabuf != nil {
		m.dmabuf.close()
	}
	l.forgetMR(m)
	return 0
}

// reregister changes a region. It returns what ibv_rereg_mr returns, and the
// errno. ibv_rereg_mr returns 0 or a value of enum ibv_rereg_mr_err_code.
func (l *library) reregister(c *libibverbs.Mr, flags libibverbs.ReregMrFlags, p *libibverbs.Pd, addr uintptr, length uint64, access libibverbs.AccessFlags) (int, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	m := l.mrs[c]
	invalid := int(libibverbs.IBV_REREG_MR_ERR_INPUT)
	if m == nil || m.imported || m.e.Deregistered() {
		return invalid, syscall.EINVAL
	}
	if m.dmabuf != nil {
		return int(libibverbs.IBV_REREG_MR_ERR_CMD), syscall.EOPNOTSUPP
	}
	domain := m.domain
	if flags&libibverbs.IBV_REREG_MR_CHANGE_PD != 0 {
		domain = l.domain(p)
		if domain == nil || p.Context != c.Context {
			return invalid, syscall.EINVAL
		}
	}
	if err := m.e.CheckRereg(flags, access); err != nil {
		return reregFailed(err)
	}
	var memory []byte
	if flags&libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION == 0 {
		addr, length = uintptr(c.Addr), c.Length
	}
	if flags&libibverbs.IBV_REREG_MR_CHANGE_ACCESS == 0 {
		access = m.access
	}
	if flags&(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION|libibverbs.IBV_REREG_MR_CHANGE_ACCESS) != 0 {
		var err error
		if memory, err = region(addr, length, access); err != nil {
			return invalid, errno(err)
		}
	}
	if err := m.e.Rereg(flags, domain.e, memory, uint64(addr), access); err != nil {
		return reregFailed(err)
	}
	if domain != m.domain {
		m.domain.users--
		domain.users++
		m.domain, c.Pd = domain, p
	}
	m.uncheckMemory()
	if flags&libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
		m.iova = uint64(addr)
	}
	c.Length, m.access = length, access
	*(*uintptr)(unsafe.Pointer(&c.Addr)) = addr
	l.checkMemory(m)
	return 0, 0
}

// reregFailed returns what ibv_rereg_mr returns for an error of the engine, and
// the errno.
func reregFailed(err error) (int, syscall.Errno) {
	if errors.Is(err, syscall.EINVAL) {
		return int(libibverbs.IBV_REREG_MR_ERR_INPUT), syscall.EINVAL
	}
	return int(libibverbs.IBV_REREG_MR_ERR_CMD), errno(err)
}
