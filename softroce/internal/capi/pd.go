// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// pd is a protection domain.
type pd struct {
	c *libibverbs.Pd
	e *engine.PD
}

func init() {
	verbs.AllocPd = func(c *libibverbs.Context) (*libibverbs.Pd, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.allocPD(c)
	}
	verbs.DeallocPd = func(p *libibverbs.Pd) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deallocPD(p)
	}
}

func (l *library) allocPD(c *libibverbs.Context) (*libibverbs.Pd, syscall.Errno) {
	device := l.deviceOf(c)
	if device == nil {
		return nil, syscall.EINVAL
	}
	e, err := device.CreatePD()
	if err != nil {
		return nil, errno(err)
	}
	p := &pd{c: alloc[libibverbs.Pd](), e: e}
	p.c.Context = c
	l.pds[p.c] = p
	return p.c, 0
}

func (l *library) deallocPD(c *libibverbs.Pd) syscall.Errno {
	p := l.pds[c]
	if p == nil {
		return syscall.EINVAL
	}
	if err := p.e.Destroy(); err != nil {
		return errno(err)
	}
	delete(l.pds, c)
	free(c)
	return 0
}
