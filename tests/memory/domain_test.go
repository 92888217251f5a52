// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

func (r *rig) newTD() *ibverbs.TD {
	r.t.Helper()
	r.has("ibv_alloc_td")
	r.has("ibv_dealloc_td")
	raw := gives(r, object[libibverbs.Td](r.t))
	td, err := r.c.AllocTD()
	require.NoError(r.t, err)
	require.Same(r.t, raw, td.Raw())
	raw.Context = r.c.Raw()
	return td
}

// A parent domain keeps what it is made of, and does what a domain does.
func TestParentDomain(t *testing.T) {
	r := newRig(t)
	td := r.newTD()
	r.has("ibv_alloc_parent_domain")
	raw := gives(r, object[libibverbs.Pd](t))
	domain, err := r.pd.AllocParentDomain(td)
	require.NoError(t, err)
	r.requireCalled("ibv_alloc_parent_domain", address(r.c.Raw()))
	raw.Context = r.c.Raw()
	require.Same(t, r.pd, domain.Parent())
	require.Nil(t, r.pd.Parent())
	require.Same(t, r.c, domain.Device())
	require.EqualError(t, td.Close(), "TD of fake0: close first: parent domain of PD 0 of fake0")
	require.EqualError(t, r.pd.Close(), "PD 0 of fake0: close first: parent domain of PD 0 of fake0")
	_, err = domain.AllocParentDomain(nil)
	require.ErrorIs(t, err, syscall.EINVAL)

	gives(r, object[libibverbs.Mr](t))
	mr, err := domain.Alloc(64, 0)
	require.NoError(t, err)
	r.requireCalled("ibv_reg_mr", address(raw))
	require.Same(t, domain, mr.PD())
	require.ErrorIs(t, domain.Close(), syscall.EBUSY)
	r.closes(mr, domain, td, r.pd)

	_, err = r.pd.AllocParentDomain(nil)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = r.newPD().AllocParentDomain(td)
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestParentDomainWithoutThreads(t *testing.T) {
	r := newRig(t)
	r.has("ibv_alloc_parent_domain")
	r.lib.Returns(0, int32(syscall.EOPNOTSUPP))
	_, err := r.pd.AllocParentDomain(nil)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_alloc_parent_domain (PD 0 of fake0)")
	gives(r, object[libibverbs.Pd](t))
	domain, err := r.pd.AllocParentDomain(nil)
	require.NoError(t, err)
	r.closes(domain, r.pd)
}
