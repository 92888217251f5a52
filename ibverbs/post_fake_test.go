//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/fakeverbs"
)

// fakeAH returns an address handle that no device knows.
func fakeAH() *AH {
	ah := &AH{raw: &libibverbs.Ah{}}
	ah.object.InitUnlisted("fake AH")
	return ah
}

type call = fakeverbs.Call

// Every request becomes the right ibv_wr_* calls, with its fields where they
// belong.
func TestExtendedPost(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	copy(mr.bytes, "abcdefgh")
	at := func(offset int) uint64 { return mr.addr() + uint64(offset) }
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 512}
	be := uint64(libibverbs.NewBe32(0x01020304))
	one := call{Op: fakeverbs.SGE, Args: [6]uint64{0x55, at(10), 20}}
	segment := mr.Sub(10, 20)
	result := mr.Sub(8, 8)
	got := call{Op: fakeverbs.SGE, Args: [6]uint64{0x55, at(8), 8}}
	window := &libibverbs.Mw{}
	const flags = SendSignaled | SendFence

	for name, tt := range map[string]struct {
		add  func(b *SendBatch) error
		want []call
	}{
		"send": {
			func(b *SendBatch) error { return b.Send(9, flags, segment) },
			[]call{{Op: fakeverbs.Send}, one},
		},
		"send nothing": {
			func(b *SendBatch) error { return b.Send(9, flags) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGEList}},
		},
		"send several": {
			func(b *SendBatch) error { return b.Send(9, flags, segment, mr.Sub(100, 7)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGEList, Args: [6]uint64{2, at(100), 7}}},
		},
		"send inline": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, mr.Sub(0, 4)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{4, 'a' | 'b'<<8 | 'c'<<16 | 'd'<<24}}},
		},
		"send inline several": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, mr.Sub(6, 2), mr.Sub(0, 1)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{3, 'g' | 'h'<<8 | 'a'<<16}}},
		},
		"send imm": {
			func(b *SendBatch) error { return b.SendImm(9, 0x01020304, flags, segment) },
			[]call{{Op: fakeverbs.SendImm, Args: [6]uint64{be}}, one},
		},
		"send inv": {
			func(b *SendBatch) error { return b.SendInv(9, 0x88, flags, segment) },
			[]call{{Op: fakeverbs.SendInv, Args: [6]uint64{0x88}}, one},
		},
		"write": {
			func(b *SendBatch) error { return b.Write(9, remote, flags, segment) },
			[]call{{Op: fakeverbs.Write, Args: [6]uint64{0x77, 0x1000}}, one},
		},
		"write imm": {
			func(b *SendBatch) error { return b.WriteImm(9, remote, 0x01020304, flags, segment) },
			[]call{{Op: fakeverbs.WriteImm, Args: [6]uint64{0x77, 0x1000, be}}, one},
		},
		"read": {
			func(b *SendBatch) error { return b.Read(9, remote, flags, segment) },
			[]call{{Op: fakeverbs.Read, Args: [6]uint64{0x77, 0x1000}}, one},
		},
		"compare and swap": {
			func(b *SendBatch) error { return b.CompareSwap(9, remote, 11, 12, flags, result) },
			[]call{{Op: fakeverbs.CompareSwap, Args: [6]uint64{0x77, 0x1000, 11, 12}}, got},
		},
		"fetch and add": {
			func(b *SendBatch) error { return b.FetchAdd(9, remote, 11, flags, result) },
			[]call{{Op: fakeverbs.FetchAdd, Args: [6]uint64{0x77, 0x1000, 11}}, got},
		},
		"bind": {
			func(b *SendBatch) error {
				err := b.add(sendRequest{op: libibverbs.IBV_WR_BIND_MW}, 9, flags, unlimited, nil)
				*b.arena.wrs[1].BindMw() = libibverbs.SendWrBindMw{Mw: window, Rkey: 0x99, BindInfo: libibverbs.MwBindInfo{
					Mr: mr.raw, Addr: at(8), Length: 100, MwAccessFlags: uint32(AccessRemoteWrite),
				}}
				return err
			},
			[]call{{Op: fakeverbs.BindMW, Args: [6]uint64{
				uint64(uintptr(unsafe.Pointer(window))), 0x99, at(8), 100, uint64(AccessRemoteWrite),
			}}},
		},
		"local invalidate": {
			func(b *SendBatch) error { return b.LocalInv(9, 0x88, flags) },
			[]call{{Op: fakeverbs.LocalInv, Args: [6]uint64{0x88}}},
		},
		"flush": {
			func(b *SendBatch) error { return b.Flush(9, remote, FlushGlobal|FlushPersistent, flags) },
			[]call{{Op: fakeverbs.Flush, Args: [6]uint64{0x77, 0x1000, 512, 3, 0}}},
		},
		"flush region": {
			func(b *SendBatch) error { return b.FlushRegion(9, remote, FlushPersistent, flags) },
			[]call{{Op: fakeverbs.Flush, Args: [6]uint64{0x77, 0x1000, 512, 2, 1}}},
		},
		"atomic write": {
			func(b *SendBatch) error { return b.AtomicWrite(9, remote, [8]byte(mr.bytes), flags) },
			[]call{{Op: fakeverbs.AtomicWrite, Args: [6]uint64{0x77, 0x1000, native(mr.bytes)}}},
		},
		"TSO": {
			func(b *SendBatch) error { return b.TSO(9, mr.Sub(0, 54), 1400, flags, segment) },
			[]call{{Op: fakeverbs.SendTSO, Args: [6]uint64{at(0), 54, 1400}}, one},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDevice(t)
			f.Set(fakeverbs.Script{})
			b, err := NewSendBatch(2, 2)
			require.NoError(t, err)
			require.NoError(t, b.Send(1, SendSolicited))
			require.NoError(t, tt.add(b))
			n, err := f.ex.PostSend(b)
			require.NoError(t, err)
			require.Equal(t, 2, n)

			calls := f.Calls()
			require.Equal(t, []fakeverbs.Op{fakeverbs.Start, fakeverbs.Send, fakeverbs.SGEList}, ops(calls[:3]))
			require.Equal(t, SendSolicited, calls[1].Flags)
			calls, last := calls[3:len(calls)-1], calls[len(calls)-1]
			require.Equal(t, fakeverbs.Complete, last.Op)
			for i := range calls {
				require.EqualValues(t, 9, calls[i].ID)
				require.Equal(t, flags, calls[i].Flags&^SendInline)
				calls[i].ID, calls[i].Flags = 0, 0
			}
			require.Equal(t, tt.want, calls)
		})
	}
}

