//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func (r *rig) xrcd() *ibverbs.XRCD {
	r.t.Helper()
	x := keep(r.t, must(r.c.OpenXRCD(ibverbs.XRCDConfig{}))(r.t))
	r.p.Forget()
	return x
}

func TestOpenXRCD(t *testing.T) {
	r := open(t)
	file := keep(t, must(os.Create(t.TempDir()+"/domain"))(t))
	var fd int32
	conn := must(file.SyscallConn())(t)
	require.NoError(t, conn.Control(func(f uintptr) { fd = int32(f) }))
	for name, tt := range map[string]struct {
		config ibverbs.XRCDConfig
		fd     int32
		flags  int
	}{
		"anonymous": {ibverbs.XRCDConfig{}, -1, syscall.O_CREAT},
		"shared":    {ibverbs.XRCDConfig{File: file}, fd, 0},
		"created":   {ibverbs.XRCDConfig{File: file, Create: true}, fd, syscall.O_CREAT},
		"new":       {ibverbs.XRCDConfig{File: file, Create: true, Exclusive: true}, fd, syscall.O_CREAT | syscall.O_EXCL},
	} {
		x := must(r.c.OpenXRCD(tt.config))(t)
		call := r.p.Only("ibv_open_xrcd")
		require.Equal(t, address(r.c.Raw()), call.Arg(0), name)
		require.Equal(t, libibverbs.XrcdInitAttr{CompMask: 3, Fd: tt.fd, Oflags: int32(tt.flags)},
			*fakelib.Struct[libibverbs.XrcdInitAttr](call, 1), name)
		require.Same(t, r.c, x.Device(), name)
		require.NoError(t, x.Close(), name)
		require.Equal(t, []int64{call.Result()}, r.p.Only("ibv_close_xrcd").Args(), name)
	}
}

// Both ends of extended reliable connections, and the receiving one a second
// time, as another process has it.
func TestXRCQueuePairs(t *testing.T) {
	r := open(t)
	x, cq := r.xrcd(), r.cq()
	recv := must(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCRecv, XRCD: x}))(t)
	require.Equal(t, libibverbs.QpInitAttrEx{
		QpType: ibverbs.QPTypeXRCRecv, Xrcd: x.Raw(), CompMask: uint32(libibverbs.IBV_QP_INIT_ATTR_XRCD),
	}, *fakelib.Struct[libibverbs.QpInitAttrEx](r.p.Only("ibv_create_qp_ex"), 1))
	opened := must(x.OpenQP(recv.Num()))(t)
	call := r.p.Only("ibv_open_qp")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.QpOpenAttr{CompMask: 0xb, QpNum: recv.Num(), Xrcd: x.Raw(), QpType: ibverbs.QPTypeXRCRecv},
		*fakelib.Struct[libibverbs.QpOpenAttr](call, 1))
	require.Equal(t, recv.Num(), opened.Num())
	require.Equal(t, ibverbs.QPTypeXRCRecv, opened.Type())
	require.Nil(t, opened.PD())
	send := must(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: cq, MaxSendWR: 4}))(t)
	r.p.Forget()

	mr := keep(t, must(r.pd.Alloc(64, 0))(t))
	batch := must(ibverbs.NewSendBatch(1, 1))(t)
	require.NoError(t, batch.Send(1, ibverbs.SendSignaled, mr.All()))
	require.NoError(t, batch.WR(0).SetXRCSRQ(77))
	r.p.Forget()
	require.Equal(t, 1, must(send.PostSend(batch))(t))
	wr := fakelib.Struct[libibverbs.SendWr](r.p.Only("ibv_post_send"), 1)
	require.EqualValues(t, 77, wr.QpType.Xrc().RemoteSrqn)

	var busy *ibverbs.BusyError
	require.ErrorAs(t, x.Close(), &busy)
	require.Len(t, busy.Children, 2, "those of this domain")
	for _, qp := range []*ibverbs.QP{opened, recv, send} {
		require.NoError(t, qp.Close())
	}
}

// What shared receive queues of the other types are made with.
func TestCreateSRQEx(t *testing.T) {
	r := open(t)
	x, cq := r.xrcd(), r.cq()
	xrc := must(r.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, MaxWR: 5, MaxSGE: 2, XRCD: x, CQ: cq}))(t)
	call := r.p.Only("ibv_create_srq_ex")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: 5, MaxSge: 2}, CompMask: 0xf, SrqType: ibverbs.SRQTypeXRC,
		Pd: r.pd.Raw(), Xrcd: x.Raw(), Cq: cq.Raw(),
	}, *fakelib.Struct[libibverbs.SrqInitAttrEx](call, 1))
	require.Equal(t, xrc.Raw().Handle, must(xrc.Num())(t))
	require.ErrorIs(t, x.Close(), syscall.EBUSY)
	require.ErrorIs(t, cq.Close(), syscall.EBUSY)
	require.NoError(t, xrc.Close())
	r.p.Forget()

	tags := must(r.pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, MaxWR: 6, CQ: cq, MaxTags: 100, MaxTagOps: 10,
	}))(t)
	require.Equal(t, libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: 6, MaxSge: 1}, CompMask: 0x1b, SrqType: ibverbs.SRQTypeTagMatching,
		Pd: r.pd.Raw(), Cq: cq.Raw(), TmCap: libibverbs.TmCap{MaxNumTags: 100, MaxOps: 10},
	}, *fakelib.Struct[libibverbs.SrqInitAttrEx](r.p.Only("ibv_create_srq_ex"), 1))
	require.NoError(t, tags.Close())
}
