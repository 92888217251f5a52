// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package vendor

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libefa"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/efa"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func openEFA(t *testing.T) *rig { return open(t, "libefa.so.1") }

func (r *rig) srd(config efa.QPConfig) *efa.QP {
	r.t.Helper()
	config.SendCQ, config.RecvCQ = r.cq, r.cq
	return keep(r.t, must(efa.CreateQP(r.pd, config))(r.t))
}

func TestEFAQuery(t *testing.T) {
	r := openEFA(t)
	attr, err := efa.Query(r.device)
	require.NoError(t, err)
	require.Equal(t, efa.Attr{
		MaxSendWR: 4096, MaxRecvWR: 8192, MaxSendSGE: 2, MaxRecvSGE: 3, InlineSize: 32, MaxRDMASize: 1 << 30,
		Caps: efa.CapRDMARead | efa.CapRDMAWrite,
	}, attr)
	require.EqualValues(t, unsafe.Sizeof(libefa.DeviceAttr{}), r.driver.Only("efadv_query_device").Arg(2), "the size of the struct")

	number, err := efa.Number(r.ah)
	require.NoError(t, err)
	require.EqualValues(t, 77, number)
	require.Equal(t, []string{"efadv_query_ah"}, r.driver.Names())
}

// A device of another driver is refused as libefa refuses it.
func TestEFAForeign(t *testing.T) {
	r := openEFA(t)
	r.driver.Next("efadv_query_device", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	r.driver.Next("efadv_query_ah", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	r.driver.Next("efadv_create_qp_ex", fakelib.Returns(0, syscall.EOPNOTSUPP))
	for name, err := range map[string]error{
		"query":  failed(efa.Query(r.device)),
		"number": failed(efa.Number(r.ah)),
		"create": failed(efa.CreateQP(r.pd, efa.QPConfig{SendCQ: r.cq, RecvCQ: r.cq})),
	} {
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
	}
}

func TestEFACreate(t *testing.T) {
	both := libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM
	rdma := both | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_READ
	for name, tt := range map[string]struct {
		config efa.QPConfig
		ops    libibverbs.QpCreateSendOpsFlags
		want   libefa.QpInitAttr
	}{
		"plain": {efa.QPConfig{SendQueue: 3, RecvQueue: 4}, both, libefa.QpInitAttr{}},
		"all": {
			efa.QPConfig{
				SendQueue: 3, RecvQueue: 4, SendSegments: 2, RecvSegments: 2, SignalAll: true, RDMA: true, ServiceLevel: 8,
				Flags: efa.UnsolicitedWriteRecv | efa.InlineWrite,
			},
			rdma, libefa.QpInitAttr{Flags: 3, Sl: 8},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := openEFA(t)
			qp := r.srd(tt.config)
			call := r.driver.Only("efadv_create_qp_ex")
			require.Equal(t, tt.want, *fakelib.Struct[libefa.QpInitAttr](call, 2))
			require.EqualValues(t, unsafe.Sizeof(libefa.QpInitAttr{}), call.Arg(3), "the size of the struct")
			attr := fakelib.Struct[libibverbs.QpInitAttrEx](call, 1)
			require.Equal(t, libibverbs.IBV_QPT_DRIVER, attr.QpType)
			require.Equal(t, uint64(tt.ops), attr.SendOpsFlags)
			require.Equal(t, libibverbs.IBV_QP_INIT_ATTR_PD|libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, attr.CompMask)
			require.Equal(t, r.pd.Raw(), attr.Pd)
			require.EqualValues(t, 3, attr.Cap.MaxSendWr)
			require.EqualValues(t, 4, attr.Cap.MaxRecvWr)
			require.Equal(t, tt.config.SignalAll, attr.SqSigAll == 1)
			require.Equal(t, qp.Verbs().Num(), qp.Num())
			require.Equal(t, libibverbs.IBV_QPT_DRIVER, qp.Verbs().Type())
		})
	}
}

func TestEFAStart(t *testing.T) {
	r := openEFA(t)
	qp := r.srd(efa.QPConfig{})
	r.forget()
	require.NoError(t, qp.Start(efa.Path{Port: 1, PKeyIndex: 2, QKey: 0x11, SendPSN: 5}))
	require.Equal(t, []ibverbs.QPAttrMask{
		ibverbs.QPAttrState | ibverbs.QPAttrPKeyIndex | ibverbs.QPAttrPort | ibverbs.QPAttrQKey,
		ibverbs.QPAttrState,
		ibverbs.QPAttrState | ibverbs.QPAttrSendPSN,
	}, r.modified())
	init := fakelib.Struct[libibverbs.QpAttr](r.verbs.Calls()[0], 1)
	require.Equal(t, libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_INIT, PortNum: 1, PkeyIndex: 2, Qkey: 0x11}, *init)

	r.verbs.Next("ibv_modify_qp", fakelib.Returns(int64(syscall.EINVAL), 0))
	require.ErrorIs(t, qp.Start(efa.Path{Port: 1}), syscall.EINVAL)
}

