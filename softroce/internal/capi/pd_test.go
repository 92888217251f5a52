// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// parentDomain returns a parent domain of the protection domain p. t may be
// nil.
func (r *rig) parentDomain(p *libibverbs.Pd, t *libibverbs.Td) (*libibverbs.Pd, error) {
	a := alloc[libibverbs.ParentDomainInitAttr]()
	defer free(a)
	a.Pd, a.Td = p, t
	return libibverbs.AllocParentDomain(r.c, a)
}

// A domain outlives what was created with it, whichever call created it.
func TestDomainsAreBusy(t *testing.T) {
	r := newRig(t)
	pd, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	td, err := libibverbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	require.NoError(t, err)
	parent, err := r.parentDomain(pd, td)
	require.NoError(t, err)
	require.Equal(t, pd.Handle, parent.Handle)
	require.NotEqual(t, pd.Handle, r.pd.Handle)
	r.pd = parent
	size := uint64(len(r.memory))
	cqAttr := alloc[libibverbs.CqInitAttrEx]()
	defer free(cqAttr)
	cqAttr.Cqe, cqAttr.CompMask, cqAttr.ParentDomain = 4, libibverbs.IBV_CQ_INIT_ATTR_MASK_PD, parent
	srqAttr := alloc[libibverbs.SrqInitAttr]()
	defer free(srqAttr)
	srqAttr.Attr = libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}
	cq := r.cq(4)
	for name, create := range map[string]func() func() error{
		"region": func() func() error {
			mr, err := libibverbs.RegMr(parent, start(r.memory), size, 0)
			require.NoError(t, err)
			require.Equal(t, parent, mr.Pd)
			return func() error { return libibverbs.DeregMr(mr) }
		},
		"region from another domain": func() func() error {
			mr, err := libibverbs.RegMr(r.mr.Pd, start(r.memory), size, 0)
			require.NoError(t, err)
			require.NoError(t, libibverbs.ReregMr(mr, libibverbs.IBV_REREG_MR_CHANGE_PD, parent, nil, 0, 0))
			return func() error { return libibverbs.DeregMr(mr) }
		},
		"window": func() func() error {
			mw, err := libibverbs.AllocMw(parent, libibverbs.IBV_MW_TYPE_1)
			require.NoError(t, err)
			return func() error { return libibverbs.DeallocMw(mw) }
		},
		"address handle": func() func() error { ah := r.ah(); return func() error { return libibverbs.DestroyAh(ah) } },
		"queue pair": func() func() error {
			qp := r.qp(libibverbs.IBV_QPT_RC, cq, 1)
			require.Equal(t, parent, qp.Pd)
			return func() error { return libibverbs.DestroyQp(qp) }
		},
		"shared receive queue": func() func() error {
			srq, err := libibverbs.CreateSrq(parent, srqAttr)
			require.NoError(t, err)
			return func() error { return libibverbs.DestroySrq(srq) }
		},
		"completion queue": func() func() error {
			cq, err := libibverbs.CreateCqEx(r.c, cqAttr)
			require.NoError(t, err)
			return func() error { return libibverbs.DestroyCq((*libibverbs.Cq)(unsafe.Pointer(cq))) }
		},
	} {
		destroy := create()
		for range 2 {
			require.ErrorIs(t, libibverbs.DeallocPd(parent), syscall.EBUSY, name)
			require.ErrorIs(t, libibverbs.DeallocTd(td), syscall.EBUSY, name)
			require.ErrorIs(t, libibverbs.DeallocPd(pd), syscall.EBUSY, name)
		}
		require.NoError(t, destroy(), name)
		require.NoError(t, libibverbs.DeallocPd(parent), name)
		parent, err = r.parentDomain(pd, td)
		require.NoError(t, err)
		r.pd, cqAttr.ParentDomain = parent, parent
	}
	mr, err := libibverbs.RegMr(parent, start(r.memory), size, 0)
	require.NoError(t, err)
	require.NoError(t, libibverbs.ReregMr(mr, libibverbs.IBV_REREG_MR_CHANGE_PD, pd, nil, 0, 0))
	require.NoError(t, libibverbs.DeallocPd(parent), "the region is in the protection domain now")
	require.NoError(t, libibverbs.DeallocTd(td))
	require.ErrorIs(t, libibverbs.DeallocPd(pd), syscall.EBUSY)
	require.NoError(t, libibverbs.DeregMr(mr))
	require.NoError(t, libibverbs.DeallocPd(pd))
	r.pd = r.mr.Pd
}

