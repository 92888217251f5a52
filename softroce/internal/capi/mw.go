// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// mw is the engine's memory window for one of the program's struct ibv_mw.
type mw struct {
	e      *engine.MW
	domain *pd
}

// softMW has the fields of struct soft_mw, in ring.h.
type softMW struct {
	libibverbs.Mw
	id uint64
}

func init() {
	verbs.AllocMw = func(p *libibverbs.Pd, kind libibverbs.MwType) (*libibverbs.Mw, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		domain := l.domain(p)
		if domain == nil {
			return nil, syscall.EINVAL
		}
		e, err := domain.e.AllocMW(kind)
		if err != nil {
			return nil, errno(err)
		}
		w := alloc[softMW]()
		w.id = e.Handle()
		c := &w.Mw
		c.Context, c.Pd, c.Rkey, c.Type = p.Context, p, e.Key(), kind
		l.mws[c] = &mw{e, domain}
		domain.users++
		return c, 0
	}
	verbs.DeallocMw = func(c *libibverbs.Mw) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.deallocMW(c)
	}
}

func (l *library) deallocMW(c *libibverbs.Mw) syscall.Errno {
	w := l.mws[c]
	if w == nil {
		return syscall.EINVAL
	}
	if err := w.e.Dealloc(); err != nil {
		return errno(err)
	}
	delete(l.mws, c)
	w.domain.users--
	free(c)
	return 0
}
