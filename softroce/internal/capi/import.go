// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"strconv"
	"strings"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// deviceFile stands for the file of an opened device in the kernel: contexts
// that are imported with a duplicate of its descriptor share its objects.
type deviceFile struct {
	device, inode uint64 // of the memory file whose descriptors programs duplicate
	contexts      int    // number of open contexts
	// closed has the closed contexts that have left objects which were in use.
	// The contexts are not freed yet.
	closed []*libibverbs.Context
}

// fileText is the beginning of the content of each memory file. The number of
// the process that has the device follows.
const fileText = "softroce device of process "

func init() {
	verbs.ImportDevice = func(fd int32) (*libibverbs.Context, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.importDevice(int(fd))
	}
	verbs.ImportPd = func(c *libibverbs.Context, handle uint32) (*libibverbs.Pd, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.importPD(c, handle)
	}
	verbs.UnimportPd = func(c *libibverbs.Pd) {
		l := self()
		l.Lock()
		defer l.Unlock()
		l.unimportPD(c)
	}
	verbs.ImportMr = func(p *libibverbs.Pd, handle uint32) (*libibverbs.Mr, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.importMR(p, handle)
	}
	verbs.UnimportMr = func(c *libibverbs.Mr) {
		l := self()
		l.Lock()
		defer l.Unlock()
		l.unimportMR(c)
	}
	verbs.ImportDm = func(c *libibverbs.Context, handle uint32) (*libibverbs.Dm, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.importDM(c, handle)
	}
	verbs.UnimportDm = func(d *libibverbs.Dm) {
		l := self()
		l.Lock()
		defer l.Unlock()
		l.unimportDM(d)
	}
}

// newDeviceFile makes a memory file for an opened device.
func newDeviceFile() (fd int, file *deviceFile, err error) {
	if fd, err = memoryFile(fileText + strconv.Itoa(syscall.Getpid()) + "\n"); err != nil {
		return -1, nil, err
	}
	file = &deviceFile{}
	if file.device, file.inode, err = identify(fd); err != nil {
		syscall.Close(fd)
		return -1, nil, err
	}
	return fd, file, nil
}

// identify returns what identifies the file of a descriptor.
func identify(fd int) (device, inode uint64, err error) {
	var s syscall.Stat_t
	if err := syscall.Fstat(fd, &s); err != nil {
		return 0, 0, err
	}
	return uint64(s.Dev), s.Ino, nil
}

// importDevice returns a context for a duplicate of the descriptor of an opened
// device, which the context takes over. It fails with ENODEV if the file is not
// that of an opened device of this process, but with EOPNOTSUPP if it is that
// of another process, or if the device has no imports.
func (l *library) importDevice(fd int) (*libibverbs.Context, syscall.Errno) {
	device, inode, err := identify(fd)
	if err != nil {
		return nil, errno(err)
	}
	for _, x := range l.contexts {
		if f := x.file; !x.closed && f.device == device && f.inode == inode {
			if !x.device.Limits().Imports {
				return nil, syscall.EOPNOTSUPP
			}
			return l.openWith(x.card, fd, f)
		}
	}
	var text [64]byte
	n, _ := syscall.Pread(fd, text[:], 0)
	if owner, ok := strings.CutPrefix(string(text[:max(n, 0)]), fileText); ok && owner != strconv.Itoa(syscall.Getpid())+"\n" {
		return nil, syscall.EOPNOTSUPP
	}
	return nil, syscall.ENODEV
}

// importPD returns a new struct ibv_pd of the context c for the protection
// domain with the handle, which must belong to a context of the same file.
func (l *library) importPD(c *libibverbs.Context, handle uint32) (*libibverbs.Pd, syscall.Errno) {
	x, err := l.importer(c)
	if err != 0 {
		return nil, err
	}
	for _, from := range l.pds {
		if from.c.Handle != handle || from.of != nil || from.file != x.file || from.e.Destroyed() {
			continue
		}
		p := &pd{c: alloc[libibverbs.Pd](), e: from.e, file: x.file, imported: true}
		p.c.Context, p.c.Handle = c, handle
		l.pds[p.c] = p
		return p.c, 0
	}
	return nil, syscall.EINVAL
}

// importer returns the context c. It fails with EOPNOTSUPP if the device has no
// imports.
func (l *library) importer(c *libibverbs.Context) (*context, syscall.Errno) {
	if !l.isOpen(c) {
		return nil, syscall.EINVAL
	}
	x := l.contexts[c]
	if !x.device.Limits().Imports {
		return nil, syscall.EOPNOTSUPP
	}
	return x, 0
}

