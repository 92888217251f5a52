package rdmacm_test

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Groups that no program has by chance.
var (
	groupIPv4  = netip.MustParseAddr("239.86.69.66")
	otherGroup = netip.MustParseAddr("239.86.69.67")
	groupIPv6  = netip.MustParseAddr("ff1e::5642")
)

// cmQKey is the key of all datagrams of the port space UDP.
const cmQKey = 0x01234567

// udEnd is an end for datagrams, made step by step, with a receive posted.
type udEnd struct {
	*end
	mr *ibverbs.MR
}

// newUDEnd returns one that is bound to an address.
func newUDEnd(t testing.TB, ip netip.Addr) *udEnd {
	t.Helper()
	e := newIdleUDEnd(t)
	require.NoError(t, e.id.BindAddr(netip.AddrPortFrom(ip, 0)))
	e.makeQP()
	return e
}

func newIdleUDEnd(t testing.TB) *udEnd {
	t.Helper()
	e := &udEnd{end: &end{t: t, ch: newChannel(t)}}
	var err error
	e.id, err = e.ch.NewID(rdmacm.PortSpaceUDP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.id.Close()) })
	return e
}

// makeQP makes the queue pair, memory of 1 KiB, and a receive of all of it.
func (e *udEnd) makeQP() {
	e.t.Helper()
	device, err := e.id.Context()
	require.NoError(e.t, err)
	e.pd, err = device.AllocPD()
	require.NoError(e.t, err)
	channel, err := device.CreateCompChannel()
	require.NoError(e.t, err)
	e.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: 64, Channel: channel})
	require.NoError(e.t, err)
	e.qp, err = e.id.CreateQP(e.pd, ibverbs.QPConfig{
		Type: ibverbs.QPTypeUD, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 8, MaxRecvWR: 8,
	})
	require.NoError(e.t, err)
	e.mr, err = e.pd.Alloc(1024, ibverbs.AccessLocalWrite)
	require.NoError(e.t, err)
	e.postRecv()
	e.t.Cleanup(func() {
		require.NoError(e.t, e.qp.Close())
		require.NoError(e.t, e.cq.Close())
		require.NoError(e.t, channel.Close())
		require.NoError(e.t, e.mr.Close())
		require.NoError(e.t, e.pd.Close())
	})
}

func (e *udEnd) postRecv() {
	e.t.Helper()
	b, err := ibverbs.NewRecvBatch(1, 1)
	require.NoError(e.t, err)
	require.NoError(e.t, b.Recv(1, e.mr.Sub(0, 512)))
	_, err = e.qp.PostRecv(b)
	require.NoError(e.t, err)
}

// sendTo sends a message and waits until it has left.
func (e *udEnd) sendTo(ev *rdmacm.Event, text string) {
	e.t.Helper()
	ah, err := e.pd.CreateAH(ev.Path)
	require.NoError(e.t, err)
	defer func() { require.NoError(e.t, ah.Close()) }()
	b, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(e.t, err)
	n := copy(e.mr.Bytes()[512:], text)
	to := ibverbs.Destination{AH: ah, QPNum: ev.QPNum, QKey: ev.QKey}
	require.NoError(e.t, b.SendTo(2, to, ibverbs.SendSignaled, e.mr.Sub(512, n)))
	_, err = e.qp.PostSend(b)
	require.NoError(e.t, err)
	require.EqualValues(e.t, 2, e.completion().ID())
}

// completion returns the next one, which must be of a success.
func (e *udEnd) completion() *ibverbs.WC {
	e.t.Helper()
	wcs := make([]ibverbs.WC, 1)
	_, err := e.cq.Wait(bounded(e.t), wcs)
	require.NoError(e.t, err)
	require.NoError(e.t, wcs[0].Err())
	return &wcs[0]
}

// received returns the next message, and posts the receive again.
func (e *udEnd) received() string {
	e.t.Helper()
	wc := e.completion()
	require.EqualValues(e.t, 1, wc.ID())
	text := string(e.mr.Bytes()[ibverbs.GRHLen:wc.ByteLen()])
	e.postRecv()
	return text
}

// joinAs joins a group and returns the event that says so.
func (e *udEnd) joinAs(group netip.Addr, flags rdmacm.JoinFlags, value any) *rdmacm.Event {
	e.t.Helper()
	require.NoError(e.t, e.id.JoinMulticast(group, flags, value))
	ev := next(e.t, e.ch, rdmacm.EventMulticastJoin)
	require.Same(e.t, e.id, ev.ID)
	require.NoError(e.t, ev.Err())
	return ev
}

func TestMulticastEvents(t *testing.T) {
	d := needDevice(t)
	sender, member, other := newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4)
	type value struct{ name string }
	mine := &value{"mine"}
	joined := member.joinAs(groupIPv4, rdmacm.JoinFull, mine)
	require.Same(t, mine, joined.Value)
	require.Equal(t, groupIPv4, joined.Path.DGID.Addr())
	require.Equal(t, d.Port, joined.Path.Port)
	require.EqualValues(t, 0xFFFFFF, joined.QPNum)
	require.EqualValues(t, cmQKey, joined.QKey)
	require.Empty(t, joined.PrivateData)
	require.Nil(t, member.joinAs(otherGroup, rdmacm.JoinFull, nil).Value)

	group := sender.joinAs(groupIPv4, rdmacm.JoinSendOnly, 7)
	require.Equal(t, 7, group.Value)
	otherJoined := other.joinAs(otherGroup, rdmacm.JoinFull, "other")
	require.Equal(t, "other", otherJoined.Value)

	sender.sendTo(group, "to all")
	require.Equal(t, "to all", member.received())
	sender.sendTo(otherJoined, "to others")
	require.Equal(t, "to others", member.received())
	require.Equal(t, "to others", other.received(), "and nothing before")

	// Who has left hears no more.
	require.NoError(t, member.id.LeaveMulticast(groupIPv4))
	sender.sendTo(group, "to nobody")
	sender.sendTo(otherJoined, "again")
	require.Equal(t, "again", member.received())
	require.Equal(t, "again", other.received())
	member.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	sender.sendTo(group, "back")
	require.Equal(t, "back", member.received())
}

