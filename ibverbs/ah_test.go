// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// udEnd makes an end for datagrams that is ready to send.
func (r *rig) udEnd() *end {
	r.t.Helper()
	e := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	r.bring(e.qp, 0, ibverbs.QPStateRTS)
	return e
}

// An answer goes to the sender that the completion names.
func TestAnswerADatagram(t *testing.T) {
	r := open(t)
	a, b := r.udEnd(), r.udEnd()
	ask := must(r.pd.CreateAH(r.path()))(t)
	r.cleanup(ask)
	require.Same(t, r.pd, ask.PD())
	a.postRecv(t, 1, a.mr.Sub(0, 100))
	b.postRecv(t, 2, b.mr.Sub(0, 100))
	question := pattern(a.mr.Bytes()[500:508], 3)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.SendTo(3, ibverbs.Destination{AH: ask, QPNum: b.qp.Num(), QKey: qkey}, ibverbs.SendSignaled, a.mr.Sub(500, 8))
	})
	collectOK(t, a.sendCQ, 1)
	wc := collectOK(t, b.recvCQ, 1)[0]
	require.Equal(t, a.qp.Num(), wc.SrcQPNum())
	require.Equal(t, question, b.mr.Bytes()[ibverbs.GRHLen:][:8])

	grh := must(ibverbs.ParseGRH(b.mr.Bytes()))(t)
	require.Equal(t, r.device.GID.Addr(), grh.SGID.Addr())
	require.Equal(t, r.device.GID.Addr(), grh.DGID.Addr())
	if r.device.GID.Addr().Is4() { // RoCE v2, behind a header of UDP
		require.Equal(t, 4, grh.Version)
		require.EqualValues(t, syscall.IPPROTO_UDP, grh.NextHeader)
		require.GreaterOrEqual(t, grh.PayloadLen, len(question))
	}

	back := must(r.c.AHAttrFromWC(&wc, b.mr.Bytes(), r.device.Port))(t)
	require.Equal(t, r.device.GID.Addr(), back.DGID.Addr())
	require.Equal(t, r.device.Port, back.Port)
	fromAttr := must(r.pd.CreateAH(back))(t)
	r.cleanup(fromAttr)
	fromWC := must(r.pd.CreateAHFromWC(&wc, b.mr.Bytes(), r.device.Port))(t)
	r.cleanup(fromWC)
	for _, to := range []*ibverbs.AH{fromAttr, fromWC} {
		answer := pattern(b.mr.Bytes()[900:908], byte(wc.SrcQPNum()))
		b.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.SendTo(4, ibverbs.Destination{AH: to, QPNum: wc.SrcQPNum(), QKey: qkey}, ibverbs.SendSignaled, b.mr.Sub(900, 8))
		})
		collectOK(t, b.sendCQ, 1)
		require.Equal(t, b.qp.Num(), collectOK(t, a.recvCQ, 1)[0].SrcQPNum())
		require.Equal(t, answer, a.mr.Bytes()[ibverbs.GRHLen:][:8])
		a.postRecv(t, 1, a.mr.Sub(0, 100))
	}

	// A header that was not received.
	_, err := r.pd.CreateAHFromWC(&wc, make([]byte, ibverbs.GRHLen), r.device.Port)
	require.Error(t, err)
	require.ErrorContains(t, err, "ibv_create_ah_from_wc (PD ")
	_, err = r.c.AHAttrFromWC(&wc, make([]byte, ibverbs.GRHLen), r.device.Port)
	require.ErrorContains(t, err, "ibv_init_ah_from_wc ("+r.c.Name())
}

func TestBadAH(t *testing.T) {
	r := open(t)
	r.have(testdevice.Handles)
	for name, tt := range map[string]struct {
		change func(*ibverbs.AHAttr)
		want   error
	}{
		"no port":       {func(a *ibverbs.AHAttr) { a.Port = 0 }, syscall.EINVAL},
		"other port":    {func(a *ibverbs.AHAttr) { a.Port = 77 }, syscall.EINVAL},
		"no route":      {func(a *ibverbs.AHAttr) { a.DGID = ibverbs.GID{} }, syscall.EINVAL},
		"no such GID":   {func(a *ibverbs.AHAttr) { a.SGIDIndex = 255 }, syscall.ENODATA},
		"flow label":    {func(a *ibverbs.AHAttr) { a.FlowLabel = 1 << 20 }, syscall.EINVAL},
		"service level": {func(a *ibverbs.AHAttr) { a.SL = 16 }, syscall.EINVAL},
	} {
		path := r.path()
		tt.change(&path)
		_, err := r.pd.CreateAH(path)
		require.ErrorIs(t, err, tt.want, name)
		require.ErrorContains(t, err, "ibv_create_ah (PD ", name)
	}
}

