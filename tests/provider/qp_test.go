// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestECE(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	require.NoError(t, qp.SetECE(ibverbs.ECE{VendorID: 0x15b3, Options: 1<<31 + 1}))
	call := r.p.Only("ibv_set_ece")
	require.Equal(t, address(qp.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.Ece{VendorId: 0x15b3, Options: 1<<31 + 1}, *fakelib.Struct[libibverbs.Ece](call, 1))
	r.p.Next("ibv_query_ece", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.Ece{VendorId: 7, Options: 9})))
	require.Equal(t, ibverbs.ECE{VendorID: 7, Options: 9}, must(qp.QueryECE())(t))
	require.Equal(t, address(qp.Raw()), r.p.Only("ibv_query_ece").Arg(0))
}

func TestRateLimit(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	require.NoError(t, qp.SetRateLimit(ibverbs.RateLimit{KilobitsPerSecond: 1<<32 - 1, MaxBurst: 1 << 20, TypicalPacket: 1500}))
	call := r.p.Only("ibv_modify_qp_rate_limit")
	require.Equal(t, address(qp.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.QpRateLimitAttr{RateLimit: 1<<32 - 1, MaxBurstSz: 1 << 20, TypicalPktSz: 1500},
		*fakelib.Struct[libibverbs.QpRateLimitAttr](call, 1))
	r.p.Next("ibv_modify_qp_rate_limit", fakelib.Returns(int64(syscall.EINVAL), 0))
	require.ErrorIs(t, qp.SetRateLimit(ibverbs.RateLimit{}), syscall.EINVAL)
}

func TestDataInOrder(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	r.p.Next("ibv_query_qp_data_in_order", fakelib.Returns(3, 0))
	require.Equal(t, ibverbs.DataInOrderMessage|ibverbs.DataInOrder128, must(qp.DataInOrder(libibverbs.IBV_WR_RDMA_WRITE))(t))
	require.Equal(t, []int64{address(qp.Raw()), int64(libibverbs.IBV_WR_RDMA_WRITE), 1},
		r.p.Only("ibv_query_qp_data_in_order").Args())
}

// An alternate path is loaded and armed, and what the device says of it comes
// back.
func TestAlternatePath(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	path := ibverbs.AHAttr{Port: 1, DLID: 5}
	require.NoError(t, qp.ToInit(ibverbs.InitAttr{Port: 1}))
	require.NoError(t, qp.ToRTR(ibverbs.RTRAttr{Path: path, PathMTU: 3, DestQPNum: 9, MaxDestReadAtomic: 1}))
	require.NoError(t, qp.ToRTS(ibverbs.RTSAttr{Timeout: time.Second, RetryCount: 7, MaxReadAtomic: 1}))
	r.p.Forget()
	alt := ibverbs.AHAttr{Port: 2, DLID: 6, SL: 3, SrcPathBits: 4, StaticRate: libibverbs.IBV_RATE_100_GBPS}
	require.NoError(t, qp.Modify(ibverbs.QPAttr{
		AltPath: alt, AltPKeyIndex: 8, AltTimeout: ibverbs.NoTimeout, Migration: ibverbs.MigrationRearm,
	}, ibverbs.QPAttrAltPath|ibverbs.QPAttrMigration))
	call := r.p.Only("ibv_modify_qp")
	require.Equal(t, int64(libibverbs.IBV_QP_ALT_PATH|libibverbs.IBV_QP_PATH_MIG_STATE), call.Arg(2))
	want := libibverbs.QpAttr{
		AltAhAttr:    libibverbs.AhAttr{Dlid: 6, Sl: 3, SrcPathBits: 4, StaticRate: uint8(libibverbs.IBV_RATE_100_GBPS), PortNum: 2},
		AltPkeyIndex: 8, AltPortNum: 2, PathMigState: libibverbs.IBV_MIG_REARM,
	}
	require.Equal(t, want, *fakelib.Struct[libibverbs.QpAttr](call, 1))
	want.PathMigState = libibverbs.IBV_MIG_ARMED
	r.p.Next("ibv_query_qp", fakelib.Writes(1, 0, fakelib.Bytes(&want)))
	got := must(qp.Query())(t)
	require.Equal(t, []any{alt, 8, ibverbs.NoTimeout, ibverbs.MigrationArmed},
		[]any{got.AltPath, got.AltPKeyIndex, got.AltTimeout, got.Migration})
}

// A path with every field of a route, and one without a route.
func TestCreateAH(t *testing.T) {
	r := open(t)
	global := ibverbs.AHAttr{
		Port: 1, DLID: 0x1234, SL: 15, SrcPathBits: 127, StaticRate: libibverbs.IBV_RATE_10_GBPS,
		DGID: ibverbs.GID{0xfe, 0x80, 15: 1}, SGIDIndex: 3, FlowLabel: 0xabcde, HopLimit: 64, TrafficClass: 0x68,
	}
	want := libibverbs.AhAttr{
		Grh:  libibverbs.GlobalRoute{FlowLabel: 0xabcde, SgidIndex: 3, HopLimit: 64, TrafficClass: 0x68},
		Dlid: 0x1234, Sl: 15, SrcPathBits: 127, StaticRate: uint8(libibverbs.IBV_RATE_10_GBPS), IsGlobal: 1, PortNum: 1,
	}
	*want.Grh.Dgid.Raw() = global.DGID
	for _, tt := range []struct {
		attr ibverbs.AHAttr
		want libibverbs.AhAttr
	}{
		{global, want},
		{ibverbs.AHAttr{Port: 2, DLID: 9}, libibverbs.AhAttr{Dlid: 9, PortNum: 2}},
	} {
		ah := must(r.pd.CreateAH(tt.attr))(t)
		call := r.p.Only("ibv_create_ah")
		require.Equal(t, address(r.pd.Raw()), call.Arg(0))
		require.Equal(t, tt.want, *fakelib.Struct[libibverbs.AhAttr](call, 1))
		require.NoError(t, ah.Close())
		require.Equal(t, []int64{call.Result()}, r.p.Only("ibv_destroy_ah").Args())
	}
}

// If the hardware address of the peer is not found, the error names the path.
func TestUnreachable(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRC)
	require.NoError(t, qp.ToInit(ibverbs.InitAttr{Port: 1}))
	path := ibverbs.AHAttr{Port: 1, SGIDIndex: 3, DGID: must(ibverbs.ParseGID("192.0.2.7"))(t)}
	const way = ", from GID index 3 of port 1 to 192.0.2.7)"
	for _, errno := range []syscall.Errno{syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENOMEM} {
		r.p.Next("ibv_modify_qp", fakelib.Returns(int64(errno), 0))
		rtr := qp.ToRTR(ibverbs.RTRAttr{Path: path, PathMTU: 5, DestQPNum: 9})
		r.p.Next("ibv_create_ah", fakelib.Returns(0, errno))
		_, ah := r.pd.CreateAH(path)
		for _, err := range []error{rtr, ah} {
			require.ErrorIs(t, err, errno)
			if errno == syscall.ENOMEM {
				require.NotContains(t, err.Error(), "GID")
			} else {
				require.ErrorContains(t, err, way)
			}
		}
		require.ErrorContains(t, rtr, "ibv_modify_qp (QP ")
	}
	r.p.Next("ibv_create_ah", fakelib.Returns(0, syscall.ETIMEDOUT))
	_, err := r.pd.CreateAH(ibverbs.AHAttr{Port: 2, DLID: 9})
	require.NotContains(t, err.Error(), "GID", "there is none")
}