func TestMulticastMistakes(t *testing.T) {
	d := needDevice(t)
	e := newUDEnd(t, d.IPv4)
	check := func(err error, want syscall.Errno, text string) {
		t.Helper()
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, text)
	}
	check(e.id.JoinMulticast(d.IPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast (192.0.2.1): the address is not that of a multicast group")
	check(e.id.JoinMulticast(netip.Addr{}, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast (invalid IP): the address is not")
	check(e.id.LeaveMulticast(d.IPv4), syscall.EINVAL, "rdma_leave_multicast (192.0.2.1): the address is not")
	check(e.id.JoinMulticast(groupIPv4, 99, nil), syscall.EINVAL, "rdma_join_multicast_ex ("+groupIPv4.String()+")")
	check(e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL, "rdma_leave_multicast ("+groupIPv4.String()+")")

	e.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	check(e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EADDRINUSE, "rdma_join_multicast ("+groupIPv4.String()+")")
	check(e.id.JoinMulticast(groupIPv4, rdmacm.JoinSendOnly, nil), syscall.EADDRINUSE, "rdma_join_multicast ("+groupIPv4.String()+")")
	require.NoError(t, e.id.LeaveMulticast(groupIPv4))
	check(e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")

	// Linux has no groups of IPv6 on RoCE v2.
	six := newUDEnd(t, d.IPv6)
	err := six.id.JoinMulticast(groupIPv6, rdmacm.JoinFull, nil)
	check(err, syscall.EOPNOTSUPP, "rdma_join_multicast ("+groupIPv6.String()+")")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	check(six.id.LeaveMulticast(groupIPv6), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")
	ib := rdmacm.IBAddr{GID: ibverbs.GIDFromAddr(groupIPv6)}
	require.ErrorIs(t, six.id.JoinMulticastIB(ib, rdmacm.JoinFull, nil), errors.ErrUnsupported)
	check(six.id.LeaveMulticastIB(ib), syscall.EADDRNOTAVAIL, "rdma_leave_multicast")

	tcp := newEnd(t)
	check(tcp.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast (unbound id): bind or resolve the address first")
	check(tcp.id.LeaveMulticast(groupIPv4), syscall.EINVAL, "rdma_leave_multicast (unbound id): join first")
	require.NoError(t, tcp.id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
	check(tcp.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "rdma_join_multicast ("+groupIPv4.String()+")")

	for name, id := range map[string]*rdmacm.ID{"nil": nil, "zero": {}} {
		require.ErrorIs(t, id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), os.ErrInvalid, name)
		require.ErrorIs(t, id.LeaveMulticast(groupIPv4), os.ErrInvalid, name)
	}
}

// Memberships end with the queue pair or the id, and the network interface's
// with them.
func TestMulticastEndsWithItsOwner(t *testing.T) {
	d := needDevice(t)
	inGroup := func() bool { return isMember(t, groupIPv4) }
	require.False(t, inGroup())
	e := newUDEnd(t, d.IPv4)
	e.joinAs(groupIPv4, rdmacm.JoinFull, nil)
	require.True(t, inGroup())
	require.NoError(t, e.qp.Close())
	require.False(t, inGroup())
	require.ErrorIs(t, e.id.LeaveMulticast(groupIPv4), syscall.EADDRNOTAVAIL)

	// The id alone, whose queue pair is gone; and its event is never read.
	require.NoError(t, e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil))
	require.True(t, inGroup())
	require.NoError(t, e.id.Close())
	require.False(t, inGroup())
	require.ErrorIs(t, e.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), os.ErrClosed)
}

// Leaving while the event that completes the join is being read leaves nothing
// behind: the queue pair can be destroyed, and no message comes.
func TestLeaveWhileJoining(t *testing.T) {
	const rounds = 100
	d := needDevice(t)
	sender, member := newUDEnd(t, d.IPv4), newUDEnd(t, d.IPv4)
	group := sender.joinAs(groupIPv4, rdmacm.JoinSendOnly, nil)
	for round := range rounds {
		require.NoError(t, member.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil))
		left := make(chan error, 1)
		go func() {
			for range round { // each time a little later
				runtime.Gosched()
			}
			left <- member.id.LeaveMulticast(groupIPv4)
		}()
		for done := false; !done; {
			select {
			case err := <-left:
				require.NoError(t, err)
				done = true
			default:
				_, _, err := member.ch.Poll()
				require.NoError(t, err)
			}
		}
		sender.sendTo(group, "unheard")
	}
	member.joinAs(otherGroup, rdmacm.JoinFull, nil)
	sender.sendTo(&rdmacm.Event{Path: otherPath(group), QPNum: group.QPNum, QKey: group.QKey}, "heard")
	require.Equal(t, "heard", member.received(), "and nothing before")
}

func otherPath(group *rdmacm.Event) ibverbs.AHAttr {
	path := group.Path
	path.DGID = ibverbs.GIDFromAddr(otherGroup)
	return path
}
