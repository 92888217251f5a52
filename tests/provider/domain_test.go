// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// parentDomainAttr returns what the only call had.
func (r *rig) parentDomainAttr() libibverbs.ParentDomainInitAttr {
	r.t.Helper()
	return *fakelib.Struct[libibverbs.ParentDomainInitAttr](r.p.Only("ibv_alloc_parent_domain"), 1)
}

func (r *rig) parentDomain(td *ibverbs.TD) *ibverbs.PD {
	r.t.Helper()
	domain := keep(r.t, must(r.pd.AllocParentDomain(td))(r.t))
	r.p.Forget()
	return domain
}

// A queue can be made on a parent domain, which lives as long as the queue.
func TestCQOnParentDomain(t *testing.T) {
	r := open(t)
	td := keep(t, must(r.c.AllocTD())(t))
	r.p.Forget()
	domain := keep(t, must(r.pd.AllocParentDomain(td))(t))
	require.Equal(t, libibverbs.ParentDomainInitAttr{Pd: r.pd.Raw(), Td: td.Raw()}, r.parentDomainAttr())

	const flagsMask, domainMask = libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS, libibverbs.IBV_CQ_INIT_ATTR_MASK_PD
	for name, tt := range map[string]struct {
		config ibverbs.CQConfig
		want   libibverbs.CqInitAttrEx
	}{
		"domain": {
			ibverbs.CQConfig{CompQueue: 7, ParentDomain: domain, Vector: 2},
			libibverbs.CqInitAttrEx{Cqe: 7, CompVector: 2, CompMask: domainMask, ParentDomain: domain.Raw()},
		},
		"all": {
			ibverbs.CQConfig{CompQueue: 7, ParentDomain: domain, SingleThreaded: true, IgnoreOverrun: true, Fields: ibverbs.WCWithTMInfo},
			libibverbs.CqInitAttrEx{
				Cqe: 7, CompMask: flagsMask | domainMask, ParentDomain: domain.Raw(), Flags: 3,
				WcFlags: uint64(ibverbs.WCWithTMInfo),
			},
		},
		"single-threaded": {
			ibverbs.CQConfig{CompQueue: 7, SingleThreaded: true},
			libibverbs.CqInitAttrEx{Cqe: 7, CompMask: flagsMask, Flags: libibverbs.IBV_CREATE_CQ_ATTR_SINGLE_THREADED},
		},
		"ignore overrun": {
			ibverbs.CQConfig{CompQueue: 7, IgnoreOverrun: true},
			libibverbs.CqInitAttrEx{Cqe: 7, CompMask: flagsMask, Flags: libibverbs.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cq := must(r.c.CreateCQ(tt.config))(t)
			call := r.p.Only("ibv_create_cq_ex")
			require.Equal(t, address(r.c.Raw()), call.Arg(0))
			require.Equal(t, tt.want, *fakelib.Struct[libibverbs.CqInitAttrEx](call, 1))
			if tt.config.ParentDomain != nil {
				require.ErrorContains(t, domain.Close(), "close first: CQ ")
				require.ErrorIs(t, domain.Close(), syscall.EBUSY)
				require.Empty(t, r.p.Names())
			}
			require.Zero(t, must(cq.Poll(make([]ibverbs.WC, 1)))(t))
			if tt.config.Fields == 0 {
				r.p.Only("ibv_poll_cq")
			} else {
				r.p.Only("ibv_start_poll")
			}
			r.p.Next("ibv_destroy_cq", fakelib.Returns(int64(syscall.EBUSY), 0))
			require.ErrorIs(t, cq.Close(), syscall.EBUSY)
			if tt.config.ParentDomain != nil {
				require.ErrorIs(t, domain.Close(), syscall.EBUSY, "the queue lives")
			}
			require.NoError(t, cq.Close())
			r.p.Forget()
		})
	}
}

func TestCQOnParentDomainRefused(t *testing.T) {
	r := open(t)
	domain := r.parentDomain(nil)
	other := keep(t, must(ibverbs.Open("fake0"))(t))
	r.p.Forget()
	create := func(c *ibverbs.Device, domain *ibverbs.PD) error {
		_, err := c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, ParentDomain: domain})
		return err
	}
	require.ErrorIs(t, create(r.c, r.pd), syscall.EINVAL)
	require.ErrorContains(t, create(r.c, r.pd), "ibv_create_cq (fake0): ParentDomain is PD ")
	require.ErrorContains(t, create(r.c, r.pd), ", which is not a parent domain")
	require.ErrorIs(t, create(other, domain), syscall.EINVAL)
	require.ErrorContains(t, create(other, domain), "belongs to another open device")
	require.ErrorIs(t, create(r.c, &ibverbs.PD{}), os.ErrInvalid)
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_create_cq_ex", fakelib.Returns(0, syscall.EOPNOTSUPP))
	require.ErrorIs(t, create(r.c, domain), errors.ErrUnsupported)
	require.NoError(t, domain.Close(), "nothing is on it")
	require.ErrorIs(t, create(r.c, domain), os.ErrClosed)
}
