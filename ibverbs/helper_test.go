// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// patience is how long anything that must happen may take.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(testdevice.Main(m, "ExampleDevice_OpenXRCD")) }

// rig is an open device with a protection domain. Everything that it makes is
// closed at the end of the test, latest first.
type rig struct {
	t      testing.TB
	device testdevice.Device
	c      *ibverbs.Device
	attr   ibverbs.DeviceAttr
	pd     *ibverbs.PD
}

// open makes a rig, or skips the test, which must leave nothing behind.
func open(t testing.TB) *rig {
	t.Helper()
	r := &rig{t: t, device: testdevice.Require(t)}
	testdevice.NoLeaks(t)
	r.c = must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(r.c)
	r.attr = must(r.c.QueryDevice())(t)
	r.pd = must(r.c.AllocPD())(t)
	r.cleanup(r.pd)
	return r
}

// sub returns a rig for a subtest, with the same device and domain.
func (r *rig) sub(t testing.TB) *rig {
	t.Helper()
	testdevice.NoLeaks(t)
	return &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: r.pd}
}

// must fails the test for an error and returns the value.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// have skips the test if the device lacks what the test is about.
func (r *rig) have(all ...testdevice.Feature) {
	r.t.Helper()
	r.device.HaveAttr(r.t, r.c, &r.attr, all...)
}

// lackingOps returns the flags of operations that the device lacks.
func (r *rig) lackingOps() (ops libibverbs.QpCreateSendOpsFlags) {
	if r.attr.AtomicCap == libibverbs.IBV_ATOMIC_NONE {
		ops |= libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
	}
	if r.attr.MaxMW == 0 {
		ops |= libibverbs.IBV_QP_EX_WITH_BIND_MW | libibverbs.IBV_QP_EX_WITH_LOCAL_INV | libibverbs.IBV_QP_EX_WITH_SEND_WITH_INV
	}
	if r.c.Raw().Device.TransportType == libibverbs.IBV_TRANSPORT_IWARP {
		ops |= libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
	}
	return ops
}

func (r *rig) cleanup(c io.Closer) {
	r.t.Cleanup(func() { require.NoError(r.t, c.Close()) })
}

const anyAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

func (r *rig) alloc(size int, access ibverbs.AccessFlags) *ibverbs.MR {
	r.t.Helper()
	mr := must(r.pd.Alloc(size, access))(r.t)
	r.cleanup(mr)
	return mr
}

func (r *rig) channel() *ibverbs.CompChannel {
	r.t.Helper()
	ch := must(r.c.CreateCompChannel())(r.t)
	r.cleanup(ch)
	return ch
}

// cq makes a queue; ch may be nil.
func (r *rig) cq(entries int, ch *ibverbs.CompChannel) *ibverbs.CQ {
	r.t.Helper()
	r.have(testdevice.Completions(entries))
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: entries, Channel: ch}))(r.t)
	r.cleanup(cq)
	return cq
}

// qp makes a queue pair. It has no more segments, inline data and operations
// than the device: a test that needs them says so, with have. If the device has
// none of the type, the test is skipped.
func (r *rig) qp(config ibverbs.QPConfig) *ibverbs.QP {
	r.t.Helper()
	r.have(testdevice.Requests(max(config.SendQueue, config.RecvQueue)))
	switch config.Type {
	case ibverbs.QPTypeUD:
		r.have(testdevice.Datagrams)
	case ibverbs.QPTypeUC:
		r.have(testdevice.Unreliable)
	}
	config.SendSegments, config.RecvSegments = min(config.SendSegments, r.attr.MaxSGE), min(config.RecvSegments, r.attr.MaxSGE)
	if config.MaxInline > 0 && !testdevice.HasAttr(r.c, &r.attr, testdevice.Inline(config.MaxInline)) {
		config.MaxInline = 0
	}
	config.SendOps &^= r.lackingOps()
	qp := must(r.pd.CreateQP(config))(r.t)
	r.cleanup(qp)
	return qp
}

