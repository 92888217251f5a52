// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	tcp = librdmacm.RDMA_PS_TCP
	udp = librdmacm.RDMA_PS_UDP
)

// loopbacks are addresses of every machine.
var loopbacks = map[string]netip.Addr{
	"IPv4": netip.MustParseAddr("127.0.0.1"),
	"IPv6": netip.IPv6Loopback(),
}

// sockaddr returns an address in C's memory.
func sockaddr(addr netip.AddrPort) *librdmacm.Sockaddr {
	s, _ := newSockaddr(addr)
	return s
}

func start(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// program is a program with an event channel.
type program struct {
	t       testing.TB
	channel *librdmacm.EventChannel
}

func newProgram(t testing.TB) *program {
	t.Helper()
	c, err := librdmacm.CreateEventChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, librdmacm.DestroyEventChannel(c)) })
	return &program{t, c}
}

func (p *program) id(ps librdmacm.PortSpace) *librdmacm.CmId {
	p.t.Helper()
	id, err := librdmacm.CreateId(p.channel, nil, ps)
	require.NoError(p.t, err)
	return id
}

// next returns the next event, which is acknowledged when the test has seen it.
func (p *program) next(want librdmacm.CmEventType) *librdmacm.CmEvent {
	p.t.Helper()
	e, err := librdmacm.GetCmEvent(p.channel)
	require.NoError(p.t, err)
	require.Equal(p.t, want, e.Event, "status %d", e.Status)
	return e
}

// pass takes the next event and acknowledges it.
func (p *program) pass(want librdmacm.CmEventType) *librdmacm.CmId {
	p.t.Helper()
	e := p.next(want)
	require.Zero(p.t, e.Status)
	id := e.Id
	require.NoError(p.t, librdmacm.AckCmEvent(e))
	return id
}

func (p *program) listen(ps librdmacm.PortSpace, addr netip.Addr) (*librdmacm.CmId, netip.AddrPort) {
	p.t.Helper()
	id := p.id(ps)
	require.NoError(p.t, librdmacm.BindAddr(id, sockaddr(netip.AddrPortFrom(addr, 0))))
	require.NoError(p.t, librdmacm.Listen(id, 0))
	at, _ := parseSockaddr(id.Route.Addr.SrcAddr())
	require.Equal(p.t, addr, at.Addr())
	require.NotZero(p.t, at.Port())
	return id, at
}

// resolve returns an id with a route.
func (p *program) resolve(ps librdmacm.PortSpace, to netip.AddrPort) *librdmacm.CmId {
	p.t.Helper()
	id := p.id(ps)
	require.NoError(p.t, librdmacm.ResolveAddr(id, nil, sockaddr(to), 1000))
	p.pass(librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED)
	require.NoError(p.t, librdmacm.ResolveRoute(id, 1000))
	p.pass(librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED)
	return id
}

// createQP makes a queue pair with completion queues of its own.
func createQP(t testing.TB, id *librdmacm.CmId) {
	t.Helper()
	attr := libibverbs.QpInitAttr{
		Cap:    libibverbs.QpCap{MaxSendWr: 4, MaxRecvWr: 4, MaxSendSge: 1, MaxRecvSge: 1},
		QpType: id.QpType,
	}
	require.NoError(t, librdmacm.CreateQp(id, nil, &attr))
	require.NotNil(t, id.SendCq)
	require.NotNil(t, id.RecvCq)
}

func destroy(t testing.TB, ids ...*librdmacm.CmId) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, librdmacm.DestroyEp(id))
	}
}

// inC returns a copy of text in C's memory.
func inC(text string) unsafe.Pointer {
	memory := alloc[[256]byte]()
	copy(memory[:], text)
	return unsafe.Pointer(memory)
}

func param(private string) *librdmacm.ConnParam {
	return &librdmacm.ConnParam{
		PrivateData: inC(private), PrivateDataLen: uint8(len(private)),
		ResponderResources: librdmacm.RDMA_MAX_RESP_RES, InitiatorDepth: librdmacm.RDMA_MAX_INIT_DEPTH, RetryCount: 7, RnrRetryCount: 7,
	}
}

// private returns an event's private data without the zeros that fill it up.
func private(e *librdmacm.CmEvent) (data string, length int) {
	p := e.Param.Conn() // begins as param.ud does
	b := privateData(p.PrivateData, p.PrivateDataLen)
	return string(bytes.TrimRight(b, "\x00")), len(b)
}