func native(b []byte) uint64 {
	var v uint64
	for i := range 8 { // the platforms that have cgo here and a device are little-endian, but for one
		v |= uint64(b[i]) << (8 * i)
	}
	if libibverbs.NewBe32(1) == 1 {
		v = 0
		for i := range 8 {
			v = v<<8 | uint64(b[i])
		}
	}
	return v
}

func ops(calls []call) (ops []fakeverbs.Op) {
	for _, c := range calls {
		ops = append(ops, c.Op)
	}
	return ops
}

func TestExtendedDatagrams(t *testing.T) {
	f := newFakeDevice(t)
	f.QP().QpBase.QpType = QPTypeUD
	mr, ah := fakeMR(t, 64, 0x55), fakeAH()
	b, err := NewSendBatch(3, 1)
	require.NoError(t, err)
	to := Destination{AH: ah, QPNum: 18, QKey: 0x111}
	require.NoError(t, b.SendTo(1, to, SendInline, mr.Sub(0, 1)))
	require.NoError(t, b.SendImmTo(2, to, 7, 0, mr.All()))
	require.NoError(t, b.TSO(3, mr.Sub(0, 14), 100, 0, mr.All()))
	require.NoError(t, b.Request(2).SetDestination(to))

	f.Set(fakeverbs.Script{})
	n, err := f.ex.PostSend(b)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, []fakeverbs.Op{
		fakeverbs.Start,
		fakeverbs.Send, fakeverbs.UDAddr, fakeverbs.Inline,
		fakeverbs.SendImm, fakeverbs.UDAddr, fakeverbs.SGE,
		fakeverbs.SendTSO, fakeverbs.UDAddr, fakeverbs.SGE,
		fakeverbs.Complete,
	}, ops(f.Calls()))
	require.EqualValues(t, []uint64{18, 0x111}, f.Calls()[2].Args[1:3])

	require.NoError(t, ah.object.Close(nil, func() error { return nil }))
	for _, qp := range []*QP{f.ex, f.qp} {
		_, err = qp.PostSend(b)
		require.ErrorIs(t, err, os.ErrClosed)
		require.EqualError(t, err, "request that cannot be posted any more: fake AH: file already closed")
	}
}