// limit returns a context that ends in good time before the test's own end.
func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// collect polls, and waits if the queue has a channel, for n completions.
func collect(t testing.TB, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	wcs := make([]ibverbs.WC, n)
	end := time.Now().Add(patience)
	for got := 0; got < n; {
		k := must(cq.Poll(wcs[got:]))(t)
		got += k
		if k == 0 && time.Now().After(end) {
			require.FailNow(t, "no completion", "%d of %d came", got, n)
		}
	}
	return wcs
}

// The device that a test makes for itself, to change what others rely on.
const (
	ownName   = "rxe9"
	ownNetDev = "rdma9"
	ownAddr   = "203.0.113.1"
)

// run runs a command of the system's, which must succeed.
func run(t testing.TB, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

// openOwn makes a device for the test alone, with an interface of its own, and
// a rig on it. Both are gone after the test.
func openOwn(t testing.TB) *rig {
	t.Helper()
	testdevice.Needs(t, testdevice.Guest)
	run(t, "ip", "link", "add", ownNetDev, "type", "veth", "peer", "name", "rdma10")
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/class/net/" + ownNetDev); err == nil {
			run(t, "ip", "link", "delete", ownNetDev)
		}
	})
	run(t, "ip", "address", "add", ownAddr+"/24", "dev", ownNetDev)
	for _, end := range []string{"rdma10", ownNetDev} {
		run(t, "ip", "link", "set", end, "addrgenmode", "none") // no addresses that come by themselves
		run(t, "ip", "link", "set", end, "up")
	}
	run(t, "rdma", "link", "add", ownName, "type", "rxe", "netdev", ownNetDev)
	t.Cleanup(func() {
		if ownExists(t) {
			run(t, "rdma", "link", "delete", ownName)
		}
	})
	testdevice.NoLeaks(t)
	r := &rig{t: t, c: must(ibverbs.Open(ownName))(t)}
	r.cleanup(r.c)
	r.attr = must(r.c.QueryDevice())(t)
	r.pd = must(r.c.AllocPD())(t)
	r.cleanup(r.pd)
	r.device = testdevice.Device{Name: ownName, Port: 1, NetDev: ownNetDev, IPv4: netip.MustParseAddr(ownAddr)}
	soon(t, "the port has its address", func() bool { return r.findOwnGID() })
	return r
}

func ownExists(t testing.TB) bool {
	t.Helper()
	for _, d := range must(ibverbs.Devices())(t) {
		if d.Name == ownName {
			return true
		}
	}
	return false
}

// findOwnGID looks for the entry of the address; the kernel makes it later than
// the device.
func (r *rig) findOwnGID() bool {
	index, ok := r.gidIndex(r.device.IPv4)
	if !ok || must(r.c.QueryPort(1))(r.t).State != link.Active {
		return false
	}
	r.device.GIDIndex, r.device.GID = index, must(r.c.QueryGID(1, index))(r.t)
	return true
}

// gidIndex returns where an address is among the first entries of the table,
// the others of which are empty.
func (r *rig) gidIndex(addr netip.Addr) (index int, ok bool) {
	r.t.Helper()
	for i := range 8 {
		if must(r.c.QueryGID(1, i))(r.t).Addr() == addr {
			return i, true
		}
	}
	return 0, false
}

// soon waits for what must become true.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), what)
	}
}

// path leads from the device's port back to it.
func (r *rig) path() ibverbs.AHAttr {
	port := must(r.c.QueryPort(r.device.Port))(r.t)
	return ibverbs.AHAttr{
		Port: r.device.Port, DLID: port.LID, DGID: r.device.GID, SGIDIndex: r.device.GIDIndex, HopLimit: 1,
	}
}

// init, rtr and rts say how to bring a queue pair of a type into these states.
func (r *rig) init(t ibverbs.QPType) ibverbs.InitAttr {
	if t == ibverbs.QPTypeUD {
		return ibverbs.InitAttr{Port: r.device.Port, QKey: qkey}
	}
	return ibverbs.InitAttr{Port: r.device.Port, Access: anyAccess}
}