// accept connects an id with a listener of the other program and returns the
// other end.
func (p *program) accept(client *librdmacm.CmId, server *program) *librdmacm.CmId {
	p.t.Helper()
	createQP(p.t, client)
	require.NoError(p.t, librdmacm.Connect(client, param("hello")))
	request := server.next(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
	other := request.Id
	data, length := private(request)
	require.Equal(p.t, "hello", data)
	require.Equal(p.t, 56, length)
	require.NoError(p.t, librdmacm.AckCmEvent(request))
	createQP(p.t, other)
	require.NoError(p.t, librdmacm.Accept(other, param("welcome")))
	established := p.next(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
	require.Same(p.t, client, established.Id)
	data, length = private(established)
	require.Equal(p.t, "welcome", data)
	require.Equal(p.t, 196, length)
	require.Equal(p.t, other.Qp.QpNum, established.Param.Conn().QpNum)
	require.NoError(p.t, librdmacm.AckCmEvent(established))
	require.Same(p.t, other, server.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED))
	return other
}

// transfer sends a message.
func transfer(t testing.TB, from, to *librdmacm.CmId, text string) {
	t.Helper()
	memory := newObjects(t).memory
	in, out := memory[:4096], memory[4096:]
	copy(out, text)
	toMR, err := librdmacm.RegMsgs(to, start(in), uint64(len(in)))
	require.NoError(t, err)
	fromMR, err := librdmacm.RegMsgs(from, start(out), uint64(len(out)))
	require.NoError(t, err)
	require.NoError(t, librdmacm.PostRecv(to, nil, start(in), uint64(len(in)), toMR))
	require.NoError(t, librdmacm.PostSend(from, nil, start(out), uint64(len(text)), fromMR, libibverbs.IBV_SEND_SIGNALED))
	var wc libibverbs.Wc
	_, err = librdmacm.GetSendComp(from, &wc)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	_, err = librdmacm.GetRecvComp(to, &wc)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	require.Equal(t, text, string(in[:wc.ByteLen]))
	require.NoError(t, librdmacm.DeregMr(toMR))
	require.NoError(t, librdmacm.DeregMr(fromMR))
}

func state(t testing.TB, q *libibverbs.Qp) libibverbs.QpState {
	t.Helper()
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	require.NoError(t, libibverbs.QueryQp(q, &attr, libibverbs.IBV_QP_STATE, &init))
	return attr.QpState
}

func TestConnection(t *testing.T) {
	for name, addr := range loopbacks {
		t.Run(name, func(t *testing.T) {
			client, server := newProgram(t), newProgram(t)
			listener, at := server.listen(tcp, addr)
			a := client.resolve(tcp, at)
			require.Equal(t, int32(1), a.Route.NumPaths)
			require.Equal(t, uint8(libibverbs.IBV_MTU_4096), a.Route.PathRec.Mtu)
			require.Equal(t, uint8(1), a.PortNum)
			gid := [16]byte(wire.GIDOf(addr))
			require.Equal(t, gid, *a.Route.Addr.Addr.Ibaddr().Sgid.Raw())
			require.Equal(t, gid, *a.Route.Addr.Addr.Ibaddr().Dgid.Raw())
			b := client.accept(a, server)
			port, err := librdmacm.GetSrcPort(a)
			require.NoError(t, err)
			peer, err := librdmacm.GetDstPort(b)
			require.NoError(t, err)
			require.Equal(t, port, peer)
			require.Same(t, a.Verbs, b.Verbs)
			transfer(t, a, b, "there")
			transfer(t, b, a, "and back")

			require.NoError(t, librdmacm.Disconnect(a))
			require.Equal(t, libibverbs.IBV_QPS_ERR, state(t, a.Qp))
			require.Same(t, b, server.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED))
			require.NoError(t, librdmacm.Disconnect(b))
			require.Same(t, a, client.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED))
			client.pass(librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT)
			destroy(t, a, b, listener)
		})
	}
}

