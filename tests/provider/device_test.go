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