func (r *rig) rtr(t ibverbs.QPType, peer uint32) ibverbs.RTRAttr {
	rtr := ibverbs.RTRAttr{
		Path: r.path(), PathMTU: must(r.c.QueryPort(r.device.Port))(r.t).ActiveMTU, DestQPNum: peer, RecvPSN: psn,
	}
	switch t {
	case ibverbs.QPTypeUD:
		return ibverbs.RTRAttr{}
	case ibverbs.QPTypeRC:
		rtr.MaxDestReadAtomic, rtr.MinRNRTimer = r.reads(2), 700*time.Microsecond
	}
	return rtr
}

func (r *rig) rts(t ibverbs.QPType) ibverbs.RTSAttr {
	if t == ibverbs.QPTypeRC {
		return ibverbs.RTSAttr{
			SendPSN: psn, Timeout: time.Second, RetryCount: 5, RNRRetryCount: ibverbs.RNRRetryForever, MaxReadAtomic: r.reads(2),
		}
	}
	return ibverbs.RTSAttr{SendPSN: psn}
}

// reads returns n, or fewer if the device has fewer reads in flight.
func (r *rig) reads(n int) int { return min(n, r.attr.MaxQPReadAtomic) }

// need returns what the device must have for the requests.
func need(sends []libibverbs.SendWr) (all []testdevice.Feature) {
	for i := range sends {
		wr := &sends[i]
		all = append(all, testdevice.Segments(int(wr.NumSge)))
		switch wr.Opcode {
		case libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP, libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD:
			all = append(all, testdevice.Atomics)
		case libibverbs.IBV_WR_BIND_MW, libibverbs.IBV_WR_LOCAL_INV, libibverbs.IBV_WR_SEND_WITH_INV:
			all = append(all, testdevice.Windows)
		case libibverbs.IBV_WR_SEND_WITH_IMM, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
			all = append(all, testdevice.Immediate)
		case libibverbs.IBV_WR_RDMA_READ:
			all = append(all, testdevice.ReadSegments(int(wr.NumSge)))
		}
		if wr.SendFlags&libibverbs.IBV_SEND_INLINE != 0 {
			all = append(all, testdevice.Inline(inline))
		}
	}
	return all
}

// bring brings a queue pair from reset to a state.
func (r *rig) bring(qp *ibverbs.QP, peer uint32, state ibverbs.QPState) {
	r.t.Helper()
	if state == ibverbs.QPStateError {
		require.NoError(r.t, qp.ToInit(r.init(qp.Type())))
		require.NoError(r.t, qp.SetError())
		return
	}
	for _, step := range []struct {
		state ibverbs.QPState
		move  func() error
	}{
		{ibverbs.QPStateInit, func() error { return qp.ToInit(r.init(qp.Type())) }},
		{ibverbs.QPStateRTR, func() error { return qp.ToRTR(r.rtr(qp.Type(), peer)) }},
		{ibverbs.QPStateRTS, func() error { return qp.ToRTS(r.rts(qp.Type())) }},
		{ibverbs.QPStateSQD, func() error { return qp.ToSQD(false) }},
	} {
		if step.state <= state {
			require.NoError(r.t, step.move())
		}
	}
	if state == ibverbs.QPStateSQD {
		untilDrained(r.t, qp)
	}
}

// untilDrained returns when the queue pair has nothing under way.
func untilDrained(t testing.TB, qp *ibverbs.QP) {
	t.Helper()
	require.Eventually(t, func() bool { return !must(qp.Query())(t).Draining }, patience, time.Millisecond)
}

// typedEnd makes an end of a type that is in the reset state.
func (r *rig) typedEnd(config ibverbs.QPConfig) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil), mr: r.alloc(mrSize, anyAccess)}
	config.SendCQ, config.RecvCQ = e.sendCQ, e.recvCQ
	config.SendQueue, config.RecvQueue = depth, depth
	e.qp = r.qp(config)
	e.send = must(ibverbs.NewSendBatch(depth, 1))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, 1))(r.t)
	return e
}

