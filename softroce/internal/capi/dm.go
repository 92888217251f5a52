// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// dm is device memory. Programs copy to and from it in C, see soft_new_dm.
type dm struct {
	e        *engine.DM
	file     *deviceFile
	pinned   runtime.Pinner // keeps the memory, to which C has a pointer
	imported bool           // whether the memory was imported, and e belongs to another one
}

func init() {
	verbs.AllocDm = func(c *libibverbs.Context, a *libibverbs.AllocDmAttr) (*libibverbs.Dm, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocDM(c, a)
	}
	verbs.FreeDm = func(d *libibverbs.Dm) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.freeDM(d)
	}
	verbs.RegDmMr = func(p *libibverbs.Pd, d *libibverbs.Dm, offset, length uint64, access libibverbs.AccessFlags) (*libibverbs.Mr, syscall.Errno) {
		l := self()
		return l.add(p, &mr{access: access}, 0, func(domain *engine.PD) (*engine.MR, error) {
			memory, x := l.dms[d], l.contexts[p.Context]
			if memory == nil || x == nil || memory.file != x.file {
				return nil, syscall.EINVAL
			}
			return domain.RegisterDM(memory.e, offset, length, access)
		})
	}
}

func (l *library) allocDM(c *libibverbs.Context, a *libibverbs.AllocDmAttr) (*libibverbs.Dm, syscall.Errno) {
	device := l.deviceOf(c)
	if device == nil || a == nil || a.CompMask != 0 {
		return nil, syscall.EINVAL
	}
	e, err := device.AllocDM(a.Length, a.LogAlignReq)
	if err != nil {
		return nil, errno(err)
	}
	l.handle++
	out := l.addDM(c, l.handle, &dm{e: e})
	if out == nil {
		_ = e.Free() // has no regions
		return nil, syscall.ENOMEM
	}
	return out, 0
}

// addDM returns a struct ibv_dm of the context c for d, which it completes. It
// returns nil if C has no memory.
func (l *library) addDM(c *libibverbs.Context, handle uint32, d *dm) *libibverbs.Dm {
	d.file = l.contexts[c].file
	d.pinned.Pin(unsafe.SliceData(d.e.Bytes()))
	out := newDM(d.e.Bytes())
	if out == nil {
		d.pinned.Unpin()
		return nil
	}
	out.Context, out.Handle = c, handle
	l.dms[out] = d
	return out
}

func (l *library) freeDM(c *libibverbs.Dm) syscall.Errno {
	d := l.dms[c]
	if d == nil {
		return syscall.EINVAL
	}
	if err := d.e.Free(); err != nil {
		return errno(err)
	}
	l.forgetDM(c)
	return 0
}

// forgetDM removes device memory of the program's, and leaves the engine's
// alone.
func (l *library) forgetDM(c *libibverbs.Dm) {
	l.dms[c].pinned.Unpin()
	delete(l.dms, c)
	free(c)
}