func TestRejections(t *testing.T) {
	const noListener, consumer, vendorOption = 8, 28, 35
	reject := func(f func(*librdmacm.CmId, unsafe.Pointer, uint8) error) func(*librdmacm.CmId) error {
		return func(id *librdmacm.CmId) error { return f(id, inC("no"), 2) }
	}
	for name, tt := range map[string]struct {
		answer func(*librdmacm.CmId) error // to the request; nil: no listener
		status int32
		data   string
	}{
		"no program listens": {nil, noListener, ""},
		"rejected":           {reject(librdmacm.Reject), consumer, "no"},
		"ECE":                {reject(librdmacm.RejectEce), vendorOption, "no"},
		"destroyed":          {func(*librdmacm.CmId) error { return nil }, consumer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newProgram(t), newProgram(t)
			listener, at := server.listen(tcp, loopbacks["IPv4"])
			a := client.resolve(tcp, at)
			createQP(t, a)
			if tt.answer == nil {
				destroy(t, listener)
			}
			require.NoError(t, librdmacm.Connect(a, param("")))
			if tt.answer != nil {
				b := server.pass(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
				require.NoError(t, tt.answer(b))
				destroy(t, b, listener)
			}
			e := client.next(librdmacm.RDMA_CM_EVENT_REJECTED)
			require.Equal(t, tt.status, e.Status)
			data, _ := private(e)
			require.Equal(t, tt.data, data)
			require.NoError(t, librdmacm.AckCmEvent(e))
			require.Equal(t, libibverbs.IBV_QPS_ERR, state(t, a.Qp))
			destroy(t, a)
		})
	}
}