func TestEFAPost(t *testing.T) {
	r := openEFA(t)
	qp := r.srd(efa.QPConfig{RDMA: true})
	to := ibverbs.Destination{AH: r.ah, QPNum: 12, QKey: 0x22}
	remote := ibverbs.RemoteBuffer{Addr: 0x1000, RKey: 7, Len: 64}
	r.forget()
	require.NoError(t, qp.Post(
		efa.Request{Op: efa.Send, ID: 1, To: to, Segments: []ibverbs.Segment{r.mr.Sub(0, 8), r.mr.Sub(16, 8)}},
		efa.Request{Op: efa.SendImm, ID: 2, To: to, Imm: 0x01020304, Flags: ibverbs.SendSignaled},
		efa.Request{Op: efa.Write, To: to, Remote: remote, Segments: []ibverbs.Segment{r.mr.Sub(0, 64)}},
		efa.Request{Op: efa.WriteImm, To: to, Remote: remote, Imm: 9, Segments: []ibverbs.Segment{r.mr.Sub(0, 64)}},
		efa.Request{Op: efa.Read, To: to, Remote: remote, Segments: []ibverbs.Segment{r.mr.Sub(0, 64)}},
	))
	require.Equal(t, []string{
		"ibv_wr_start",
		"ibv_wr_send", "ibv_wr_set_ud_addr", "ibv_wr_set_sge_list",
		"ibv_wr_send_imm", "ibv_wr_set_ud_addr",
		"ibv_wr_rdma_write", "ibv_wr_set_ud_addr", "ibv_wr_set_sge_list",
		"ibv_wr_rdma_write_imm", "ibv_wr_set_ud_addr", "ibv_wr_set_sge_list",
		"ibv_wr_rdma_read", "ibv_wr_set_ud_addr", "ibv_wr_set_sge_list",
		"ibv_wr_complete",
	}, r.verbs.Names())
	calls := r.verbs.Calls()
	ex := fakelib.Struct[libibverbs.QpEx](calls[1], 0)
	require.EqualValues(t, 1, ex.WrId)
	require.Zero(t, ex.WrFlags)
	require.Equal(t, []int64{12, 0x22}, calls[2].Args()[2:])
	require.EqualValues(t, 2, calls[3].Arg(1))
	base := uint64(0)
	for k, sge := range fakelib.Slice[libibverbs.Sge](calls[3], 2, 1) {
		base = sge.Addr
		require.Equal(t, libibverbs.Sge{Addr: base, Length: 8, Lkey: r.mr.LKey()}, sge, k)
	}
	require.NotZero(t, base)
	ex = fakelib.Struct[libibverbs.QpEx](calls[4], 0)
	require.EqualValues(t, 2, ex.WrId)
	require.EqualValues(t, ibverbs.SendSignaled, ex.WrFlags)
	require.EqualValues(t, libibverbs.NewBe32(0x01020304), uint32(calls[4].Arg(1)))
	require.Equal(t, []int64{7, 0x1000}, calls[6].Args()[1:])
	require.Equal(t, []int64{7, 0x1000}, calls[12].Args()[1:])
}

