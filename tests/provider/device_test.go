// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
)

// The clock is a count, which C splits up as seconds and nanoseconds.
func TestRawClock(t *testing.T) {
	r := open(t)
	r.p.Next("ibv_query_rt_values", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.ValuesEx{
		CompMask: 1, RawClock: libibverbs.Timespec{TvSec: 3, TvNsec: 7},
	})))
	require.EqualValues(t, 3_000_000_007, must(r.c.RawClock())(t))
	call := r.p.Only("ibv_query_rt_values")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.ValuesEx{CompMask: 1}, *fakelib.Struct[libibverbs.ValuesEx](call, 1))
	r.p.Next("ibv_query_rt_values", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.ValuesEx{})))
	_, err := r.c.RawClock()
	require.ErrorIs(t, err, errors.ErrUnsupported, "the device gives no value")
}

// A driver or a library that does not have the extended query gives what the
// basic one does.
func TestQueryDevice(t *testing.T) {
	basic := libibverbs.DeviceAttr{MaxQp: 5, PhysPortCnt: 2, DeviceCapFlags: 1<<31 | 1<<20}
	for name, prepare := range map[string]func(*libibverbs.VerbsContext, *fakelib.Provider){
		"not supported": func(_ *libibverbs.VerbsContext, p *fakelib.Provider) {
			p.Next("ibv_query_device_ex", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
		},
		"unknown to the kernel": func(_ *libibverbs.VerbsContext, p *fakelib.Provider) {
			p.Next("ibv_query_device_ex", fakelib.Returns(int64(syscall.ENOSYS), 0))
		},
		"no operation":  func(v *libibverbs.VerbsContext, _ *fakelib.Provider) { v.QueryDeviceEx = nil },
		"older library": func(v *libibverbs.VerbsContext, _ *fakelib.Provider) { v.Sz = uint64(unsafe.Sizeof(uintptr(0))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			v := verbsContext(r.c)
			size, operation := v.Sz, v.QueryDeviceEx
			prepare(v, r.p)
			r.p.Next("ibv_query_device", fakelib.Returns(0, 0), fakelib.Writes(1, 0, fakelib.Bytes(&basic)))
			attr := must(r.c.QueryDevice())(t)
			v.Sz, v.QueryDeviceEx = size, operation // which closing needs
			require.Equal(t, "ibv_query_device", r.p.Names()[len(r.p.Names())-1])
			require.Equal(t, ibverbs.DeviceAttr{MaxQP: 5, Ports: 2, Capabilities: 1<<31 | caps.XRC}, attr)
		})
	}

	r := open(t)
	extended := libibverbs.DeviceAttrEx{DeviceCapFlagsEx: 1<<34 | 1<<20, PhysPortCntEx: 300, HcaCoreClock: 7}
	behind := unsafe.Sizeof(basic)
	r.p.Next("ibv_query_device_ex", fakelib.Writes(2, behind, fakelib.Bytes(&extended)[behind:]))
	attr := must(r.c.QueryDevice())(t)
	require.Equal(t, []any{"1.0", caps.XRC | caps.RawScatterFCS, 300, uint64(7)},
		[]any{attr.FirmwareVersion, attr.Capabilities, attr.Ports, attr.CoreClock})
	require.Equal(t, int64(unsafe.Sizeof(extended)), r.p.Only("ibv_query_device_ex").Arg(3))
	r.p.Next("ibv_query_device_ex", fakelib.Returns(int64(syscall.EIO), 0))
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
	r.p.Next("ibv_query_port_speed", fakelib.Writes(2, 0, fakelib.Bytes(&speed)))
	require.InDelta(t, 123.4, float64(must(r.c.QueryPortSpeed(2))(t)), 1e-9)
	require.Equal(t, []int64{address(r.c.Raw()), 2}, r.p.Only("ibv_query_port_speed").Args()[:2])
}

// What another process made is found by its number, and only forgotten by
// Close.
func TestImports(t *testing.T) {
	r := open(t)
	mr := keep(t, must(r.pd.Alloc(100, ibverbs.AccessLocalWrite))(t))
	export := must(share.ExportMR(mr))(t)
	require.Equal(t, share.MRExport{Handle: mr.Raw().Handle, Addr: mr.Remote().Addr, Len: 100}, export)
	null := keep(t, must(os.Open(os.DevNull))(t))
	r.p.Forget()

	c := must(share.ImportDevice(null))(t)
	fd := int(r.p.Only("ibv_import_device").Arg(0)) // which the library keeps
	defer func() { require.NoError(t, syscall.Close(fd)) }()
	require.Equal(t, "fake0", c.Name())
	pd := must(share.ImportPD(c, must(share.ExportPD(r.pd))(t)))(t)
	require.Equal(t, []int64{address(c.Raw()), int64(r.pd.Raw().Handle)}, r.p.Only("ibv_import_pd").Args())
	imported := must(share.ImportMR(pd, export))(t)
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
	require.Equal(t, share.MRExport{Handle: mr.Raw().Handle, Addr: 0x7000, Len: 300}, must(share.ExportMR(mr))(t))
}

func TestOpenToClose(t *testing.T) {
	p := fakelib.OpenProvider(t)
	c := must(ibverbs.Open(""))(t)
	require.Equal(t, "fake0", c.Name())
	require.Equal(t, []string{
		"ibv_get_device_list", "ibv_get_device_guid", "ibv_get_device_index", "ibv_open_device", "ibv_free_device_list",
	}, p.Names())
	p.Forget()

	pd := must(c.AllocPD())(t)
	require.Equal(t, address(c.Raw()), p.Only("ibv_alloc_pd").Arg(0))
	cq := must(c.CreateCQ(ibverbs.CQConfig{CompQueue: 7, Vector: 3}))(t)
	require.Equal(t, []int64{address(c.Raw()), 7, 0, 0, 3}, p.Only("ibv_create_cq").Args())
	require.Equal(t, 7, cq.Cap())

	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 5, RecvQueue: 6}))(t)
	call := p.Only("ibv_create_qp")
	require.Equal(t, address(pd.Raw()), call.Arg(0))
	require.Equal(t, address(qp.Raw()), call.Result())
	require.Equal(t, libibverbs.QpInitAttr{
		SendCq: cq.Raw(), RecvCq: cq.Raw(), QpType: ibverbs.QPTypeRC,
		Cap: libibverbs.QpCap{MaxSendWr: 5, MaxRecvWr: 6, MaxSendSge: 1, MaxRecvSge: 1},
	}, *fakelib.Struct[libibverbs.QpInitAttr](call, 1))
	require.Equal(t, pd.Raw(), qp.Raw().Pd)
	require.Equal(t, c.Raw(), qp.Raw().Context)
	require.NotZero(t, qp.Num())

	require.NoError(t, qp.SetError())
	call = p.Only("ibv_modify_qp")
	require.Equal(t, []int64{address(qp.Raw()), int64(libibverbs.IBV_QP_STATE)}, []int64{call.Arg(0), call.Arg(2)})
	require.Equal(t, libibverbs.QpAttr{QpState: ibverbs.QPStateError}, *fakelib.Struct[libibverbs.QpAttr](call, 1))
	require.Equal(t, ibverbs.QPStateError, must(qp.State())(t))
	p.Forget()

	p.Next("ibv_destroy_qp", fakelib.Returns(int64(syscall.EBUSY), 0))
	require.ErrorIs(t, qp.Close(), syscall.EBUSY)
	p.Only("ibv_destroy_qp")
	for _, o := range []interface{ Close() error }{qp, cq, pd, c} {
		require.NoError(t, o.Close())
	}
	require.Equal(t, []string{"ibv_destroy_qp", "ibv_destroy_cq", "ibv_dealloc_pd", "ibv_close_device"}, p.Names())
}