// The lengths are those of the messages' fields, less what the address takes.
func TestPrivateDataLengths(t *testing.T) {
	client, server := newProgram(t), newProgram(t)
	long := func(n int) *librdmacm.ConnParam { return param(string(make([]byte, n))) }
	for ps, limits := range map[librdmacm.PortSpace]struct{ request, reply int }{tcp: {56, 196}, udp: {180, 136}} {
		listener, at := server.listen(ps, loopbacks["IPv4"])
		a := client.resolve(ps, at)
		createQP(t, a)
		require.ErrorIs(t, librdmacm.Connect(a, long(limits.request+1)), syscall.EINVAL)
		require.NoError(t, librdmacm.Connect(a, long(limits.request)))
		b := server.pass(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
		createQP(t, b)
		require.ErrorIs(t, librdmacm.Accept(b, long(limits.reply+1)), syscall.EINVAL)
		e, err := librdmacm.GetCmEvent(client.channel)
		require.NoError(t, err)
		require.NotZero(t, e.Status, "the peer is told")
		require.NoError(t, librdmacm.AckCmEvent(e))
		destroy(t, a, b, listener)
	}
}

// A program without queue pairs of the ids moves its own, and says so.
func TestEstablish(t *testing.T) {
	client, server := newProgram(t), newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv6"])
	a := client.resolve(tcp, at)
	require.NoError(t, librdmacm.SetLocalEce(a, &libibverbs.Ece{VendorId: 7, Options: 9}))
	p := param("")
	p.QpNum = 77
	require.ErrorIs(t, librdmacm.Connect(a, nil), syscall.EINVAL)
	require.NoError(t, librdmacm.Connect(a, p))
	b := server.pass(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
	var ece libibverbs.Ece
	require.NoError(t, librdmacm.GetRemoteEce(b, &ece))
	require.Equal(t, libibverbs.Ece{VendorId: 7, Options: 9}, ece)
	require.ErrorIs(t, librdmacm.Accept(b, nil), syscall.EINVAL)
	p.QpNum = 78
	require.NoError(t, librdmacm.Accept(b, p))
	e := client.next(librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE)
	require.Equal(t, uint32(78), e.Param.Conn().QpNum)
	require.NoError(t, librdmacm.AckCmEvent(e))
	attr := libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_RTR}
	mask, err := librdmacm.InitQpAttr(a, &attr)
	require.NoError(t, err)
	require.NotZero(t, mask&libibverbs.IBV_QP_DEST_QPN)
	require.Equal(t, uint32(78), attr.DestQpNum)
	require.NoError(t, librdmacm.Establish(a))
	server.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
	require.ErrorIs(t, librdmacm.Notify(b, libibverbs.IBV_EVENT_COMM_EST), syscall.EISCONN)
	destroy(t, a, b, listener)
}

// Datagrams: the service is found, and answers.
func TestDatagrams(t *testing.T) {
	for name, addr := range loopbacks {
		t.Run(name, func(t *testing.T) {
			client, server := newProgram(t), newProgram(t)
			listener, at := server.listen(udp, addr)
			a := client.resolve(udp, at)
			createQP(t, a)
			require.Equal(t, libibverbs.IBV_QPS_RTS, state(t, a.Qp))
			require.NoError(t, librdmacm.Connect(a, param("hello")))
			e := server.next(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
			b := e.Id
			data, length := private(e)
			require.Equal(t, "hello", data)
			require.Equal(t, 180, length)
			require.NoError(t, librdmacm.AckCmEvent(e))
			createQP(t, b)
			require.NoError(t, librdmacm.Accept(b, param("me")))
			e = client.next(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
			data, _ = private(e)
			require.Equal(t, "me", data)
			ud := *e.Param.Ud()
			require.Equal(t, b.Qp.QpNum, ud.QpNum)
			require.NoError(t, librdmacm.AckCmEvent(e))
			datagram(t, a, b, &ud.AhAttr, ud.QpNum, ud.Qkey)
			destroy(t, a, b, listener)
		})
	}
}

// datagram sends a datagram to an address, number and key, where to receives
// it.
func datagram(t testing.TB, from, to *librdmacm.CmId, attr *libibverbs.AhAttr, number, key uint32) {
	t.Helper()
	memory := newObjects(t).memory
	in, out := memory[:4096], memory[4096:]
	copy(out, "datagram")
	ah, err := libibverbs.CreateAh(from.Pd, attr)
	require.NoError(t, err)
	toMR, err := librdmacm.RegMsgs(to, start(in), uint64(len(in)))
	require.NoError(t, err)
	fromMR, err := librdmacm.RegMsgs(from, start(out), uint64(len(out)))
	require.NoError(t, err)
	require.NoError(t, librdmacm.PostRecv(to, nil, start(in), uint64(len(in)), toMR))
	var sge libibverbs.Sge
	sge.Addr, sge.Length, sge.Lkey = uint64(uintptr(start(out))), 8, fromMR.Lkey
	wr := newObjects(t)
	send := (*libibverbs.SendWr)(start(wr.memory[:4096]))
	list := (*libibverbs.Sge)(start(wr.memory[4096:]))
	*list = sge
	send.SgList, send.NumSge = list, 1
	send.Opcode, send.SendFlags = libibverbs.IBV_WR_SEND, libibverbs.IBV_SEND_SIGNALED
	send.Wr.Ud().Ah, send.Wr.Ud().RemoteQpn, send.Wr.Ud().RemoteQkey = ah, number, key
	var bad *libibverbs.SendWr
	require.NoError(t, libibverbs.PostSend(from.Qp, send, &bad))
	var wc libibverbs.Wc
	_, err = librdmacm.GetSendComp(from, &wc)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	_, err = librdmacm.GetRecvComp(to, &wc)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, wc.Status)
	const grh = 40
	require.Equal(t, "datagram", string(in[grh:wc.ByteLen]))
	require.NoError(t, librdmacm.DeregMr(toMR))
	require.NoError(t, librdmacm.DeregMr(fromMR))
	require.NoError(t, libibverbs.DestroyAh(ah))
}

func TestMulticast(t *testing.T) {
	p := newProgram(t)
	group := sockaddr(netip.MustParseAddrPort("239.1.2.3:0"))
	mark := inC("")
	join := func(flags librdmacm.CmMcJoinFlags) (*librdmacm.CmId, librdmacm.UdParam) {
		id := p.id(udp)
		require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 0))))
		createQP(t, id)
		require.NoError(t, librdmacm.JoinMulticastEx(id, &librdmacm.CmJoinMcAttrEx{
			CompMask:  librdmacm.RDMA_CM_JOIN_MC_ATTR_ADDRESS | librdmacm.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
			JoinFlags: flags, Addr: group,
		}, mark))
		e := p.next(librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN)
		require.Same(t, id, e.Id)
		ud := *e.Param.Ud()
		require.Equal(t, mark, ud.PrivateData)
		require.NoError(t, librdmacm.AckCmEvent(e))
		return id, ud
	}
	sender, to := join(librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER)
	member, _ := join(librdmacm.RDMA_MC_JOIN_FLAG_FULLMEMBER)
	datagram(t, sender, member, &to.AhAttr, to.QpNum, to.Qkey)
	for _, id := range []*librdmacm.CmId{sender, member} {
		require.NoError(t, librdmacm.LeaveMulticast(id, group))
		require.ErrorIs(t, librdmacm.LeaveMulticast(id, group), syscall.EADDRNOTAVAIL)
	}
	destroy(t, sender, member)
}

// Leaving a group waits for its events to be acknowledged.
func TestLeaveWaits(t *testing.T) {
	p := newProgram(t)
	group := sockaddr(netip.MustParseAddrPort("239.1.2.4:0"))
	id := p.id(udp)
	require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 0))))
	require.NoError(t, librdmacm.JoinMulticast(id, group, nil))
	e := p.next(librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN)
	waits(t, e, func() error { return librdmacm.LeaveMulticast(id, group) })
	destroy(t, id)
}

// running reports whether a goroutine is in a function.
func running(function string) bool {
	dump := make([]byte, 1<<20)
	return strings.Contains(string(dump[:runtime.Stack(dump, true)]), function)
}

