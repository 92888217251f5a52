// SPDX-License-Identifier: Apache-2.0

package devmem_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Memory with a DMA handle serves requests, and its region keeps the handle.
func TestDMAHandle(t *testing.T) {
	if !testdevice.Soft() {
		t.Skip("of the devices for tests, only the one in user space has DMA handles")
	}
	r := newRig(t)
	_, err := devmem.AllocDMAHandle(r.device, devmem.DMAHandleConfig{})
	require.ErrorIs(t, err, syscall.EINVAL, "a processing hint is missing")
	_, err = devmem.AllocDMAHandle(r.device, devmem.DMAHandleConfig{CPU: new(1 << 20), ProcessingHint: new(1), MemType: new(devmem.TPHVolatile)})
	require.ErrorIs(t, err, syscall.EPERM, "the process may not run there")
	handle := must(devmem.AllocDMAHandle(r.device, devmem.DMAHandleConfig{ProcessingHint: new(2)}))(t)
	memory := make([]byte, 4096)
	_, err = handle.Register(r.pd, memory, ibverbs.AccessLocalWrite|ibverbs.AccessOnDemand)
	require.Error(t, err)
	mr := must(handle.Register(r.pd, memory, ibverbs.AccessLocalWrite))(t)
	require.ErrorIs(t, handle.Close(), syscall.EBUSY)
	copy(r.host.Bytes(), "hello")
	wcs := r.post(1, func(b *ibverbs.SendBatch) error {
		return b.Read(1, r.host.Remote().Sub(0, 5), ibverbs.SendSignaled, mr.Sub(0, 5))
	})
	require.NoError(t, wcs[0].Err())
	require.Equal(t, "hello", string(memory[:5]))
}