// Posted lists are copied with all requests and segments, and an out parameter
// says which one C did not take.
func TestPostedLists(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	mr := keep(t, must(r.pd.Alloc(64, ibverbs.AccessLocalWrite))(t))
	batch := must(ibverbs.NewRecvBatch(2, 2))(t)
	require.NoError(t, batch.Recv(1, mr.Sub(0, 8), mr.Sub(8, 16)))
	require.NoError(t, batch.Recv(2, mr.Sub(32, 4)))
	r.p.Forget()
	require.Equal(t, 2, must(qp.PostRecv(batch))(t))
	requireRecvs(t, r.p.Only("ibv_post_recv"), mr)

	r.p.Next("ibv_poll_cq", fakelib.Returns(1, 0), fakelib.Writes(2, 0, fakelib.Bytes(&libibverbs.Wc{WrId: 2, ByteLen: 4})))
	wcs := make([]ibverbs.WC, 3)
	require.Equal(t, 1, must(keep(t, r.cq()).Poll(wcs))(t))
	require.Equal(t, uint64(2), wcs[0].ID())
	require.Equal(t, int64(3), r.p.Only("ibv_poll_cq").Arg(1))
}

// requireRecvs looks at the list that TestPostedLists fills.
func requireRecvs(t *testing.T, call fakelib.Call, mr *ibverbs.MR) {
	t.Helper()
	first := fakelib.Struct[libibverbs.RecvWr](call, 1)
	sge := func(offset, n int) libibverbs.Sge {
		return libibverbs.Sge{Addr: mr.Remote().Addr + uint64(offset), Length: uint32(n), Lkey: mr.LKey()}
	}
	require.Equal(t, []libibverbs.Sge{sge(0, 8), sge(8, 16)}, fakelib.Follow[libibverbs.Sge](call, &first.SgList, 2))
	second := &fakelib.Follow[libibverbs.RecvWr](call, &first.Next, 1)[0]
	require.Equal(t, []libibverbs.Sge{sge(32, 4)}, fakelib.Follow[libibverbs.Sge](call, &second.SgList, 1))
	require.Equal(t, libibverbs.RecvWr{WrId: 1, NumSge: 2}, *first)
	require.Equal(t, libibverbs.RecvWr{WrId: 2, NumSge: 1}, *second)
}