// waits requires that a call does not return before an event is acknowledged.
func waits(t testing.TB, e *librdmacm.CmEvent, call func() error) {
	t.Helper()
	returned := make(chan error)
	go func() { returned <- call() }()
	require.Eventually(t, func() bool { return running("awaitAcks") }, patience, time.Millisecond)
	require.NoError(t, librdmacm.AckCmEvent(e))
	require.NoError(t, <-returned)
}

func TestDestroyWaits(t *testing.T) {
	client, server := newProgram(t), newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv4"])
	a := client.resolve(tcp, at)
	require.NoError(t, librdmacm.Connect(a, param("")))
	request := server.next(librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
	destroy(t, request.Id) // its event is the listener's
	waits(t, request, func() error { return librdmacm.DestroyId(listener) })
	e := client.next(librdmacm.RDMA_CM_EVENT_REJECTED)
	waits(t, e, func() error { return librdmacm.DestroyId(a) })
}

// Events that the program has not taken when it destroys an id are dropped, and
// the descriptor counts them no more.
func TestDestroyWithPendingEvents(t *testing.T) {
	client, server := newProgram(t), newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv4"])
	a := client.resolve(tcp, at)
	require.NoError(t, librdmacm.Connect(a, param("")))
	require.Eventually(t, func() bool { return pending(server) == 1 }, patience, time.Millisecond)
	require.NoError(t, librdmacm.DestroyId(listener))
	client.next(librdmacm.RDMA_CM_EVENT_REJECTED)
	require.NoError(t, syscall.SetNonblock(int(server.channel.Fd), true))
	_, err := librdmacm.GetCmEvent(server.channel)
	require.ErrorIs(t, err, syscall.EAGAIN)
	var one [8]byte
	_, err = syscall.Read(int(server.channel.Fd), one[:])
	require.Equal(t, syscall.EAGAIN, err)
}

// pending returns how many events wait in a channel.
func pending(p *program) int {
	l := self()
	l.Lock()
	defer l.Unlock()
	return l.eventChannels[p.channel].e.Len()
}

func TestMigration(t *testing.T) {
	from, to := newProgram(t), newProgram(t)
	id := from.id(tcp)
	require.NoError(t, librdmacm.ResolveAddr(id, nil, sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 7)), 1000))
	require.NoError(t, librdmacm.MigrateId(id, to.channel))
	require.Same(t, to.channel, id.Channel)
	require.Zero(t, pending(from))
	e := to.next(librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED)
	require.Same(t, id, e.Id)
	waits(t, e, func() error { return librdmacm.MigrateId(id, from.channel) })
	require.NoError(t, librdmacm.MigrateId(id, nil)) // calls wait from now on
	require.ErrorIs(t, librdmacm.MigrateId(id, nil), syscall.EINVAL)
	require.NoError(t, librdmacm.ResolveRoute(id, 1000))
	require.Equal(t, librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED, id.Event.Event)
	require.NoError(t, librdmacm.MigrateId(id, to.channel))
	require.Nil(t, id.Event)
	destroy(t, id)
}

// Endpoints: each call waits for its event.
func TestEndpoints(t *testing.T) {
	qp := libibverbs.QpInitAttr{
		Cap: libibverbs.QpCap{MaxSendWr: 4, MaxRecvWr: 4, MaxSendSge: 1, MaxRecvSge: 1}, SqSigAll: 1,
	}
	info := func(flags int32, port string) *librdmacm.Addrinfo {
		res, err := librdmacm.Getaddrinfo("127.0.0.1", port, &librdmacm.Addrinfo{AiFlags: flags, AiPortSpace: tcp})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, librdmacm.Freeaddrinfo(res)) })
		return res
	}
	listener, err := librdmacm.CreateEp(info(librdmacm.RAI_PASSIVE, "0"), nil, &qp)
	require.NoError(t, err)
	require.NoError(t, librdmacm.Listen(listener, 0))
	to := info(0, "1")
	port, err := librdmacm.GetSrcPort(listener)
	require.NoError(t, err)
	(*librdmacm.SockaddrIn)(unsafe.Pointer(to.AiDstAddr)).SinPort = port

	accept := func(f func(*librdmacm.CmId) error) chan *librdmacm.CmId {
		done := make(chan *librdmacm.CmId, 1)
		go func() {
			id, err := librdmacm.GetRequest(listener)
			if err != nil || f(id) != nil {
				id = nil
			}
			done <- id
		}()
		return done
	}
	active := qp
	a, err := librdmacm.CreateEp(to, nil, &active)
	require.NoError(t, err)
	accepted := accept(func(id *librdmacm.CmId) error { return librdmacm.Accept(id, nil) })
	require.NoError(t, librdmacm.Connect(a, nil))
	b := <-accepted
	require.NotNil(t, b)
	transfer(t, a, b, "synchronous")
	ended := make(chan error)
	go func() { ended <- librdmacm.Disconnect(b) }()
	require.NoError(t, librdmacm.Disconnect(a))
	require.NoError(t, <-ended)
	destroy(t, a, b)

	active = qp // C has written to the other
	a, err = librdmacm.CreateEp(to, nil, &active)
	require.NoError(t, err)
	rejected := accept(func(id *librdmacm.CmId) error { return librdmacm.Reject(id, nil, 0) })
	require.ErrorIs(t, librdmacm.Connect(a, nil), syscall.ECONNREFUSED)
	destroy(t, a, <-rejected, listener)
}

