// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// An import of device memory has the bytes of the original, and regions of its
// own.
func TestImportedDeviceMemory(t *testing.T) {
	_, err := ibverbs.Devices() // the device's goroutines are no leak
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	closing := func(c interface{ Close() error }) { t.Cleanup(func() { require.NoError(t, c.Close()) }) }
	device, err := ibverbs.Open("")
	require.NoError(t, err)
	closing(device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	closing(pd)
	dm, err := devmem.Alloc(device, 64, 0)
	require.NoError(t, err)
	closing(dm)
	file, err := share.ExportDevice(device)
	require.NoError(t, err)
	second, err := share.ImportDevice(file)
	require.NoError(t, err)
	closing(second)
	require.NoError(t, file.Close())
	export, err := dm.Export()
	require.NoError(t, err)
	imported, err := devmem.Import(second, export)
	require.NoError(t, err)
	closing(imported)
	_, err = dm.WriteAt([]byte("hello..."), 8)
	require.NoError(t, err)
	got := make([]byte, 8)
	_, err = imported.ReadAt(got, 8)
	require.NoError(t, err)
	require.Equal(t, "hello...", string(got))

	export.Len += 64 // the device knows better
	longer, err := devmem.Import(second, export)
	require.NoError(t, err)
	closing(longer)
	_, err = longer.ReadAt(make([]byte, 8), 60)
	require.ErrorIs(t, err, syscall.EFAULT)

	handle, err := share.ExportPD(pd)
	require.NoError(t, err)
	domain, err := share.ImportPD(second, handle)
	require.NoError(t, err)
	closing(domain)
	mr, err := imported.Register(domain, 0, 64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	closing(mr)
	host, err := pd.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	closing(host)
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	require.NoError(t, err)
	closing(cq)
	qp, err := pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1})
	require.NoError(t, err)
	closing(qp)
	self, err := qp.Addr(ibverbs.QPAddrConfig{})
	require.NoError(t, err)
	require.NoError(t, qp.ConnectTo(self, self, ibverbs.ConnectConfig{}))
	copy(host.Bytes(), "by request")
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Write(1, mr.Remote().Sub(0, 8), ibverbs.SendSignaled, host.Sub(0, 8)))
	_, err = qp.PostSend(batch)
	require.NoError(t, err)
	wcs := make([]ibverbs.WC, 1)
	for n := 0; n == 0; {
		n, err = cq.Spin(wcs, ibverbs.MaxSpin)
		require.NoError(t, err)
	}
	require.NoError(t, wcs[0].Err())
	_, err = dm.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, "by reque", string(got))
	require.ErrorIs(t, dm.Close(), syscall.EBUSY)
}