func TestCreateDestination(t *testing.T) {
	r := open(t)
	local := ibverbs.QPAddr{QPNum: 7, GID: ibverbs.GID{0xfe, 0x80, 15: 1}, MTU: 5, Port: 1, GIDIndex: 3}
	peer := ibverbs.QPAddr{QPNum: 8, QKey: 0x1234, LID: 6, GID: ibverbs.GID{0xfe, 0x80, 15: 2}, MTU: 5, Port: 2, GIDIndex: 4}
	to := must(r.pd.CreateDestination(local, peer))(t)
	keep(t, to.AH)
	require.Equal(t, ibverbs.Destination{AH: to.AH, QPNum: 8, QKey: 0x1234}, to)
	want := libibverbs.AhAttr{Dlid: 6, IsGlobal: 1, PortNum: 1, Grh: libibverbs.GlobalRoute{SgidIndex: 3, HopLimit: 64}}
	*want.Grh.Dgid.Raw() = peer.GID
	require.Equal(t, []string{"___ibv_query_port", "ibv_create_ah"}, r.p.Names())
	require.Equal(t, want, *fakelib.Struct[libibverbs.AhAttr](r.p.Calls()[1], 1))

	connected, nowhere := peer, local
	connected.QKey, nowhere.Port = 0, 0
	for want, ends := range map[string][2]ibverbs.QPAddr{
		"of fake0): the peer's address has no QKey, so its queue pair is not of type IBV_QPT_UD": {local, connected},
		"of fake0): peer's address: queue pair number is 0x0, not from 0x1 to 0xffffff":          {local, {}},
		"of fake0): local address: port is 0, not from 1 to 255":                                 {nowhere, peer},
	} {
		_, err := r.pd.CreateDestination(ends[0], ends[1])
		require.ErrorIs(t, err, syscall.EINVAL, want)
		require.ErrorContains(t, err, want)
	}
	r.p.Next("ibv_create_ah", fakelib.Returns(0, syscall.EHOSTUNREACH))
	_, err := r.pd.CreateDestination(local, peer)
	require.ErrorContains(t, err, "from GID index 3 of port 1 to fe80::2")
	_, err = (*ibverbs.PD)(nil).CreateDestination(local, peer)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Flags that this package has no name for reach C.
func TestSendIPChecksum(t *testing.T) {
	r := open(t)
	qp := r.qp(ibverbs.QPTypeRawPacket)
	mr := keep(t, must(r.pd.Alloc(64, 0))(t))
	batch := must(ibverbs.NewSendBatch(1, 1))(t)
	require.NoError(t, batch.Send(1, ibverbs.SendSignaled|libibverbs.IBV_SEND_IP_CSUM, mr.All()))
	r.p.Forget()
	require.Equal(t, 1, must(qp.PostSend(batch))(t))
	wr := fakelib.Struct[libibverbs.SendWr](r.p.Only("ibv_post_send"), 1)
	require.Equal(t, ibverbs.SendSignaled|libibverbs.IBV_SEND_IP_CSUM, wr.SendFlags)
	r.p.Next("ibv_post_send", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	_, err := qp.PostSend(batch)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

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
		QpType: ibverbs.QPTypeXRCRecv, Xrcd: x.Raw(), CompMask: libibverbs.IBV_QP_INIT_ATTR_XRCD,
	}, *fakelib.Struct[libibverbs.QpInitAttrEx](r.p.Only("ibv_create_qp_ex"), 1))
	opened := must(x.OpenQP(recv.Num()))(t)
	call := r.p.Only("ibv_open_qp")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.QpOpenAttr{CompMask: 0xb, QpNum: recv.Num(), Xrcd: x.Raw(), QpType: ibverbs.QPTypeXRCRecv},
		*fakelib.Struct[libibverbs.QpOpenAttr](call, 1))
	require.Equal(t, recv.Num(), opened.Num())
	require.Equal(t, ibverbs.QPTypeXRCRecv, opened.Type())
	require.Nil(t, opened.PD())
	send := must(r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeXRCSend, SendCQ: cq, SendQueue: 4}))(t)
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
	xrc := must(r.pd.CreateSRQ(ibverbs.SRQConfig{Type: ibverbs.SRQTypeXRC, RecvQueue: 5, RecvSegments: 2, XRCD: x, CQ: cq}))(t)
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
		Type: ibverbs.SRQTypeTagMatching, RecvQueue: 6, CQ: cq, MaxTags: 100, MaxTagOps: 10,
	}))(t)
	require.Equal(t, libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: 6, MaxSge: 1}, CompMask: 0x1b, SrqType: ibverbs.SRQTypeTagMatching,
		Pd: r.pd.Raw(), Cq: cq.Raw(), TmCap: libibverbs.TmCap{MaxNumTags: 100, MaxOps: 10},
	}, *fakelib.Struct[libibverbs.SrqInitAttrEx](r.p.Only("ibv_create_srq_ex"), 1))
	require.NoError(t, tags.Close())
}