// Requests that cannot be posted say why, and none is.
func TestEFARefused(t *testing.T) {
	r := openEFA(t)
	qp := r.srd(efa.QPConfig{RDMA: true})
	readOnly := keep(t, must(r.pd.Alloc(64, 0))(t))
	closed := must(r.pd.CreateAH(ibverbs.AHAttr{Port: 1, DLID: 4}))(t)
	require.NoError(t, closed.Close())
	to := ibverbs.Destination{AH: r.ah, QPNum: 12, QKey: 0x22}
	good := efa.Request{Op: efa.Send, To: to}
	remote := ibverbs.RemoteBuffer{Addr: 0x1000, RKey: 7, Len: 64}
	for name, tt := range map[string]struct {
		request efa.Request
		want    error
	}{
		"no address handle":     {efa.Request{Op: efa.Send}, syscall.EINVAL},
		"zero address handle":   {efa.Request{Op: efa.Send, To: ibverbs.Destination{AH: new(ibverbs.AH)}}, os.ErrInvalid},
		"closed address handle": {efa.Request{Op: efa.Send, To: ibverbs.Destination{AH: closed}}, os.ErrClosed},
		"inline":                {efa.Request{Op: efa.Send, To: to, Flags: ibverbs.SendInline}, errors.ErrUnsupported},
		"operation":             {efa.Request{Op: libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD, To: to}, syscall.EINVAL},
		"segment outside":       {efa.Request{Op: efa.Send, To: to, Segments: []ibverbs.Segment{r.mr.Sub(4090, 8)}}, syscall.EINVAL},
		"segment of nothing":    {efa.Request{Op: efa.Send, To: to, Segments: []ibverbs.Segment{{}}}, syscall.EINVAL},
		"remote too small":      {efa.Request{Op: efa.Write, To: to, Remote: remote, Segments: []ibverbs.Segment{r.mr.Sub(0, 65)}}, syscall.EINVAL},
		"write outside":         {efa.Request{Op: efa.Write, To: to, Remote: remote.Sub(60, 8)}, syscall.EINVAL},
		"write imm outside":     {efa.Request{Op: efa.WriteImm, To: to, Remote: remote.Sub(65, 0)}, syscall.EINVAL},
		"read from outside":     {efa.Request{Op: efa.Read, To: to, Remote: remote.Sub(0, 65)}, syscall.EINVAL},
		"read into read-only":   {efa.Request{Op: efa.Read, To: to, Segments: []ibverbs.Segment{readOnly.Sub(0, 8)}}, syscall.EINVAL},
	} {
		r.forget()
		tt.request.ID = 5
		err := qp.Post(good, tt.request)
		require.ErrorIs(t, err, tt.want, name)
		var post *ibverbs.PostError
		require.ErrorAs(t, err, &post, name)
		require.Equal(t, 1, post.Index, name)
		require.EqualValues(t, 5, post.ID, name)
		require.True(t, post.None, name)
		require.NotContains(t, r.verbs.Names(), "ibv_wr_complete", name)
	}
	r.forget()
	require.NoError(t, qp.Post())
	require.Empty(t, r.verbs.Names())

	r.verbs.Next("ibv_wr_complete", fakelib.Returns(int64(syscall.ENOMEM), 0))
	require.ErrorIs(t, qp.Post(good), syscall.ENOMEM)
}

// Nil and closed queue pairs answer with an error.
func TestEFANotMade(t *testing.T) {
	r := openEFA(t)
	closed := r.srd(efa.QPConfig{})
	require.NoError(t, closed.Close())
	r.forget()
	for name, tt := range map[string]struct {
		qp   *efa.QP
		want error
	}{"nil": {nil, os.ErrInvalid}, "zero": {new(efa.QP), os.ErrInvalid}, "closed": {closed, os.ErrClosed}} {
		require.ErrorIs(t, tt.qp.Start(efa.Path{}), tt.want, name)
		require.ErrorIs(t, tt.qp.Post(efa.Request{}), tt.want, name)
	}
	require.Zero(t, (*efa.QP)(nil).Num())
	require.ErrorIs(t, failed(efa.Query(nil)), os.ErrInvalid)
	require.ErrorIs(t, failed(efa.Number(nil)), os.ErrInvalid)
	require.ErrorIs(t, failed(efa.CreateQP(nil, efa.QPConfig{})), os.ErrInvalid)
	require.ErrorIs(t, failed(efa.CreateQP(r.pd, efa.QPConfig{})), syscall.EINVAL, "no queues")
	require.ErrorIs(t, failed(r.pd.CreateQP(ibverbs.QPConfig{Type: libibverbs.IBV_QPT_DRIVER, SendCQ: r.cq, RecvCQ: r.cq})), syscall.EINVAL)
	require.Empty(t, r.driver.Names())
}