// Events are what the test plans; the descriptor is a real one.
func TestCompletionEvent(t *testing.T) {
	r := open(t)
	channel := keep(t, must(r.c.CreateCompChannel())(t))
	require.Equal(t, r.p.Only("ibv_create_comp_channel").Result(), address(channel.Raw()))
	fd := int(channel.Raw().Fd)
	cq := keep(t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: channel}))(t))
	r.p.Forget()
	for range 3 { // at once, and before and after arming
		r.p.Next("ibv_poll_cq", fakelib.Returns(0, 0))
	}
	r.p.Next("ibv_poll_cq", fakelib.Returns(1, 0), fakelib.Writes(2, 0, fakelib.Bytes(&libibverbs.Wc{WrId: 9})))
	ready := uintptr(address(cq.Raw()))
	r.p.Next("ibv_get_cq_event", fakelib.Returns(0, 0), fakelib.Writes(1, 0, fakelib.Bytes(&ready)))
	one := uint64(1)
	_, err := syscall.Write(fd, fakelib.Bytes(&one)) // an eventfd
	require.NoError(t, err)

	wcs := make([]ibverbs.WC, 1)
	require.Equal(t, 1, must(cq.Wait(t.Context(), wcs))(t))
	require.Equal(t, uint64(9), wcs[0].ID())
	require.Contains(t, r.p.Names(), "ibv_ack_cq_events")
}

// address returns what C knows an object by.
func address[T any](o *T) int64 { return int64(uintptr(unsafe.Pointer(o))) }

// closer is an object of package ibverbs or flow.
type closer interface{ Close() error }

