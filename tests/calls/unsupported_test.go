// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
)

// missing are functions that the libraries of this package lack, as older
// ones do.
var missing = []string{"rdma_establish", "ibv_reg_mr_ex", "_ibv_query_comp_cntr_caps", "_ibv_query_gid_ex", "repoll_create"}

func TestMissingFunction(t *testing.T) {
	l := library(t, "ibv_reg_mr_ex")
	o := l.Object("ibv_reg_mr_ex")
	for _, tt := range []struct {
		err  error
		want ibverbs.SymbolError
		text string
	}{
		{
			cm.Establish((*cm.CmId)(o)),
			ibverbs.SymbolError{Symbol: "rdma_establish", Library: "librdmacm.so.1"},
			"rdma_establish: the installed librdmacm.so.1 does not have it",
		},
		{
			second(cm.RepollCreate(0)),
			ibverbs.SymbolError{Symbol: "repoll_create", Library: "librdmacm.so.1", Release: "65", Node: "RDMACM_1.5"},
			"repoll_create: the installed librdmacm.so.1 does not have it; rdma-core 65 added it (RDMACM_1.5)",
		},
		{
			second(verbs.RegMrEx((*verbs.Pd)(o), (*verbs.MrInitAttr)(o))),
			ibverbs.SymbolError{Symbol: "ibv_reg_mr_ex", Library: "libibverbs.so.1", Release: "59", Node: "IBVERBS_1.15"},
			"ibv_reg_mr_ex: the installed libibverbs.so.1 does not have it; rdma-core 59 added it (IBVERBS_1.15)",
		},
		// These are functions of our own, which call one of the library.
		{
			verbs.QueryCompCntrCaps((*verbs.Context)(o), (*verbs.CompCntrCaps)(o)),
			ibverbs.SymbolError{Symbol: "ibv_query_comp_cntr_caps", Library: "libibverbs.so.1", Release: "65"},
			"ibv_query_comp_cntr_caps: the installed libibverbs.so.1 does not have it; rdma-core 65 added it",
		},
		{
			verbs.QueryGidEx((*verbs.Context)(o), 1, 0, (*verbs.GidEntry)(o), 0),
			ibverbs.SymbolError{Symbol: "ibv_query_gid_ex", Library: "libibverbs.so.1"},
			"ibv_query_gid_ex: the installed libibverbs.so.1 does not have it",
		},
	} {
		t.Run(tt.want.Symbol, func(t *testing.T) {
			require.EqualError(t, tt.err, tt.text)
			require.ErrorIs(t, tt.err, errors.ErrUnsupported)
			var e *ibverbs.SymbolError
			require.ErrorAs(t, tt.err, &e)
			require.Equal(t, tt.want, *e)
		})
	}
}

func second[T any](_ T, err error) error { return err }

// An object that was made without an operation, or whose provider has none,
// has NULL in its place. Functions without a result of their own say so too.
func TestMissingOperation(t *testing.T) {
	for _, function := range []string{
		"ibv_post_send", "ibv_poll_cq", "ibv_advise_mr", "ibv_alloc_null_mr", "ibv_start_poll", // with a result that says so
		"ibv_wc_read_byte_len", "ibv_wr_send",
	} {
		t.Run(function, func(t *testing.T) {
			l := library(t, function)
			l.Returns(0, 0)
			value, err := calls[function](l.Bare())
			_, times, _ := l.Called()
			require.Zero(t, times)
			requireZero(t, value)
			require.EqualError(t, err, function+": operation not supported")
			require.ErrorIs(t, err, syscall.EOPNOTSUPP)
			require.ErrorIs(t, err, errors.ErrUnsupported)
			var lacks *ibverbs.SymbolError
			require.NotErrorAs(t, err, &lacks)
		})
	}
}

// Where a provider has no ibv_poll_cq, libibverbs answers EOPNOTSUPP, which
// is 95, however many completions are asked for.
func TestPollUnsupported(t *testing.T) {
	const eopnotsupp = int(syscall.EOPNOTSUPP)
	l := library(t, "ibv_poll_cq")
	cq := (*verbs.Cq)(l.Object("ibv_poll_cq"))
	wcs := make([]verbs.Wc, 2*eopnotsupp)
	for _, entries := range []int{1, eopnotsupp - 1, eopnotsupp, eopnotsupp + 1, len(wcs)} {
		l.Returns(int64(eopnotsupp), 0)
		n, err := verbs.PollCq(cq, int32(entries), &wcs[0])
		require.ErrorIs(t, err, syscall.EOPNOTSUPP, "%d entries", entries)
		require.EqualError(t, err, "ibv_poll_cq: operation not supported")
		require.Zero(t, n)
	}
	for _, entries := range []int{eopnotsupp, len(wcs)} {
		l.Returns(int64(eopnotsupp), 0)
		l.ThenReturns(0) // as a provider does when it is asked for none
		n, err := verbs.PollCq(cq, int32(entries), &wcs[0])
		require.NoError(t, err, "%d entries", entries)
		require.Equal(t, eopnotsupp, n)
	}
}

// repoll_wait's errnos cannot be told from as many events where there is room.
func TestWaitIsAmbiguous(t *testing.T) {
	l := library(t, "repoll_wait")
	events := l.Object("repoll_wait")
	for room, want := range map[int32]error{21: syscall.EINVAL, 22: nil, 64: nil} {
		l.Returns(22, 0)
		n, err := cm.RepollWait(3, events, room, 0)
		require.ErrorIs(t, err, want)
		if want == nil {
			require.Equal(t, 22, n)
		}
	}
}
