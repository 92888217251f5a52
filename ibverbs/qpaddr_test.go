// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// connectTo connects two ends with each other, each with what the other sent.
func connectTo(t *testing.T, a, b *end, options ibverbs.ConnectConfig) (atA, atB ibverbs.QPAddr) {
	t.Helper()
	atA = must(a.qp.Addr(ibverbs.QPAddrConfig{}))(t)
	atB = must(b.qp.Addr(ibverbs.QPAddrConfig{Port: b.rig.device.Port, PSN: 77}))(t)
	toA := must(ibverbs.ParseQPAddr(atB.String()))(t)
	var toB ibverbs.QPAddr
	require.NoError(t, json.Unmarshal(must(json.Marshal(atA))(t), &toB))
	require.NoError(t, a.qp.ConnectTo(atA, toA, options))
	require.NoError(t, b.qp.ConnectTo(atB, toB, options))
	for _, e := range []*end{a, b} {
		require.Equal(t, ibverbs.QPStateRTS, must(e.qp.State())(t))
	}
	return atA, atB
}

func TestConnectTo(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	a, b := r.end(nil), r.end(nil)
	atA, atB := connectTo(t, a, b, ibverbs.ConnectConfig{})
	require.Equal(t, a.qp.Num(), atA.QPNum)
	require.Equal(t, r.device.Port, atA.Port)
	require.Equal(t, r.device.GID, atA.GID)
	require.Equal(t, r.device.GIDIndex, atA.GIDIndex)
	require.Positive(t, atA.ReadDepth)
	require.EqualValues(t, 77, atB.PSN)
	t.Log(atA)

	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	require.NoError(t, libibverbs.QueryQp(a.qp.Raw(), &attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_AV|libibverbs.IBV_QP_PATH_MTU|libibverbs.IBV_QP_TIMEOUT, &init))
	require.Equal(t, atA.MTU, ibverbs.MTU(attr.PathMtu))
	require.Equal(t, atB.QPNum, attr.DestQpNum)
	require.EqualValues(t, 77, attr.RqPsn)
	require.EqualValues(t, atA.ReadDepth, attr.MaxDestRdAtomic)
	require.EqualValues(t, atB.ReadDepth, attr.MaxRdAtomic)
	require.Equal(t, []uint8{14, 6, 7, 12}, []uint8{attr.Timeout, attr.RetryCnt, attr.RnrRetry, attr.MinRnrTimer})

	message := pattern(a.mr.Bytes()[:5000], 3)
	b.postRecv(t, 1, b.mr.All())
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Send(2, ibverbs.SendSignaled, a.mr.Sub(0, len(message)))
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, len(message), collectOK(t, b.recvCQ, 1)[0].ByteLen())
	require.Equal(t, message, b.mr.Bytes()[:len(message)])
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Read(3, b.mr.Remote().Sub(0, 64), ibverbs.SendSignaled, a.mr.Sub(8192, 64))
	})
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, message[:64], a.mr.Bytes()[8192:8192+64])
}

func TestConnectToUC(t *testing.T) {
	r := open(t)
	a, b := r.endOf(ibverbs.QPTypeUC), r.endOf(ibverbs.QPTypeUC)
	atA, _ := connectTo(t, a, b, ibverbs.ConnectConfig{MaxMTU: 1})
	require.Zero(t, atA.ReadDepth)
	message := pattern(a.mr.Bytes()[:1000], 5)
	b.postRecv(t, 1, b.mr.All())
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Send(2, ibverbs.SendSignaled, a.mr.Sub(0, len(message)))
	})
	collectOK(t, a.sendCQ, 1)
	collectOK(t, b.recvCQ, 1)
	require.Equal(t, message, b.mr.Bytes()[:len(message)])
}

// endOf is end with a queue pair of another type.
func (r *rig) endOf(t ibverbs.QPType) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil), mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{Type: t, SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, RecvQueue: depth})
	e.send = must(ibverbs.NewSendBatch(depth, 1))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, 1))(r.t)
	return e
}

// A datagram gets through between queue pairs that Activate made ready.
func TestActivate(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	a, b := r.endOf(ibverbs.QPTypeUD), r.endOf(ibverbs.QPTypeUD)
	atA := must(a.qp.Addr(ibverbs.QPAddrConfig{}))(t)
	atB := must(b.qp.Addr(ibverbs.QPAddrConfig{QKey: 0x1234}))(t)
	require.EqualValues(t, ibverbs.DefaultQKey, atA.QKey)
	require.EqualValues(t, 0x1234, atB.QKey)
	require.NoError(t, a.qp.Activate(atA, 0))
	require.NoError(t, b.qp.Activate(atB, 0))
	require.Equal(t, ibverbs.QPStateRTS, must(a.qp.State())(t))

	const grh = 40 // bytes before each datagram
	b.postRecv(t, 1, b.mr.Sub(0, 1024))
	message := pattern(a.mr.Bytes()[:100], 9)
	av := libibverbs.AhAttr{
		IsGlobal: 1, PortNum: uint8(atA.Port), Dlid: atB.LID,
		Grh: libibverbs.GlobalRoute{SgidIndex: uint8(atA.GIDIndex), HopLimit: 1},
	}
	*av.Grh.Dgid.Raw() = atB.GID
	ah := must(libibverbs.CreateAh(r.pd.Raw(), &av))(t)
	defer func() { require.NoError(t, libibverbs.DestroyAh(ah)) }()
	var pinner runtime.Pinner
	defer pinner.Unpin()
	segment := &libibverbs.Sge{Addr: a.mr.Remote().Addr, Length: uint32(len(message)), Lkey: a.mr.LKey()}
	pinner.Pin(segment)
	wr := &libibverbs.SendWr{
		SgList: segment, NumSge: 1, Opcode: libibverbs.IBV_WR_SEND, SendFlags: ibverbs.SendSignaled,
	}
	*wr.Wr.Ud() = libibverbs.SendWrWrUd{Ah: ah, RemoteQpn: atB.QPNum, RemoteQkey: atB.QKey}
	var bad *libibverbs.SendWr
	require.NoError(t, libibverbs.PostSend(a.qp.Raw(), wr, &bad))
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, grh+len(message), collectOK(t, b.recvCQ, 1)[0].ByteLen())
	require.Equal(t, message, b.mr.Bytes()[grh:grh+len(message)])
}