// The network is silent about an address that no host has.
func TestNoHostThere(t *testing.T) {
	p := newProgram(t)
	nobody := sockaddr(netip.MustParseAddrPort("127.0.0.77:7"))
	id := p.id(tcp)
	require.NoError(t, librdmacm.ResolveAddr(id, nil, nobody, 20))
	require.ErrorIs(t, librdmacm.ResolveAddr(id, nil, nobody, 20), syscall.EINVAL)
	e := p.next(librdmacm.RDMA_CM_EVENT_ADDR_ERROR)
	require.Equal(t, -int32(syscall.ETIMEDOUT), e.Status)
	require.NoError(t, librdmacm.AckCmEvent(e))
	require.NoError(t, librdmacm.ResolveAddr(id, nil, sockaddr(netip.MustParseAddrPort("127.0.0.1:7")), 20), "another try")
	p.pass(librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED)
	waiting := p.id(tcp)
	require.NoError(t, librdmacm.ResolveAddr(waiting, nil, nobody, 1<<30))
	destroy(t, id, waiting)
	synchronous, err := librdmacm.CreateId(nil, nil, tcp)
	require.NoError(t, err)
	require.ErrorIs(t, librdmacm.ResolveAddr(synchronous, nil, nobody, 1), syscall.ETIMEDOUT)
	destroy(t, synchronous)
}

func TestAddrinfo(t *testing.T) {
	const rc, ud = libibverbs.IBV_QPT_RC, libibverbs.IBV_QPT_UD
	for name, tt := range map[string]struct {
		host, service string
		hints         *librdmacm.Addrinfo
		src, dst      string
		qpType        libibverbs.QpType
		ps            librdmacm.PortSpace
		code          int
		err           error
	}{
		"no hints":           {host: "127.0.0.1", service: "7", dst: "127.0.0.1:7", qpType: rc, ps: tcp},
		"IPv6":               {host: "::1", service: "7", dst: "[::1]:7", qpType: rc, ps: tcp},
		"name of service":    {host: "::1", service: "http", dst: "[::1]:80", qpType: rc, ps: tcp},
		"no service":         {host: "127.0.0.1", dst: "127.0.0.1:0", qpType: rc, ps: tcp},
		"passive":            {service: "7", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_PASSIVE}, src: "0.0.0.0:7", qpType: rc, ps: tcp},
		"passive, IPv6":      {service: "7", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_PASSIVE, AiFamily: syscall.AF_INET6}, src: "[::]:7", qpType: rc, ps: tcp},
		"passive with host":  {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_PASSIVE}, src: "127.0.0.1:0", qpType: rc, ps: tcp},
		"this machine":       {service: "7", hints: &librdmacm.Addrinfo{AiFamily: syscall.AF_INET}, dst: "127.0.0.1:7", qpType: rc, ps: tcp},
		"datagrams":          {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiPortSpace: udp}, dst: "127.0.0.1:0", qpType: ud, ps: udp},
		"datagrams by type":  {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiQpType: ud}, dst: "127.0.0.1:0", qpType: ud, ps: udp},
		"source":             {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiSrcAddr: sockaddr(netip.MustParseAddrPort("127.0.0.1:9")), AiSrcLen: 16}, src: "127.0.0.1:9", dst: "127.0.0.1:0", qpType: rc, ps: tcp},
		"only hints":         {hints: &librdmacm.Addrinfo{AiDstAddr: sockaddr(netip.MustParseAddrPort("[::1]:9")), AiDstLen: 28, AiQpType: rc, AiPortSpace: tcp}, dst: "[::1]:9", qpType: rc, ps: tcp},
		"nothing":            {err: syscall.EINVAL},
		"types differ":       {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiQpType: rc, AiPortSpace: udp}, code: eaiSockType},
		"types differ, too":  {host: "127.0.0.1", hints: &librdmacm.Addrinfo{AiQpType: ud, AiPortSpace: tcp}, code: eaiSockType},
		"numeric only":       {host: "localhost", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_NUMERICHOST}, code: eaiNoName},
		"other family":       {host: "::1", hints: &librdmacm.Addrinfo{AiFamily: syscall.AF_INET}, code: eaiNoAddr},
		"unknown family":     {host: "::1", hints: &librdmacm.Addrinfo{AiFamily: 99}, code: eaiFamily},
		"unknown service":    {host: "::1", service: "nosuchservice", code: eaiService},
		"no such port":       {host: "::1", service: "65536", code: eaiService},
		"of a subnet":        {service: "7", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_SA}, err: syscall.ENOENT},
		"of a subnet, named": {host: "a", hints: &librdmacm.Addrinfo{AiFlags: librdmacm.RAI_SA}, err: syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			res, code, errno := getAddrinfo(tt.host, tt.service, tt.hints)
			if tt.err != nil || tt.code != 0 {
				require.Equal(t, tt.code, code)
				if tt.err != nil {
					require.Equal(t, tt.err, errno)
				}
				return
			}
			require.Zero(t, code)
			require.Zero(t, errno)
			defer freeAddrinfo(res)
			text := func(s *librdmacm.Sockaddr) string {
				addr, ok := parseSockaddr(s)
				if !ok {
					return ""
				}
				return addr.String()
			}
			require.Equal(t, tt.src, text(res.AiSrcAddr))
			require.Equal(t, tt.dst, text(res.AiDstAddr))
			require.Equal(t, tt.qpType, res.AiQpType)
			require.Equal(t, tt.ps, res.AiPortSpace)
		})
	}
}