// A datagram queue pair's requests all need a destination: C would follow
// whatever is in its place.
func TestDatagramsNeedDestinations(t *testing.T) {
	f := newFakeDevice(t)
	f.QP().QpBase.QpType = QPTypeUD
	mr := fakeMR(t, 64, 0x55)
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 512}
	for name, add := range map[string]func(b *SendBatch) error{
		"send":  func(b *SendBatch) error { return b.Send(9, 0) },
		"TSO":   func(b *SendBatch) error { return b.TSO(9, mr.All(), 1, 0) },
		"write": func(b *SendBatch) error { return b.Write(9, remote, 0) },
		"inv":   func(b *SendBatch) error { return b.SendInv(9, 1, 0) },
	} {
		for _, qp := range []*QP{f.qp, f.ex} {
			f.Set(fakeverbs.Script{})
			b, err := NewSendBatch(2, 1)
			require.NoError(t, err)
			require.NoError(t, b.SendTo(1, Destination{AH: fakeAH()}, 0))
			require.NoError(t, add(b))
			n, err := qp.PostSend(b)
			require.Zero(t, n)
			require.ErrorIs(t, err, syscall.EINVAL, name)
			var post *PostError
			require.ErrorAs(t, err, &post)
			require.Equal(t, 1, post.Index)
			require.True(t, post.None)
			require.Empty(t, f.Calls())
		}
	}
	b, err := NewSendBatch(1, 1)
	require.NoError(t, err)
	require.ErrorContains(t, b.SendTo(1, Destination{}, 0), "datagram without an address handle")
	require.ErrorContains(t, b.SendTo(1, Destination{AH: &AH{}}, 0, Segment{}), "segment 0")
}

func TestXRCDestination(t *testing.T) {
	f := newFakeDevice(t)
	f.QP().QpBase.QpType = libibverbs.IBV_QPT_XRC_SEND
	b := filled(t, fakeMR(t, 64, 1), 1)
	require.NoError(t, b.Request(0).SetXRCSRQ(77))
	f.Set(fakeverbs.Script{})
	_, err := f.ex.PostSend(b)
	require.NoError(t, err)
	require.EqualValues(t, 77, f.Calls()[2].Args[0])
}

