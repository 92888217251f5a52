//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

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
	cq := must(c.CreateCQ(ibverbs.CQConfig{Entries: 7, Vector: 3}))(t)
	require.Equal(t, []int64{address(c.Raw()), 7, 0, 0, 3}, p.Only("ibv_create_cq").Args())
	require.Equal(t, 7, cq.Len())

	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 5, MaxRecvWR: 6}))(t)
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

	p.Next("ibv_destroy_qp").Returns(int64(syscall.EBUSY), 0)
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

	r.p.Next("ibv_poll_cq").Returns(1, 0).Writes(2, 0, fakelib.Bytes(&libibverbs.Wc{WrId: 2, ByteLen: 4}))
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
	cq := keep(t, must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: channel}))(t))
	r.p.Forget()
	for range 2 { // before and after arming
		r.p.Next("ibv_poll_cq").Returns(0, 0)
	}
	r.p.Next("ibv_poll_cq").Returns(1, 0).Writes(2, 0, fakelib.Bytes(&libibverbs.Wc{WrId: 9}))
	ready := uintptr(address(cq.Raw()))
	r.p.Next("ibv_get_cq_event").Returns(0, 0).Writes(1, 0, fakelib.Bytes(&ready))
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