// What a parent domain cannot be made from is refused, and leaves no users
// behind.
func TestParentDomainRefused(t *testing.T) {
	r, other := newRig(t), newRig(t)
	td, err := libibverbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	require.NoError(t, err)
	foreign, err := libibverbs.AllocTd(other.c, &libibverbs.TdInitAttr{})
	require.NoError(t, err)
	parent, err := r.parentDomain(r.pd, nil)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		attr libibverbs.ParentDomainInitAttr
		want error
	}{
		"no domain":                          {libibverbs.ParentDomainInitAttr{Td: td}, syscall.EINVAL},
		"parent domain":                      {libibverbs.ParentDomainInitAttr{Pd: parent, Td: td}, syscall.EINVAL},
		"domain of another context":          {libibverbs.ParentDomainInitAttr{Pd: other.pd, Td: td}, syscall.EINVAL},
		"thread domain of another context":   {libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: foreign}, syscall.EINVAL},
		"allocators without functions":       {libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: td, CompMask: libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS}, syscall.EINVAL},
		"attribute of a version yet to come": {libibverbs.ParentDomainInitAttr{Pd: r.pd, Td: td, CompMask: 1 << 20}, syscall.EOPNOTSUPP},
	} {
		a := alloc[libibverbs.ParentDomainInitAttr]()
		*a = tt.attr
		_, err := libibverbs.AllocParentDomain(r.c, a)
		require.ErrorIs(t, err, tt.want, name)
		free(a)
	}
	_, err = libibverbs.AllocTd(r.c, &libibverbs.TdInitAttr{CompMask: 1})
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	for _, domain := range []*libibverbs.Pd{nil, r.pd, other.pd} {
		a := alloc[libibverbs.CqInitAttrEx]()
		a.Cqe, a.CompMask, a.ParentDomain = 4, libibverbs.IBV_CQ_INIT_ATTR_MASK_PD, domain
		_, err := libibverbs.CreateCqEx(r.c, a)
		require.ErrorIs(t, err, syscall.EINVAL)
		free(a)
	}
	require.NoError(t, libibverbs.DeallocPd(parent))
	require.NoError(t, libibverbs.DeallocTd(td))
	require.Equal(t, syscall.EINVAL, verbs.DeallocTd(td))
	require.Equal(t, syscall.EINVAL, verbs.DeallocPd(parent))

	a := alloc[libibverbs.ParentDomainInitAttr]()
	defer free(a)
	*a = libibverbs.ParentDomainInitAttr{
		Pd: r.pd, CompMask: libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT | libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
	}
	_, err = libibverbs.AllocParentDomain(r.c, a)
	require.NoError(t, err)
}

// A parent domain is the protection domain: queue pairs of the one use regions
// of the other, and those of another domain they do not.
func TestParentDomainSharesRegions(t *testing.T) {
	r := newRig(t)
	td, err := libibverbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	require.NoError(t, err)
	own := r.pd
	another, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		of   *libibverbs.Pd
		want libibverbs.WcStatus
	}{
		"the region's domain": {own, libibverbs.IBV_WC_SUCCESS},
		"another domain":      {another, libibverbs.IBV_WC_LOC_PROT_ERR},
	} {
		r.pd, err = r.parentDomain(tt.of, td)
		require.NoError(t, err)
		cq := r.cq(8)
		a, b := r.qp(libibverbs.IBV_QPT_RC, cq, 4), r.qp(libibverbs.IBV_QPT_RC, cq, 4)
		r.ready(a, b.QpNum)
		r.ready(b, a.QpNum)
		r.postRecv(b, r.part(0, 64))
		r.postSend(a, r.part(64, 64), nil, 0)
		require.Equal(t, tt.want, r.poll(cq, 1)[0].Status, name)
	}
	r.pd = own
}

// A device may lack parent domains.
func TestNoParentDomains(t *testing.T) {
	if !limitedTo(t, "parent-domains=0") {
		return
	}
	r := newRig(t)
	_, err := libibverbs.AllocTd(r.c, &libibverbs.TdInitAttr{})
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = r.parentDomain(r.pd, nil)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
}