// exchange sends messages between ends that are ready to send, in both
// directions, and checks that they arrive.
func exchange(t testing.TB, a, b *end) {
	t.Helper()
	for i, from := range []*end{a, b} {
		to := []*end{b, a}[i]
		header := 0
		add := func(s *ibverbs.SendBatch) error { return s.Send(5, ibverbs.SendSignaled, from.mr.Sub(0, 100)) }
		if from.qp.Type() == ibverbs.QPTypeUD {
			header = ibverbs.GRHLen
			ah := must(from.rig.pd.CreateAH(from.rig.path()))(t)
			add = func(s *ibverbs.SendBatch) error {
				return s.SendTo(5, ibverbs.Destination{AH: ah, QPNum: to.qp.Num(), QKey: qkey}, ibverbs.SendSignaled, from.mr.Sub(0, 100))
			}
			defer func() { require.NoError(t, ah.Close()) }()
		}
		want := pattern(from.mr.Bytes()[:100], byte(i+1))
		to.postRecv(t, 6, to.mr.Sub(1000, 200))
		from.postSend(t, add)
		require.EqualValues(t, 5, collectOK(t, from.sendCQ, 1)[0].ID())
		wc := collectOK(t, to.recvCQ, 1)[0]
		require.EqualValues(t, 6, wc.ID())
		require.Equal(t, to.qp.Num(), wc.QPNum())
		require.Equal(t, 100+header, wc.ByteLen())
		require.Equal(t, want, to.mr.Bytes()[1000+header:][:100])
	}
}

// route says how queue pairs are connected.
type route struct {
	peer     uint32 // QP number
	timeout  uint8  // for an answer: 4.096 us * 2^timeout
	retries  uint8
	rnrRetry uint8
}

func linkTo(peer *ibverbs.QP) route {
	return route{peer: peer.Num(), timeout: 17, retries: 7, rnrRetry: 7} // 0.5 s; 7 RNR retries are endless
}

const psn = 0x1234

func (r *rig) toInit(qp *ibverbs.QP) {
	r.t.Helper()
	require.NoError(r.t, qp.ModifyRaw(&libibverbs.QpAttr{
		QpState: ibverbs.QPStateInit, PortNum: uint8(r.device.Port), QpAccessFlags: anyAccess,
	}, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_PKEY_INDEX|libibverbs.IBV_QP_PORT|libibverbs.IBV_QP_ACCESS_FLAGS))
}

func (r *rig) toRTR(qp *ibverbs.QP, l route) {
	r.t.Helper()
	port := must(r.c.QueryPort(r.device.Port))(r.t)
	attr := &libibverbs.QpAttr{
		QpState: ibverbs.QPStateRTR, PathMtu: libibverbs.Mtu(port.ActiveMTU), DestQpNum: l.peer,
		RqPsn: psn, MaxDestRdAtomic: 1, MinRnrTimer: 1, // 0.01 ms
		AhAttr: libibverbs.AhAttr{
			Dlid: port.LID, IsGlobal: 1, PortNum: uint8(r.device.Port),
			Grh: libibverbs.GlobalRoute{SgidIndex: uint8(r.device.GIDIndex), HopLimit: 1},
		},
	}
	*attr.AhAttr.Grh.Dgid.Raw() = r.device.GID
	require.NoError(r.t, qp.ModifyRaw(attr, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_AV|libibverbs.IBV_QP_PATH_MTU|
		libibverbs.IBV_QP_DEST_QPN|libibverbs.IBV_QP_RQ_PSN|libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC|
		libibverbs.IBV_QP_MIN_RNR_TIMER))
}

func (r *rig) toRTS(qp *ibverbs.QP, l route) {
	r.t.Helper()
	require.NoError(r.t, qp.ModifyRaw(&libibverbs.QpAttr{
		QpState: ibverbs.QPStateRTS, SqPsn: psn, Timeout: l.timeout, RetryCnt: l.retries,
		RnrRetry: l.rnrRetry, MaxRdAtomic: 1,
	}, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_SQ_PSN|libibverbs.IBV_QP_TIMEOUT|libibverbs.IBV_QP_RETRY_CNT|
		libibverbs.IBV_QP_RNR_RETRY|libibverbs.IBV_QP_MAX_QP_RD_ATOMIC))
}

// end is one end of a reliable connection.
type end struct {
	rig            *rig
	qp             *ibverbs.QP
	sendCQ, recvCQ *ibverbs.CQ
	mr             *ibverbs.MR
	send           *ibverbs.SendBatch
	recv           *ibverbs.RecvBatch
}