// The kernel looks for a neighbour that is not there, while other goroutines go
// on, and gives up.
func TestAHOfNobody(t *testing.T) {
	r := open(t)
	path := r.path()
	path.DGID = ibverbs.GID(netip.MustParseAddr("::ffff:192.0.2.77").As16())
	start := time.Now()
	_, err := r.pd.CreateAH(path)
	require.Error(t, err)
	require.ErrorContains(t, err, "ibv_create_ah (PD ")
	require.ErrorContains(t, err, fmt.Sprintf(", from GID index %d of port %d to 192.0.2.77)", r.device.GIDIndex, r.device.Port))
	t.Logf("%v after %v", err, time.Since(start))
}

func TestAHCloseOrder(t *testing.T) {
	r := open(t)
	r.have(testdevice.Handles)
	pd := must(r.c.AllocPD())(t)
	ah := must(pd.CreateAH(r.path()))(t)
	err := pd.Close()
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorContains(t, err, "close first: AH ")
	require.NoError(t, ah.Close())
	require.NoError(t, ah.Close())
	require.NoError(t, pd.Close())
	_, err = pd.CreateAH(r.path())
	require.ErrorIs(t, err, os.ErrClosed)
}

// joinGroup makes the host a member, as rdmacm does for programs that join a
// group through it. Without a member the network delivers nothing.
func joinGroup(t *testing.T, r *rig, group netip.Addr) {
	t.Helper()
	netDev := must(net.InterfaceByName(r.device.NetDev))(t)
	r.cleanup(must(net.ListenMulticastUDP("udp", netDev, &net.UDPAddr{IP: group.AsSlice(), Port: 7777}))(t))
}

// A datagram for a group reaches the queue pair that is in it.
func TestMulticast(t *testing.T) {
	r := open(t)
	r.have(testdevice.Groups)
	a, b := r.udEnd(), r.udEnd()
	addr := netip.MustParseAddr("239.1.2.3")
	joinGroup(t, r, addr)
	group := ibverbs.GID(addr.As16())
	require.NoError(t, b.qp.AttachMulticast(group, 0))
	require.NoError(t, b.qp.AttachMulticast(group, 0), "twice is no error")
	path := r.path()
	path.DGID = group
	to := must(r.pd.CreateAH(path))(t)
	r.cleanup(to)
	b.postRecv(t, 2, b.mr.Sub(0, 100))
	message := pattern(a.mr.Bytes()[:16], 9)
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.SendTo(3, ibverbs.Destination{AH: to, QPNum: 0xFFFFFF, QKey: qkey}, ibverbs.SendSignaled, a.mr.Sub(0, 16))
	})
	collectOK(t, a.sendCQ, 1)
	wc := collectOK(t, b.recvCQ, 1)[0]
	require.Equal(t, a.qp.Num(), wc.SrcQPNum())
	require.Equal(t, message, b.mr.Bytes()[ibverbs.GRHLen:][:16])
}

// Groups are left by hand, or by Close.
func TestMulticastGroups(t *testing.T) {
	r := open(t)
	r.have(testdevice.Groups)
	group := ibverbs.GID(netip.MustParseAddr("ff0e::4321").As16())
	four := ibverbs.GID(netip.MustParseAddr("::ffff:239.1.2.3").As16())
	e := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	r.bring(e.qp, 0, ibverbs.QPStateRTS)
	require.NoError(t, e.qp.AttachMulticast(group, 0))
	require.NoError(t, e.qp.DetachMulticast(group, 0))
	require.Error(t, e.qp.DetachMulticast(group, 0), "not in it")

	for name, err := range map[string]error{
		"attach to no group": e.qp.AttachMulticast(r.device.GID, 0),
		"detach":             e.qp.DetachMulticast(ibverbs.GID{}, 0),
		"attach RC":          r.end(nil).qp.AttachMulticast(group, 0),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "_mcast (QP ", name)
	}
	require.NoError(t, e.qp.AttachMulticast(group, 0))
	require.NoError(t, e.qp.AttachMulticast(four, 0))
	require.NoError(t, e.qp.Close(), "although it is in groups")
	require.ErrorIs(t, e.qp.AttachMulticast(group, 0), os.ErrClosed)
}