func TestResolveAddrinfo(t *testing.T) {
	p := newProgram(t)
	id := p.id(tcp)
	_, err := librdmacm.QueryAddrinfo(id)
	require.ErrorIs(t, err, syscall.ENOENT)
	require.NoError(t, librdmacm.ResolveAddrinfo(id, "127.0.0.1", "7", nil))
	require.ErrorIs(t, librdmacm.ResolveAddrinfo(id, "127.0.0.1", "7", nil), syscall.EBUSY)
	p.pass(librdmacm.RDMA_CM_EVENT_ADDRINFO_RESOLVED)
	res, err := librdmacm.QueryAddrinfo(id)
	require.NoError(t, err)
	addr, _ := parseSockaddr(res.AiDstAddr)
	require.Equal(t, netip.MustParseAddrPort("127.0.0.1:7"), addr)
	require.NoError(t, librdmacm.Freeaddrinfo(res))
	require.NoError(t, librdmacm.ResolveAddrinfo(id, "127.0.0.1", "7", nil), "an address that is not taken goes with the id")
	destroy(t, id)
}

// An event of the program's own.
func TestWriteEvent(t *testing.T) {
	p := newProgram(t)
	id := p.id(tcp)
	require.ErrorIs(t, librdmacm.WriteCmEvent(id, librdmacm.RDMA_CM_EVENT_ESTABLISHED, 0, 0), syscall.EINVAL)
	require.NoError(t, librdmacm.WriteCmEvent(id, librdmacm.RDMA_CM_EVENT_USER, 5, 1<<40))
	e := p.next(librdmacm.RDMA_CM_EVENT_USER)
	require.Equal(t, int32(5), e.Status)
	require.Equal(t, uint64(1<<40), *e.Param.Arg())
	require.NoError(t, librdmacm.AckCmEvent(e))
	destroy(t, id)
}

// What a program does too often, or with what is gone, fails.
func TestCMMistakes(t *testing.T) {
	p := newProgram(t)
	id := p.id(tcp)
	require.ErrorIs(t, librdmacm.AckCmEvent(new(librdmacm.CmEvent)), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.DestroyId(new(librdmacm.CmId)), syscall.EINVAL)
	_, err := librdmacm.CreateId(new(librdmacm.EventChannel), nil, tcp)
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = librdmacm.GetCmEvent(new(librdmacm.EventChannel))
	require.ErrorIs(t, err, syscall.EBADF)
	_, err = librdmacm.CreateId(p.channel, nil, 1)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorIs(t, librdmacm.BindAddr(id, new(librdmacm.Sockaddr)), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort("203.0.113.9:0"))), syscall.EADDRNOTAVAIL)
	require.ErrorIs(t, librdmacm.ResolveRoute(id, 1), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.Connect(id, param("")), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.Accept(id, param("")), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.Disconnect(id), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.Reject(id, nil, 0), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.CreateQp(id, nil, new(libibverbs.QpInitAttr)), syscall.EINVAL)
	require.ErrorIs(t, librdmacm.SetOption(id, 5, 5, inC(""), 0), syscall.ENOSYS)
	require.ErrorIs(t, librdmacm.SetOption(id, 0, 0, inC(""), 1<<20), syscall.EINVAL)
	destroy(t, id)
}