// unimportPD frees the program's struct of a domain, and keeps the domain of
// the engine. It does so for an import, and for an original that an importer
// has deallocated. It reports whether it has freed the struct.
func (l *library) unimportPD(c *libibverbs.Pd) bool {
	p := l.pds[c]
	if p == nil || p.of != nil || !p.imported && !p.e.Destroyed() {
		return false
	}
	delete(l.pds, c)
	free(c)
	return true
}

// closeParentDomain ends a parent domain as its context is being closed.
func (l *library) closeParentDomain(c *libibverbs.Pd) syscall.Errno {
	if l.pds[c].of == nil {
		return 0
	}
	return l.deallocPD(c)
}

// closePD ends a domain as its context is being closed.
func (l *library) closePD(c *libibverbs.Pd) syscall.Errno {
	if l.unimportPD(c) {
		return 0
	}
	return l.deallocPD(c)
}

// importMR returns a new struct ibv_mr for the region with the handle, which
// must belong to the same protection domain as p.
func (l *library) importMR(p *libibverbs.Pd, handle uint32) (*libibverbs.Mr, syscall.Errno) {
	domain := l.domain(p)
	if domain == nil {
		return nil, syscall.EINVAL
	}
	if _, err := l.importer(p.Context); err != 0 {
		return nil, err
	}
	for _, from := range l.mrs {
		if from.c.Handle != handle || from.e.PD() != domain.e || from.e.Deregistered() {
			continue
		}
		// The program may have registered the region again since another
		// import. So the values are the engine's.
		m := &mr{c: alloc[libibverbs.Mr](), e: from.e, domain: domain, dmabuf: from.dmabuf, imported: true, checked: from.checked}
		domain.users++
		m.c.Context, m.c.Pd, m.c.Length = p.Context, p, from.e.Size()
		m.c.Lkey, m.c.Rkey, m.c.Handle = from.e.Key(), from.e.Key(), handle
		l.mrs[m.c] = m
		return m.c, 0
	}
	return nil, syscall.EINVAL
}

// unimportMR does for a region what unimportPD does for a domain.
func (l *library) unimportMR(c *libibverbs.Mr) bool {
	m := l.mrs[c]
	if m == nil || !m.imported && !m.e.Deregistered() {
		return false
	}
	l.forgetMR(m)
	return true
}

// closeMR ends a region as its context is being closed.
func (l *library) closeMR(c *libibverbs.Mr) syscall.Errno {
	if l.unimportMR(c) {
		return 0
	}
	return l.deregister(c)
}

// importDM returns a new struct ibv_dm of the context c for the device memory
// with the handle, which must belong to a context of the same file.
func (l *library) importDM(c *libibverbs.Context, handle uint32) (*libibverbs.Dm, syscall.Errno) {
	x, err := l.importer(c)
	if err != 0 {
		return nil, err
	}
	for original, from := range l.dms {
		if original.Handle != handle || from.file != x.file || from.e.Freed() {
			continue
		}
		out := l.addDM(c, handle, &dm{e: from.e, imported: true})
		if out == nil {
			return nil, syscall.ENOMEM
		}
		from.e.Import()
		return out, 0
	}
	return nil, syscall.EINVAL
}

// unimportDM does for device memory what unimportPD does for a domain.
func (l *library) unimportDM(c *libibverbs.Dm) bool {
	d := l.dms[c]
	if d == nil || !d.imported && !d.e.Freed() {
		return false
	}
	l.forgetDM(c)
	d.e.Unimport()
	return true
}

// closeDM ends device memory as its context is being closed.
func (l *library) closeDM(c *libibverbs.Dm) syscall.Errno {
	if l.unimportDM(c) {
		return 0
	}
	return l.freeDM(c)
}

// leaveFile ends the use of a file by the context x, which is closed, and frees
// the context. If objects of x are left, as other contexts use them, then these
// objects and the context go when all contexts of the file are closed.
func (l *library) leaveFile(x *context) {
	f := x.file
	f.contexts--
	switch {
	case f.contexts == 0:
		all := append(f.closed, x.c)
		l.destroyObjects(all...) // together, as the objects may use each other
		for _, c := range all {
			freeContext(c)
		}
	case l.hasLeft(x.c):
		f.closed = append(f.closed, x.c)
	default:
		freeContext(x.c)
	}
}

// forgetMR removes a region of the program's, and leaves the engine's alone.
func (l *library) forgetMR(m *mr) {
	delete(l.mrs, m.c)
	m.domain.users--
	if m.dmah != nil {
		m.dmah.regions--
	}
	free(m.c)
}