// kinds make an object of each kind that there is; what it needs stays open
// until the end of the test.
var kinds = map[string]func(t *testing.T, r *rig) closer{
	"Context": func(t *testing.T, _ *rig) closer { return must(ibverbs.Open("fake0"))(t) },
	"PD":      func(t *testing.T, r *rig) closer { return must(r.c.AllocPD())(t) },
	"imported PD": func(t *testing.T, r *rig) closer {
		return must(share.ImportPD(r.c, r.pd.Raw().Handle))(t)
	},
	"parent domain": func(t *testing.T, r *rig) closer {
		return must(r.pd.AllocParentDomain(keep(t, must(r.c.AllocTD())(t))))(t)
	},
	"TD":      func(t *testing.T, r *rig) closer { return must(r.c.AllocTD())(t) },
	"MR":      func(t *testing.T, r *rig) closer { return must(r.pd.Alloc(64, ibverbs.AccessLocalWrite))(t) },
	"null MR": func(t *testing.T, r *rig) closer { return must(r.pd.AllocNullMR())(t) },
	"DMA-BUF MR": func(t *testing.T, r *rig) closer {
		return must(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: 3, Length: 64}, 0))(t)
	},
	"imported MR": func(t *testing.T, r *rig) closer {
		return must(share.ImportMR(r.pd, share.MRExport{Handle: 7, Len: 64}))(t)
	},
	"MR of DM": func(t *testing.T, r *rig) closer {
		return must(keep(t, must(devmem.Alloc(r.c, 64, 0))(t)).Register(r.pd, 0, 64, 0))(t)
	},
	"DM": func(t *testing.T, r *rig) closer { return must(devmem.Alloc(r.c, 64, 0))(t) },
	"imported DM": func(t *testing.T, r *rig) closer {
		return must(devmem.Import(r.c, devmem.Export{Handle: 7, Len: 64}))(t)
	},
	"Buf": func(t *testing.T, r *rig) closer { return must(devmem.AllocBuf(r.pd, 64))(t) },
	"DMA handle": func(t *testing.T, r *rig) closer {
		return must(devmem.AllocDMAHandle(r.c, devmem.DMAHandleConfig{}))(t)
	},
	"MW type 1":   func(t *testing.T, r *rig) closer { return must(r.pd.AllocMW(ibverbs.MWType1))(t) },
	"MW type 2":   func(t *testing.T, r *rig) closer { return must(r.pd.AllocMW(ibverbs.MWType2))(t) },
	"CompChannel": func(t *testing.T, r *rig) closer { return must(r.c.CreateCompChannel())(t) },
	"CQ":          func(t *testing.T, r *rig) closer { return must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8}))(t) },
	"CQ to wait on": func(t *testing.T, r *rig) closer {
		ch := keep(t, must(r.c.CreateCompChannel())(t))
		return must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	},
	"RC QP":         func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeRC) },
	"UD QP":         func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeUD) },
	"raw packet QP": func(t *testing.T, r *rig) closer { return r.misusedQP(t, ibverbs.QPTypeRawPacket) },
	"opened QP": func(t *testing.T, r *rig) closer {
		return must(keep(t, must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t)).OpenQP(5))(t)
	},
	"RSS QP": func(t *testing.T, r *rig) closer {
		key := bytes.Repeat([]byte{1}, flow.RSSKeyLen)
		return must(flow.CreateRSSQP(r.pd, flow.RSSConfig{Table: r.table(), Key: key}))(t)
	},
	"SRQ":  func(t *testing.T, r *rig) closer { return must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 8}))(t) },
	"XRCD": func(t *testing.T, r *rig) closer { return must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(t) },
	"WQ": func(t *testing.T, r *rig) closer {
		return must(flow.CreateWQ(r.pd, flow.WQConfig{CQ: r.cq(), RecvQueue: 4}))(t)
	},
	"indirection table": func(t *testing.T, r *rig) closer {
		return must(flow.CreateIndirectionTable(r.c, []*flow.WQ{r.wq()}))(t)
	},
	"AH":           func(t *testing.T, r *rig) closer { return must(r.pd.CreateAH(ibverbs.AHAttr{Port: 1, DLID: 5}))(t) },
	"counters":     func(t *testing.T, r *rig) closer { return must(flow.CreateCounters(r.c))(t) },
	"comp counter": func(t *testing.T, r *rig) closer { return must(counter.Create(r.c, counter.Bytes))(t) },
	"rule": func(t *testing.T, r *rig) closer {
		return must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{Specs: []flow.Spec{flow.Drop{}}}))(t)
	},
	"ESP action": func(t *testing.T, r *rig) closer {
		return must(flow.CreateESPAction(r.c, flow.ESPConfig{Key: &flow.AESGCM{Key: make([]byte, 16), ICVLen: 8}}))(t)
	},
}

// functions take an object first, and do with it what a method would do.
var functions = []any{
	flow.Create, flow.CreateESPAction, flow.CreateCounters, flow.CreateIndirectionTable, flow.CreateRSSQP, flow.CreateWQ,
	devmem.Alloc, devmem.AllocBuf, devmem.AllocDMAHandle, devmem.Import,
	share.ExportDevice, share.ExportMR, share.ExportPD, share.ImportMR, share.ImportPD,
	counter.Create, counter.QueryCaps,
	tag.Post,
}

// methods returns the methods of an object, and the functions that take it
// first.
func methods(o any) []misuse.Method { return misuse.Methods(o, functions...) }

func (r *rig) misusedQP(t *testing.T, qpType ibverbs.QPType) *ibverbs.QP {
	t.Helper()
	cq := r.cq()
	return must(r.pd.CreateQP(ibverbs.QPConfig{Type: qpType, SendCQ: cq, RecvCQ: cq, SendQueue: 4, RecvQueue: 4}))(t)
}
