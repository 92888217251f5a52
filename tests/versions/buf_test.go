// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// testBuf takes a buffer of the driver's, which came with rdma-core 64.
func testBuf(t *testing.T, version string) {
	c, err := ibverbs.Open(testdevice.Require(t).Name)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	pd, err := c.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	buf, err := devmem.AllocBuf(pd, bufSize)
	if version == "44.0" {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_alloc_buf")
		return
	}
	require.NoError(t, err)
	clear(buf.Bytes())
	mr, err := buf.Register(100, bufSize-100, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	require.Len(t, mr.Bytes(), bufSize-100)
	require.NotZero(t, mr.LKey())
	require.ErrorIs(t, buf.Close(), syscall.EBUSY)
	_, err = buf.ExportDMABuf()
	require.ErrorIs(t, err, syscall.ENODATA, "is ordinary memory")
	require.NoError(t, mr.Close())
	require.NoError(t, buf.Close())
}