// Queue pairs, completion queues and the default protection domain go with the
// last id.
func TestNothingStays(t *testing.T) {
	list, count, err := librdmacm.GetDevices()
	require.NoError(t, err)
	require.Equal(t, int32(1), count)
	l := self()
	objects := func() []int {
		l.Lock()
		defer l.Unlock()
		return []int{
			len(l.qps), len(l.cqs), len(l.channels), len(l.srqs), len(l.mrs), len(l.ahs),
			len(l.ids), len(l.eventChannels), l.devices[l.Cards()[0]].users,
		}
	}
	before := objects()
	for name, test := range map[string]func(*testing.T){
		"connection": TestConnection, "rejections": TestRejections, "datagrams": TestDatagrams,
		"multicast": TestMulticast, "endpoints": TestEndpoints, "migration": TestMigration, "no host": TestNoHostThere,
	} {
		t.Run(name, test)
		require.Equal(t, before, objects(), name)
	}
	require.NoError(t, librdmacm.FreeDevices(list))
}

// Many connections are made and ended at the same time, some of them in the
// middle.
func TestStorm(t *testing.T) {
	server := newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv4"])
	const clients, rounds = 8, 20
	served := make(chan struct{})
	go func() {
		defer close(served)
		for ended := 0; ended < clients*rounds; {
			e, err := librdmacm.GetCmEvent(server.channel)
			if err != nil {
				return
			}
			id, event := e.Id, e.Event
			_ = librdmacm.AckCmEvent(e)
			switch event {
			case librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST:
				createQP(t, id)
				if librdmacm.Accept(id, param("")) != nil { // the client is gone
					destroy(t, id)
					ended++
				}
			case librdmacm.RDMA_CM_EVENT_DISCONNECTED, librdmacm.RDMA_CM_EVENT_REJECTED:
				_ = librdmacm.Disconnect(id)
				destroy(t, id)
				ended++
			}
		}
	}()
	var all sync.WaitGroup
	for number := range clients {
		client := newProgram(t)
		all.Go(func() {
			for round := range rounds {
				id := client.resolve(tcp, at)
				createQP(t, id)
				require.NoError(t, librdmacm.Connect(id, param("")))
				if (number+round)%4 > 0 {
					client.pass(librdmacm.RDMA_CM_EVENT_ESTABLISHED)
				} else { // the listener has to know of it
					require.Eventually(t, func() bool { return pending(client) == 1 }, time.Minute, 100*time.Microsecond)
				}
				if (number+round)%2 > 0 {
					require.NoError(t, librdmacm.Disconnect(id))
					client.pass(librdmacm.RDMA_CM_EVENT_DISCONNECTED)
				}
				destroy(t, id)
			}
		})
	}
	all.Wait()
	<-served
	destroy(t, listener)
}

const removalEnv = "CAPI_TEST_REMOVAL"

// A device that is removed is gone for the rest of the process.
func TestDeviceRemoval(t *testing.T) {
	if os.Getenv(removalEnv) == "" {
		run := exec.Command(os.Args[0], "-test.run", "^TestDeviceRemoval$", "-test.timeout", "1m")
		run.Env = append(os.Environ(), removalEnv+"=1")
		out, err := run.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	client, server := newProgram(t), newProgram(t)
	listener, at := server.listen(tcp, loopbacks["IPv4"])
	a := client.resolve(tcp, at)
	b := client.accept(a, server)
	unbound := client.id(tcp)
	require.NoError(t, Node().Cards()[0].Remove())
	require.Same(t, a, client.pass(librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL))
	gone := map[*librdmacm.CmId]bool{server.pass(librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL): true, server.pass(librdmacm.RDMA_CM_EVENT_DEVICE_REMOVAL): true}
	require.Equal(t, map[*librdmacm.CmId]bool{listener: true, b: true}, gone)
	require.Error(t, librdmacm.Disconnect(a))
	require.Error(t, librdmacm.BindAddr(unbound, sockaddr(netip.AddrPortFrom(loopbacks["IPv4"], 0))))
	destroy(t, a, b, listener, unbound)
}
