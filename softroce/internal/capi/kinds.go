// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// kind is a kind of objects of contexts.
type kind struct {
	// destroy destroys the objects of the contexts. It leaves what objects
	// of other contexts use.
	destroy func(l *library, contexts []*libibverbs.Context)
	// left reports whether the context has an object.
	left func(l *library, c *libibverbs.Context) bool
}

// kindOf returns the kind of the objects in a map. contextOf returns the
// context of an object.
func kindOf[T, O any](
	objects func(l *library) map[*T]O, contextOf func(o *T) *libibverbs.Context, destroy func(l *library, o *T) syscall.Errno,
) kind {
	return kind{
		destroy: func(l *library, contexts []*libibverbs.Context) {
			for o := range objects(l) {
				if slices.Contains(contexts, contextOf(o)) {
					destroy(l, o)
				}
			}
		},
		left: func(l *library, c *libibverbs.Context) bool {
			for o := range objects(l) {
				if contextOf(o) == c {
					return true
				}
			}
			return false
		},
	}
}

// kinds has all kinds of objects. An object comes before those on which it
// depends.
var kinds = []kind{
	kindOf(func(l *library) map[*libibverbs.Ah]*ah { return l.ahs },
		func(o *libibverbs.Ah) *libibverbs.Context { return o.Context }, (*library).destroyAH),
	kindOf(func(l *library) map[*libibverbs.Qp]*qp { return l.qps },
		func(o *libibverbs.Qp) *libibverbs.Context { return o.Context }, (*library).closeQP),
	kindOf(func(l *library) map[*libibverbs.CompCntr]*compCounter { return l.counters },
		func(o *libibverbs.CompCntr) *libibverbs.Context { return o.Context }, (*library).closeCounter),
	kindOf(func(l *library) map[*libibverbs.Srq]*srq { return l.srqs },
		func(o *libibverbs.Srq) *libibverbs.Context { return o.Context }, (*library).destroySRQ),
	kindOf(func(l *library) map[*libibverbs.Xrcd]*xrcd { return l.xrcds },
		func(o *libibverbs.Xrcd) *libibverbs.Context { return o.Context }, (*library).closeXRCD),
	kindOf(func(l *library) map[*libibverbs.Cq]*cq { return l.cqs },
		func(o *libibverbs.Cq) *libibverbs.Context { return o.Context }, (*library).destroyCQ),
	kindOf(func(l *library) map[*libibverbs.CompChannel]*channel { return l.channels },
		func(o *libibverbs.CompChannel) *libibverbs.Context { return o.Context }, (*library).destroyChannel),
	kindOf(func(l *library) map[*libibverbs.Mw]*mw { return l.mws },
		func(o *libibverbs.Mw) *libibverbs.Context { return o.Context }, (*library).deallocMW),
	kindOf(func(l *library) map[*libibverbs.Mr]*mr { return l.mrs },
		func(o *libibverbs.Mr) *libibverbs.Context { return o.Context }, (*library).closeMR),
	kindOf(func(l *library) map[*libibverbs.Dm]*dm { return l.dms },
		func(o *libibverbs.Dm) *libibverbs.Context { return o.Context }, (*library).closeDM),
	kindOf(func(l *library) map[*libibverbs.Dmah]*dmah { return l.dmahs },
		func(o *libibverbs.Dmah) *libibverbs.Context { return o.Context }, (*library).closeDmah),
	kindOf(func(l *library) map[*libibverbs.Pd]*pd { return l.pds },
		func(o *libibverbs.Pd) *libibverbs.Context { return o.Context }, (*library).closeParentDomain),
	kindOf(func(l *library) map[*libibverbs.Td]*td { return l.tds },
		func(o *libibverbs.Td) *libibverbs.Context { return o.Context }, (*library).deallocTD),
	kindOf(func(l *library) map[*libibverbs.Pd]*pd { return l.pds },
		func(o *libibverbs.Pd) *libibverbs.Context { return o.Context }, (*library).closePD),
}

// destroyObjects destroys the objects of contexts. It leaves those that other
// contexts of the same file use.
func (l *library) destroyObjects(contexts ...*libibverbs.Context) {
	for _, k := range kinds {
		k.destroy(l, contexts)
	}
}

// hasLeft reports whether objects of a context are left that its end could not
// destroy.
func (l *library) hasLeft(c *libibverbs.Context) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool { return k.left(l, c) })
}
