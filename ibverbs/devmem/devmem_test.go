// SPDX-License-Identifier: Apache-2.0

package devmem_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Nil and zero objects answer with an error.
func TestNotOpened(t *testing.T) {
	type objects struct {
		device *ibverbs.Device
		pd     *ibverbs.PD
		dm     *devmem.DM
		buf    *devmem.Buf
		handle *devmem.DMAHandle
	}
	zero := objects{new(ibverbs.Device), new(ibverbs.PD), new(devmem.DM), new(devmem.Buf), new(devmem.DMAHandle)}
	for name, call := range map[string]func(objects) error{
		"Alloc":                  func(o objects) error { return failed(devmem.Alloc(o.device, 64, 0)) },
		"Import":                 func(o objects) error { return failed(devmem.Import(o.device, devmem.Export{Len: 64})) },
		"AllocDMAHandle":         func(o objects) error { return failed(devmem.AllocDMAHandle(o.device, devmem.DMAHandleConfig{})) },
		"DM.ReadAt":              func(o objects) error { return failed(o.dm.ReadAt(nil, 0)) },
		"DM.WriteAt":             func(o objects) error { return failed(o.dm.WriteAt(nil, 0)) },
		"DM.ExportDMABuf":        func(o objects) error { return failed(o.dm.ExportDMABuf()) },
		"DM.Export":              func(o objects) error { return failed(o.dm.Export()) },
		"DM.Register":            func(o objects) error { return failed(o.dm.Register(o.pd, 0, 64, 0)) },
		"DM.Close":               func(o objects) error { return o.dm.Close() },
		"AllocBuf":               func(o objects) error { return failed(devmem.AllocBuf(o.pd, 64)) },
		"Buf.Register":           func(o objects) error { return failed(o.buf.Register(0, 64, 0)) },
		"Buf.ExportDMABuf":       func(o objects) error { return failed(o.buf.ExportDMABuf()) },
		"Buf.Close":              func(o objects) error { return o.buf.Close() },
		"DMAHandle.Close":        func(o objects) error { return o.handle.Close() },
		"DMAHandle.Register":     func(o objects) error { return failed(o.handle.Register(o.pd, make([]byte, 64), 0)) },
		"DMAHandle.RegisterIOVA": func(o objects) error { return failed(o.handle.RegisterIOVA(o.pd, make([]byte, 64), 0, 0)) },
		"DMAHandle.RegisterDMABuf": func(o objects) error {
			return failed(o.handle.RegisterDMABuf(o.pd, ibverbs.DMABuf{FD: 3, Length: 64}, 0))
		},
		"DMAHandle.RegisterImplicit": func(o objects) error { return failed(o.handle.RegisterImplicit(o.pd, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(zero), os.ErrInvalid)
			require.ErrorIs(t, call(objects{}), os.ErrInvalid)
		})
	}
}

// A device without memory of its own, imports or handles says so.
func TestUnsupported(t *testing.T) {
	found := testdevice.RequireSoftware(t)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	if !found.Has(t, testdevice.DeviceMemory) {
		err := failed(devmem.Alloc(device, 4096, 0))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_alloc_dm (4096 bytes of "+found.Name)
	}
	err := failed(devmem.Import(device, devmem.Export{Handle: 1 << 31, Len: 4096}))
	want := error(errors.ErrUnsupported)
	if found.Has(t, testdevice.Imports) {
		want = syscall.EINVAL
	}
	require.ErrorIs(t, err, want)
	require.ErrorContains(t, err, fmt.Sprintf("ibv_import_dm (DM %d of 4096 bytes of %s", 1<<31, found.Name))
	if !testdevice.Soft() {
		require.ErrorIs(t, failed(devmem.AllocDMAHandle(device, devmem.DMAHandleConfig{})), errors.ErrUnsupported)
	}
}

// A library from rdma-core 64 on has buffers for any device; one before that
// says so.
func TestBufOfDevice(t *testing.T) {
	found := testdevice.Require(t)
	testdevice.NoLeaks(t)
	device := must(ibverbs.Open(found.Name))(t)
	pd := must(device.AllocPD())(t)
	made, err := devmem.AllocBuf(pd, 8192)
	var old *ibverbs.SymbolError
	if errors.As(err, &old) {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "ibv_alloc_buf")
		require.ErrorContains(t, err, "64")
		return
	}
	buf := must(made, err)(t)
	channel := must(device.CreateCompChannel())(t)
	cq := must(device.CreateCQ(ibverbs.CQConfig{CompQueue: 2, Channel: channel}))(t)
	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1}))(t)
	to := must(pd.Alloc(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	from := must(buf.Register(100, 4096, ibverbs.AccessLocalWrite))(t)
	require.ErrorIs(t, buf.Close(), syscall.EBUSY)

	self, err := qp.Addr(ibverbs.QPAddrConfig{Port: found.Port})
	require.NoError(t, err)
	require.NoError(t, qp.ConnectTo(self, self, ibverbs.ConnectConfig{Access: ibverbs.AccessRemoteWrite}))
	for i := range from.Bytes() {
		from.Bytes()[i] = byte(i + i>>8)
	}
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Write(1, to.Remote(), ibverbs.SendSignaled, from.All()))
	_, err = qp.PostSend(batch)
	require.NoError(t, err)
	wc, err := cq.WaitOne(t.Context())
	require.NoError(t, err)
	require.NoError(t, wc.Err())
	require.Equal(t, from.Bytes(), to.Bytes())
	_, err = buf.ExportDMABuf()
	require.True(t, errors.Is(err, syscall.ENODATA) || errors.Is(err, errors.ErrUnsupported), "%v", err)
}

// must fails the test for an error and returns the value, which it closes at
// the end of the test.
func must[T interface{ Close() error }](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		return v
	}
}

// failed returns the error of a call that returns a value too.
func failed[T any](_ T, err error) error { return err }