// Only what the queue pair was made with is called, whatever there seems to be.
func TestExtendedPostRefuses(t *testing.T) {
	mr := fakeMR(t, 64, 1)
	remote := RemoteBuffer{Addr: 8, Len: 8}
	for name, tt := range map[string]struct {
		op    libibverbs.QpCreateSendOpsFlags
		clear func(qp *libibverbs.QpEx)
		add   func(b *SendBatch) error
	}{
		"send": {
			libibverbs.IBV_QP_EX_WITH_SEND, func(qp *libibverbs.QpEx) { qp.WrSend = nil },
			func(b *SendBatch) error { return b.Send(9, 0) },
		},
		"flush": {
			libibverbs.IBV_QP_EX_WITH_FLUSH, func(qp *libibverbs.QpEx) { qp.WrFlush = nil },
			func(b *SendBatch) error { return b.Flush(9, remote, FlushGlobal, 0) },
		},
		"atomic write": {
			libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE, func(qp *libibverbs.QpEx) { qp.WrAtomicWrite = nil },
			func(b *SendBatch) error { return b.AtomicWrite(9, remote, [8]byte{}, 0) },
		},
		"setter": {
			0, func(qp *libibverbs.QpEx) { qp.WrSetSge = nil },
			func(b *SendBatch) error { return b.Send(9, 0, mr.All()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeDevice(t)
			b, err := NewSendBatch(3, 1)
			require.NoError(t, err)
			require.NoError(t, b.SendImm(1, 0, 0))
			require.NoError(t, tt.add(b))
			require.NoError(t, b.SendImm(3, 0, 0))
			check := func() {
				f.Set(fakeverbs.Script{})
				n, err := f.ex.PostSend(b)
				require.Zero(t, n)
				require.ErrorIs(t, err, errors.ErrUnsupported)
				var post *PostError
				require.ErrorAs(t, err, &post)
				require.Equal(t, PostError{Index: 1, ID: 9, None: true, Err: post.Err}, *post)
				require.ErrorContains(t, err, "request 1 of the batch (ID 9), none was posted: ")
				calls := ops(f.Calls())
				require.Equal(t, fakeverbs.Abort, calls[len(calls)-1])
				require.NotContains(t, calls, fakeverbs.Complete)
			}
			if tt.op != 0 {
				f.ex.sendOps = fakeOps &^ tt.op
				check()
			}
			f.ex.sendOps = fakeOps
			tt.clear(f.QP())
			check()
		})
	}
}

func TestPostErrors(t *testing.T) {
	f := newFakeDevice(t)
	b := filled(t, fakeMR(t, 64, 1), 4)
	recv, err := NewRecvBatch(4, 0)
	require.NoError(t, err)
	for i := range uint64(4) {
		require.NoError(t, recv.Recv(i))
	}
	for _, tt := range []struct {
		post     func() (int, error)
		code, at int
		want     PostError
		text     string
	}{
		{
			func() (int, error) { return f.qp.PostSend(b) }, int(syscall.ENOMEM), 2,
			PostError{Index: 2, ID: 2},
			"request 2 of the batch (ID 2), the ones before it were posted: ibv_post_send (fake QP): cannot allocate memory",
		},
		{
			func() (int, error) { return f.qp.PostSend(b) }, -int(syscall.EINVAL), 0,
			PostError{Index: 0, ID: 0},
			"request 0 of the batch (ID 0): ibv_post_send (fake QP): invalid argument",
		},
		{
			func() (int, error) { return f.qp.PostRecv(recv) }, int(syscall.ENOMEM), 3,
			PostError{Index: 3, ID: 3},
			"request 3 of the batch (ID 3), the ones before it were posted: ibv_post_recv (fake QP): cannot allocate memory",
		},
		{
			func() (int, error) { return f.ex.PostSend(b) }, int(syscall.ENOSPC), 0,
			PostError{Index: -1, None: true},
			"the batch, none was posted: ibv_wr_complete (fake QP): no space left on device",
		},
		{
			func() (int, error) {
				n, _, err := f.qp.PostSendAndSpin(b, f.cq, make([]WC, 1), MaxSpin)
				return n, err
			},
			int(syscall.ENOMEM), 1,
			PostError{Index: 1, ID: 1},
			"request 1 of the batch (ID 1), the ones before it were posted: ibv_post_send (fake QP)",
		},
	} {
		f.Set(fakeverbs.Script{PostError: tt.code, FailAt: tt.at, Completions: 9})
		n, err := tt.post()
		require.Equal(t, max(tt.want.Index, 0), n)
		require.ErrorContains(t, err, tt.text)
		require.ErrorIs(t, err, syscall.Errno(max(tt.code, -tt.code)))
		var post *PostError
		require.ErrorAs(t, err, &post)
		tt.want.Err = post.Err
		require.Equal(t, tt.want, *post)
		require.Zero(t, f.Polls(), "after a failure")
	}
}

// Flushes and atomic writes have no place in ibv_post_send.
func TestExtendedRequestsNeedExtendedQP(t *testing.T) {
	f := newFakeDevice(t)
	remote := RemoteBuffer{Addr: 8, Len: 8}
	b, err := NewSendBatch(3, 0)
	require.NoError(t, err)
	for range 2 {
		b.Reset()
		f.Set(fakeverbs.Script{})
		require.NoError(t, b.Send(1, 0))
		require.NoError(t, b.AtomicWrite(2, remote, [8]byte{}, 0))
		require.NoError(t, b.Flush(3, remote, FlushGlobal, 0))
		n, err := f.qp.PostSend(b)
		require.Zero(t, n)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "request 1 of the batch (ID 2), none was posted: ibv_post_send")
		require.Empty(t, f.Calls())
	}
	b.Reset()
	require.NoError(t, b.Send(1, 0))
	_, err = f.qp.PostSend(b)
	require.NoError(t, err)
}