const (
	depth    = 64 // requests in a queue
	segments = 4
	inline   = 64
	mrSize   = 1 << 16
)

// end makes an end that is not connected. Its queues have the channel, which
// may be nil.
func (r *rig) end(ch *ibverbs.CompChannel) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, ch), recvCQ: r.cq(depth, ch), mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, RecvQueue: depth,
		SendSegments: segments, RecvSegments: segments, MaxInline: inline,
	})
	e.send = must(ibverbs.NewSendBatch(depth, segments))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, segments))(r.t)
	return e
}

// pair makes two ends that are connected with each other.
func (r *rig) pair(ch *ibverbs.CompChannel) (a, b *end) {
	r.t.Helper()
	a, b = r.end(ch), r.end(ch)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	return a, b
}

func (r *rig) connect(e *end, l route) {
	r.t.Helper()
	r.toInit(e.qp)
	r.toRTR(e.qp, l)
	r.toRTS(e.qp, l)
	if testdevice.HasAttr(r.c, &r.attr, testdevice.Queries) {
		require.Equal(r.t, ibverbs.QPStateRTS, must(e.qp.State())(r.t))
	}
}

// beyond returns n bytes of the peer's memory, which Sub would refuse.
func beyond(b ibverbs.RemoteBuffer, offset, n uint64) ibverbs.RemoteBuffer {
	b.Addr, b.Len = b.Addr+offset, n
	return b
}

// postSend posts what fill puts into an empty batch.
func (e *end) postSend(t testing.TB, fill func(b *ibverbs.SendBatch) error) {
	t.Helper()
	e.asks(t, fill)
	require.Equal(t, e.send.Len(), must(e.qp.PostSend(e.send))(t))
}

// asks fills the batch, and skips the test if the device does not have what the
// requests ask for. A test that shares its ends with others calls it before it
// posts receives, which would otherwise take the messages of the next test.
func (e *end) asks(t testing.TB, fill func(b *ibverbs.SendBatch) error) {
	t.Helper()
	e.send.Reset()
	require.NoError(t, fill(e.send))
	e.rig.device.HaveAttr(t, e.rig.c, &e.rig.attr, need(ibverbs.RawSends(e.send))...)
}

// postRecv posts one receive.
func (e *end) postRecv(t testing.TB, id uint64, s ...ibverbs.Segment) {
	t.Helper()
	e.recv.Reset()
	require.NoError(t, e.recv.Recv(id, s...))
	e.rig.device.HaveAttr(t, e.rig.c, &e.rig.attr, testdevice.Segments(len(s)))
	require.Equal(t, 1, must(e.qp.PostRecv(e.recv))(t))
}

// collectOK is collect for completions that are all successful.
func collectOK(t testing.TB, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	wcs := collect(t, cq, n)
	for i := range wcs {
		require.NoError(t, wcs[i].Err())
	}
	return wcs
}

// pattern fills b with bytes that tell their place and seed.
func pattern(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)
	}
	return b
}

// request is a kind of send request on 8 bytes of this side and of the peer's.
type request struct {
	add     func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error
	remote  bool // it names the peer's memory
	result  bool // the device writes the local memory
	atomic  bool
	receive bool // it takes a receive of the peer's
}

// requests are all kinds of reliable connections, with ID 1 and not signaled: a
// failure completes all the same.
var requests = map[string]request{
	"send": {receive: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Send(1, 0, local)
	}},
	"send imm": {receive: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.SendImm(1, 7, 0, local)
	}},
	"write": {remote: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Write(1, remote, 0, local)
	}},
	"write imm": {remote: true, receive: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.WriteImm(1, remote, 7, 0, local)
	}},
	"read": {remote: true, result: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Read(1, remote, 0, local)
	}},
	"fetch and add": {remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.FetchAdd(1, remote, 1, 0, local)
	}},
	"compare and swap": {remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.CompareSwap(1, remote, 0, 1, 0, local)
	}},
}

// remoteOf returns the address and the key of the peer's memory.
func (k request) remoteOf(wr *libibverbs.SendWr) (addr *uint64, rkey *uint32) {
	if k.atomic {
		return &wr.Wr.Atomic().RemoteAddr, &wr.Wr.Atomic().Rkey
	}
	return &wr.Wr.Rdma().RemoteAddr, &wr.Wr.Rdma().Rkey
}

