//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// The clock is a count, which C splits up as seconds and nanoseconds.
func TestRawClock(t *testing.T) {
	r := open(t)
	r.p.Next("ibv_query_rt_values").Writes(1, 0, fakelib.Bytes(&libibverbs.ValuesEx{
		CompMask: 1, RawClock: libibverbs.Timespec{TvSec: 3, TvNsec: 7},
	}))
	require.EqualValues(t, 3_000_000_007, must(r.c.RawClock())(t))
	call := r.p.Only("ibv_query_rt_values")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.ValuesEx{CompMask: 1}, *fakelib.Struct[libibverbs.ValuesEx](call, 1))
	r.p.Next("ibv_query_rt_values").Writes(1, 0, fakelib.Bytes(&libibverbs.ValuesEx{}))
	_, err := r.c.RawClock()
	require.ErrorIs(t, err, errors.ErrUnsupported, "the device gives no value")
}

// A driver or a library that does not have the extended query gives what the
// basic one does.
func TestQueryDevice(t *testing.T) {
	basic := libibverbs.DeviceAttr{MaxQp: 5, PhysPortCnt: 2, DeviceCapFlags: 1<<31 | 1<<20}
	for name, prepare := range map[string]func(*libibverbs.VerbsContext, *fakelib.Provider){
		"not supported": func(_ *libibverbs.VerbsContext, p *fakelib.Provider) {
			p.Next("ibv_query_device_ex").Returns(int64(syscall.EOPNOTSUPP), 0)
		},
		"unknown to the kernel": func(_ *libibverbs.VerbsContext, p *fakelib.Provider) {
			p.Next("ibv_query_device_ex").Returns(int64(syscall.ENOSYS), 0)
		},
		"no operation":  func(v *libibverbs.VerbsContext, _ *fakelib.Provider) { v.QueryDeviceEx = nil },
		"older library": func(v *libibverbs.VerbsContext, _ *fakelib.Provider) { v.Sz = uint64(unsafe.Sizeof(uintptr(0))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			v := verbsContext(r.c)
			size, operation := v.Sz, v.QueryDeviceEx
			prepare(v, r.p)
			r.p.Next("ibv_query_device").Returns(0, 0).Writes(1, 0, fakelib.Bytes(&basic))
			attr := must(r.c.QueryDevice())(t)
			v.Sz, v.QueryDeviceEx = size, operation // which closing needs
			require.Equal(t, "ibv_query_device", r.p.Names()[len(r.p.Names())-1])
			require.Equal(t, ibverbs.DeviceAttr{MaxQP: 5, Ports: 2, Capabilities: 1<<31 | ibverbs.DeviceXRC}, attr)
		})
	}

	r := open(t)
	extended := libibverbs.DeviceAttrEx{DeviceCapFlagsEx: 1<<34 | 1<<20, PhysPortCntEx: 300, HcaCoreClock: 7}
	behind := unsafe.Sizeof(basic)
	r.p.Next("ibv_query_device_ex").Writes(2, behind, fakelib.Bytes(&extended)[behind:])
	attr := must(r.c.QueryDevice())(t)
	require.Equal(t, []any{"1.0", ibverbs.DeviceXRC | ibverbs.DeviceRawScatterFCS, 300, uint64(7)},
		[]any{attr.FirmwareVersion, attr.Capabilities, attr.Ports, attr.CoreClock})
	require.Equal(t, int64(unsafe.Sizeof(extended)), r.p.Only("ibv_query_device_ex").Arg(3))
	r.p.Next("ibv_query_device_ex").Returns(int64(syscall.EIO), 0)
	_, err := r.c.QueryDevice()
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "ibv_query_device_ex (fake0)")
	r.p.Only("ibv_query_device_ex")
}

// verbsContext returns what the library has around a context.
func verbsContext(d *ibverbs.Device) *libibverbs.VerbsContext {
	return (*libibverbs.VerbsContext)(unsafe.Add(unsafe.Pointer(d.Raw()), -int(unsafe.Offsetof(libibverbs.VerbsContext{}.Context))))
}

func TestPortSpeed(t *testing.T) {
	r := open(t)
	speed := uint64(1234) // of 100 Mb/s
	r.p.Next("ibv_query_port_speed").Writes(2, 0, fakelib.Bytes(&speed))
	require.InDelta(t, 123.4, must(r.c.QueryPortSpeed(2))(t), 1e-9)
	require.Equal(t, []int64{address(r.c.Raw()), 2}, r.p.Only("ibv_query_port_speed").Args()[:2])
}

// What another process made is found by its number, and only forgotten by
// Close.
func TestImports(t *testing.T) {
	r := open(t)
	mr := keep(t, must(r.pd.Alloc(100, ibverbs.AccessLocalWrite))(t))
	export := mr.Export()
	require.Equal(t, ibverbs.MRExport{Handle: mr.Raw().Handle, Addr: mr.Remote().Addr, Len: 100}, export)
	null := keep(t, must(os.Open(os.DevNull))(t))
	r.p.Forget()

	c := must(ibverbs.ImportDevice(null))(t)
	fd := int(r.p.Only("ibv_import_device").Arg(0)) // which the library keeps
	defer func() { require.NoError(t, syscall.Close(fd)) }()
	require.Equal(t, "fake0", c.Name())
	pd := must(c.ImportPD(r.pd.Handle()))(t)
	require.Equal(t, []int64{address(c.Raw()), int64(r.pd.Raw().Handle)}, r.p.Only("ibv_import_pd").Args())
	imported := must(pd.ImportMR(export))(t)
	require.Equal(t, []int64{address(pd.Raw()), int64(export.Handle)}, r.p.Only("ibv_import_mr").Args())
	require.Equal(t, ibverbs.RemoteBuffer{Addr: export.Addr, RKey: imported.Raw().Rkey, Len: 100}, imported.Remote())
	require.Equal(t, imported.Raw().Lkey, imported.LKey())
	require.ErrorIs(t, pd.Close(), syscall.EBUSY)
	for _, o := range []interface{ Close() error }{imported, pd, c} {
		require.NoError(t, o.Close())
	}
	require.Equal(t, []string{"ibv_unimport_mr", "ibv_unimport_pd", "ibv_close_device"}, r.p.Names())
}

// A region that has no memory of this process is as long for an import.
func TestExportWithoutBytes(t *testing.T) {
	r := open(t)
	mr := keep(t, must(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: 5, Length: 300, IOVA: 0x7000}, 0))(t))
	require.Equal(t, ibverbs.MRExport{Handle: mr.Raw().Handle, Addr: 0x7000, Len: 300}, mr.Export())
}
