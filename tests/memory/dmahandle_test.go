// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
)

// newHandle succeeds in C.
func (r *rig) newHandle(config devmem.DMAHandleConfig) (*devmem.DMAHandle, error) {
	r.t.Helper()
	gives(r, object[libibverbs.Dmah](r.t))
	return devmem.AllocDMAHandle(r.c, config)
}

func TestDMAHandle(t *testing.T) {
	r := newRig(t)
	h, err := r.newHandle(devmem.DMAHandleConfig{
		CPU: new(3), ProcessingHint: new(2), MemType: new(devmem.TPHPersistent),
	})
	require.NoError(t, err)
	r.requireCalled("ibv_alloc_dmah", address(r.c.Raw()))

	raw := gives(r, object[libibverbs.Mr](t))
	raw.Lkey, raw.Rkey = 1, 2
	memory := make([]byte, 100)
	mr, err := h.Register(r.pd, memory, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	r.requireCalled("ibv_reg_mr_ex", address(r.pd.Raw()))
	require.Same(t, &memory[0], &mr.Bytes()[0])
	require.Equal(t, ibverbs.RemoteBuffer{Addr: uint64(uintptr(unsafe.Pointer(&memory[0]))), RKey: 2, Len: 100}, mr.Remote())
	require.EqualError(t, h.Close(), "DMA handle of fake0: close first: MR 0x1 of fake0")

	_, err = h.Register(r.pd, nil, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = (*devmem.DMAHandle)(nil).Register(r.pd, memory, 0)
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = h.Register(r.pd, memory, ibverbs.AccessRemoteWrite)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (PD 0 of fake0): AccessRemoteWrite without AccessLocalWrite")
	r.lib.Returns(0, int32(syscall.ENOMEM))
	_, err = h.Register(r.pd, memory, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (100 bytes with DMA handle of fake0 on PD 0 of fake0)")
	r.closes(mr, h, r.pd)
	require.NoError(t, h.Close())
	_, err = h.Register(r.newPD(), memory, 0)
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestDMAHandleRefused(t *testing.T) {
	r := newRig(t)
	for text, config := range map[string]devmem.DMAHandleConfig{
		"ibv_alloc_dmah (fake0): CPU is -1, not from 0 to 4294967295":   {CPU: new(-1)},
		"ibv_alloc_dmah (fake0): ProcessingHint is 4, not from 0 to 3":  {ProcessingHint: new(4)},
		"ibv_alloc_dmah (fake0): ProcessingHint is -1, not from 0 to 3": {ProcessingHint: new(-1)},
	} {
		_, err := r.newHandle(config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, text)
	}
	r.closes(r.pd)
}
