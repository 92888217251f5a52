// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

const changeAll = uint64(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION | libibverbs.IBV_REREG_MR_CHANGE_PD |
	libibverbs.IBV_REREG_MR_CHANGE_ACCESS)

// Every code of ibv_rereg_mr leaves the region as the manual says.
func TestReregCodes(t *testing.T) {
	for _, tt := range []struct {
		code              int64
		errno             syscall.Errno
		changed, unusable bool
	}{
		{code: 0, errno: syscall.ENOSPC, changed: true},
		{code: -1, errno: syscall.EINVAL},
		{code: -2, errno: syscall.ENOMEM},
		{code: -3, errno: syscall.ENOMEM, changed: true},
		{code: -4, errno: syscall.ENOMEM, unusable: true},
		{code: -4, errno: syscall.EOPNOTSUPP}, // a device without the operation
		{code: -5, errno: syscall.ENOMEM, unusable: true},
	} {
		t.Run(fmt.Sprintf("%d,%d", tt.code, tt.errno), func(t *testing.T) {
			r := newRig(t)
			mr, other := r.newMR(ibverbs.AccessLocalWrite), r.newPD()
			before, memory := mr.Bytes(), make([]byte, 100)
			access := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead
			if tt.changed {
				mr.Raw().Lkey, mr.Raw().Rkey = 3, 4
			}
			r.lib.Returns(tt.code, int32(tt.errno))
			err := mr.Rereg(ibverbs.ReregConfig{PD: other, Access: &access, Memory: memory})
			r.requireCalled("ibv_rereg_mr", address(mr.Raw()), changeAll, address(other.Raw()), address(&memory[0]), 100, uint64(access))

			var failure *ibverbs.ReregError
			require.Equal(t, tt.code != 0, errors.As(err, &failure))
			if failure != nil {
				require.ErrorIs(t, err, tt.errno)
				require.ErrorContains(t, err, "ibv_rereg_mr (MR 0x1 of fake0): ")
				require.Equal(t, tt.unusable, failure.Unusable())
			}
			switch {
			case tt.changed:
				require.Same(t, &memory[0], &mr.Bytes()[0])
				require.Equal(t, ibverbs.RemoteBuffer{Addr: address(&memory[0]), RKey: 4, Len: 100}, mr.Remote())
				require.EqualValues(t, 3, mr.LKey())
				require.Equal(t, access, mr.Access())
				require.Same(t, other, mr.PD())
				r.closes(r.pd)
				require.ErrorIs(t, other.Close(), syscall.EBUSY)
				r.closes(mr, other)
				return
			case tt.unusable:
				requireUnusable(t, mr)
				require.ErrorIs(t, other.Close(), syscall.EBUSY, "it may be there")
			default:
				require.Same(t, &before[0], &mr.Bytes()[0])
				require.Len(t, mr.Sub(4000, 96).Bytes(), 96)
				require.Equal(t, ibverbs.AccessLocalWrite, mr.Access())
				require.Same(t, r.pd, mr.PD())
				r.closes(other)
			}
			require.ErrorIs(t, r.pd.Close(), syscall.EBUSY)
			r.closes(mr, r.pd, other)
		})
	}
}

// requireUnusable tries all uses of a region but Close.
func requireUnusable(t *testing.T, mr *ibverbs.MR) {
	t.Helper()
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	_, remoteErr := mr.All().Remote()
	require.Nil(t, mr.All().Bytes())
	for name, err := range map[string]error{
		"send":   batch.Send(1, 0, mr.All()),
		"remote": remoteErr,
		"rereg":  mr.Rereg(ibverbs.ReregConfig{PD: mr.PD()}),
		"advise": mr.PD().Advise(ibverbs.AdvicePrefetch, false, mr.All()),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "MR 0x1 of fake0 can only be closed, because ibv_rereg_mr has failed", name)
	}
}

// What is not asked for is not given to C.
func TestReregParts(t *testing.T) {
	r := newRig(t)
	mr, other := r.newMR(0), r.newPD()
	memory := make([]byte, 8)
	access := ibverbs.AccessRemoteRead
	for _, tt := range []struct {
		config ibverbs.ReregConfig
		args   []uint64
	}{
		{ibverbs.ReregConfig{Memory: memory}, []uint64{1, 0, address(&memory[0]), 8, 0}},
		{ibverbs.ReregConfig{PD: other}, []uint64{2, address(other.Raw()), 0, 0, 0}},
		{ibverbs.ReregConfig{PD: other}, []uint64{2, address(other.Raw()), 0, 0, 0}}, // where it is already
		{ibverbs.ReregConfig{Access: &access}, []uint64{4, 0, 0, 0, uint64(access)}},
	} {
		r.lib.Returns(0, 0)
		require.NoError(t, mr.Rereg(tt.config))
		r.requireCalled("ibv_rereg_mr", append([]uint64{address(mr.Raw())}, tt.args...)...)
	}
	require.ErrorIs(t, other.Close(), syscall.EBUSY)
	r.closes(r.pd, mr, other)
}

// What cannot be right does not reach C.
func TestReregRefused(t *testing.T) {
	r := newRig(t)
	mr, closed := r.newMR(0), r.newPD()
	r.closes(closed)
	access := func(a ibverbs.AccessFlags) ibverbs.ReregConfig { return ibverbs.ReregConfig{Access: &a} }
	for name, tt := range map[string]struct {
		config ibverbs.ReregConfig
		want   error
		text   string
	}{
		"nothing":      {ibverbs.ReregConfig{}, syscall.EINVAL, "ibv_rereg_mr (MR 0x1 of fake0): PD, Access and Memory are all nil"},
		"no memory":    {ibverbs.ReregConfig{Memory: []byte{}}, syscall.EINVAL, "Memory is empty"},
		"closed PD":    {ibverbs.ReregConfig{PD: closed}, os.ErrClosed, "PD 0 of fake0"},
		"empty PD":     {ibverbs.ReregConfig{PD: new(ibverbs.PD)}, os.ErrInvalid, "is nil, or was not made"},
		"access":       {access(ibverbs.AccessRemoteWrite), syscall.EINVAL, "AccessRemoteWrite without AccessLocalWrite"},
		"zero based":   {access(ibverbs.AccessZeroBased), syscall.EINVAL, "AccessZeroBased"},
		"unknown flag": {access(1 << 31), syscall.EINVAL, "unknown access flags 0x80000000"},
	} {
		r.lib.Returns(0, 0)
		err := mr.Rereg(tt.config)
		require.ErrorIs(t, err, tt.want, name)
		require.ErrorContains(t, err, tt.text, name)
		_, times, _ := r.lib.Called()
		require.Zero(t, times, name)
	}
	r.closes(mr)
	require.ErrorIs(t, mr.Rereg(ibverbs.ReregConfig{PD: r.pd}), os.ErrClosed)
	require.ErrorIs(t, (*ibverbs.MR)(nil).Rereg(ibverbs.ReregConfig{}), os.ErrInvalid)
	r.closes(r.pd)
}