func TestConnectToRefuses(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	a, ud := r.end(nil), r.endOf(ibverbs.QPTypeUD)
	local := must(a.qp.Addr(ibverbs.QPAddrConfig{}))(t)
	other := local
	other.QPNum++
	name := "QP " + strconv.Itoa(int(local.QPNum)) + " of " + r.device.Name
	for want, err := range map[string]error{
		"QP.ConnectTo (" + name + "): the local address is that of QP " + strconv.Itoa(int(other.QPNum)):  a.qp.ConnectTo(other, local, ibverbs.ConnectConfig{}),
		"QP.ConnectTo (" + name + "): remote address: queue pair number is 0x0, not from 0x1 to 0xffffff": a.qp.ConnectTo(local, ibverbs.QPAddr{}, ibverbs.ConnectConfig{}),
		"QP.ConnectTo (" + name + "): local address: queue pair number is 0x0, not from 0x1 to 0xffffff":  a.qp.ConnectTo(ibverbs.QPAddr{}, local, ibverbs.ConnectConfig{}),
		"QP.ConnectTo (" + name + "): RetryCount is 9, more than 7":                                       a.qp.ConnectTo(local, other, ibverbs.ConnectConfig{RetryCount: 9}),
		"QP.ConnectTo (" + name + "): P_Key index is 65536, not from 0 to 65535":                          a.qp.ConnectTo(local, other, ibverbs.ConnectConfig{PKeyIndex: 1 << 16}),
		"QP.Activate (" + name + "): the queue pair is of type IBV_QPT_RC, not IBV_QPT_UD":                a.qp.Activate(local, 0),
	} {
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Equal(t, ibverbs.QPStateReset, must(a.qp.State())(t), "nothing was done")

	datagram := must(ud.qp.Addr(ibverbs.QPAddrConfig{}))(t)
	require.ErrorContains(t, ud.qp.ConnectTo(datagram, local, ibverbs.ConnectConfig{}), "the queue pair is of type IBV_QPT_UD")
	require.NoError(t, a.qp.ConnectTo(local, other, ibverbs.ConnectConfig{}))
	err := a.qp.ConnectTo(local, other, ibverbs.ConnectConfig{})
	require.ErrorIs(t, err, syscall.EINVAL, "it is connected")
	require.ErrorContains(t, err, "ibv_modify_qp ("+name+")")

	_, err = a.qp.Addr(ibverbs.QPAddrConfig{GID: ibverbs.GIDConfig{NetDev: "no_such0"}})
	require.ErrorIs(t, err, ibverbs.ErrNoGID)
	_, err = a.qp.Addr(ibverbs.QPAddrConfig{PSN: 1 << 24})
	require.ErrorContains(t, err, "packet sequence number is 0x1000000")
	for _, port := range []int{-1, 200, 256} {
		_, err = a.qp.Addr(ibverbs.QPAddrConfig{Port: port})
		require.Error(t, err)
		require.False(t, errors.Is(err, syscall.ENETDOWN), "there is no such port")
	}
}

// C refuses GIDs of different kinds without a word.
func TestGIDsOfDifferentKinds(t *testing.T) {
	r := open(t)
	at := func(e *end, addr netip.Addr) ibverbs.QPAddr {
		return must(e.qp.Addr(ibverbs.QPAddrConfig{GID: ibverbs.GIDConfig{Addr: addr}}))(t)
	}
	d := r.device
	if !d.IPv4.IsValid() || !d.IPv6.IsValid() {
		t.Skip("the device has no addresses of both kinds")
	}
	a, b := r.end(nil), r.end(nil)
	err := a.qp.ConnectTo(at(a, d.IPv4), at(b, d.IPv6), ibverbs.ConnectConfig{})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "the local GID is of "+d.IPv4.String()+" and the peer's is of "+d.IPv6.String())
	err = b.qp.ConnectTo(at(b, d.IPv6), at(a, d.IPv4), ibverbs.ConnectConfig{})
	require.ErrorContains(t, err, "the local GID is of "+d.IPv6.String()+" and the peer's is of "+d.IPv4.String())

	c, ud := r.end(nil), r.endOf(ibverbs.QPTypeUD)
	require.NoError(t, c.qp.ConnectTo(at(c, d.IPv4), at(b, d.IPv4), ibverbs.ConnectConfig{}))
	_, err = r.pd.CreateDestination(at(ud, d.IPv4), at(ud, d.IPv6))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "both must be of IPv4 or both of IPv6")
}