// spoiled posts a good request of the kind after spoil changed what C is given.
func (k request) spoiled(t testing.TB, a, b *end, spoil func(wr *libibverbs.SendWr)) {
	t.Helper()
	if k.receive {
		b.postRecv(t, 2, b.mr.Sub(1024, 8))
	}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		err := k.add(s, b.mr.Remote().Sub(64, 8), a.mr.Sub(64, 8))
		spoil(&ibverbs.RawSends(s)[0])
		return err
	})
}

// closedKeys returns the keys of a region that was closed.
func (r *rig) closedKeys() (addr uint64, lkey, rkey uint32) {
	r.t.Helper()
	mr := must(r.pd.Alloc(64, fullAccess))(r.t)
	remote, lkey := mr.Remote(), mr.LKey()
	require.NoError(r.t, mr.Close())
	return remote.Addr, lkey, remote.RKey
}

// foreign returns a region of another protection domain.
func (r *rig) foreign() *ibverbs.MR {
	r.t.Helper()
	pd := must(r.c.AllocPD())(r.t)
	r.cleanup(pd)
	mr := must(pd.Alloc(64, fullAccess))(r.t)
	r.cleanup(mr)
	return mr
}

// instead is for a verdict's rxe.
func instead(statuses ...ibverbs.WCStatus) []ibverbs.WCStatus { return statuses }

// verdict is how a request completes.
type verdict struct {
	spec ibverbs.WCStatus // what the specification has
	// rxe is what Soft-RoCE has instead, if it does. Since Linux 6.4 it may be
	// another: what Soft-RoCE cannot send, it flushes with the requests behind
	// it, and so forgets why, as its requester puts the queue pair into the
	// error state before the completer has told.
	rxe []ibverbs.WCStatus
}

// here returns the status that this device gives.
func (v verdict) here(t testing.TB, r *rig) ibverbs.WCStatus {
	t.Helper()
	switch {
	case len(v.rxe) == 0 || !r.device.SoftRoCE():
		return v.spec
	case r.device.SoftRoCESince(t, 6, 4):
		return v.rxe[len(v.rxe)-1]
	}
	return v.rxe[0]
}

// The verdicts of most cases.
var (
	good         = verdict{spec: ibverbs.WCSuccess}
	remoteAccess = verdict{spec: ibverbs.WCRemoteAccess}
	// localProtection is of memory that the device writes.
	localProtection = verdict{spec: ibverbs.WCLocalProtection}
	// unsendable is of memory that the device reads. Soft-RoCE has one status
	// for all that it cannot send.
	unsendable = verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation, ibverbs.WCFlushed)}
	// unsupported is of operations that the type of the queue pair, or the
	// device, does not have.
	unsupported = verdict{ibverbs.WCLocalQPOperation, unsendable.rxe}
)

// requireVerdict collects the only completion of a queue.
func requireVerdict(t testing.TB, cq *ibverbs.CQ, id uint64, qp *ibverbs.QP, v verdict, r *rig) {
	t.Helper()
	want := v.here(t, r)
	wc := collect(t, cq, 1)[0]
	if want == ibverbs.WCSuccess {
		require.NoError(t, wc.Err())
		require.Equal(t, id, wc.ID())
		return
	}
	requireWC(t, wc, id, qp, want, want.Class())
}

// sge is what C is given for the first segment of a request.
func sge(wr *libibverbs.SendWr) *libibverbs.Sge { return wr.SgList }

// hiddenQP makes a queue pair behind the package's back, and returns what
// destroys it, which is also done at the end of the test.
func hiddenQP(t *testing.T, r *rig, cq *ibverbs.CQ) (destroy func()) {
	t.Helper()
	attr, err := ibverbs.RawConfig(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1})
	require.NoError(t, err)
	raw := must(libibverbs.CreateQp(r.pd.Raw(), &attr))(t)
	destroy = sync.OnceFunc(func() { require.NoError(t, libibverbs.DestroyQp(raw)) })
	t.Cleanup(destroy)
	return destroy
}
