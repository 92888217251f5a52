// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
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
		"send any bytes inline": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, InlineBytes([]byte("xyz"))) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{3, 'x' | 'y'<<8 | 'z'<<16}}},
		},
		"send any bytes inline beside a region's": {
			func(b *SendBatch) error { return b.Send(9, flags|SendInline, InlineBytes([]byte("xy")), mr.Sub(0, 2)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.Inline, Args: [6]uint64{4, 'x' | 'y'<<8 | 'a'<<16 | 'b'<<24}}},
		},
		"send raw memory": {
			func(b *SendBatch) error { return b.Send(9, flags, RawSegment(0x5000, 100, 0x66).Sub(8, 20)) },
			[]call{{Op: fakeverbs.Send}, {Op: fakeverbs.SGE, Args: [6]uint64{0x66, 0x5008, 20}}},
		},
		"write any bytes inline": {
			func(b *SendBatch) error { return b.Write(9, remote, flags|SendInline, InlineBytes([]byte("x"))) },
			[]call{{Op: fakeverbs.Write, Args: [6]uint64{0x77, 0x1000}}, {Op: fakeverbs.Inline, Args: [6]uint64{1, 'x'}}},
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
				wr, err := b.add(libibverbs.IBV_WR_BIND_MW, 0, 9, flags, unlimited, nil)
				*wr.BindMw() = libibverbs.SendWrBindMw{Mw: window, Rkey: 0x99, BindInfo: libibverbs.MwBindInfo{
					Mr: mr.raw, Addr: at(8), Length: 100, MwAccessFlags: AccessRemoteWrite,
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
	require.NoError(t, b.WR(2).SetDestination(to))

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
		require.EqualError(t, err, "a request uses an object that was closed: fake AH: file already closed")
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
	require.NoError(t, b.WR(0).SetXRCSRQ(77))
	f.Set(fakeverbs.Script{})
	_, err := f.ex.PostSend(b)
	require.NoError(t, err)
	require.EqualValues(t, 77, f.Calls()[2].Args[0])
}

func TestExchange(t *testing.T) {
	f := newFakeDevice(t)
	mr := fakeMR(t, 64, 1)
	send := filled(t, mr, 3)
	recv, err := NewRecvBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(7, mr.All()))
	require.NoError(t, recv.Recv(8, mr.All()))
	empty, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	wcs := make([]WC, 8)
	for name, tt := range map[string]struct {
		recv            *RecvBatch
		send            *SendBatch
		least, empty, n int
		posted          int // receives and requests
	}{
		"both":             {recv, send, 1, 20, 3, 5},
		"receives alone":   {recv, nil, 1, 0, 3, 2},
		"requests alone":   {nil, send, 3, 20, 3, 3},
		"empty receives":   {empty, send, 1, 0, 3, 3},
		"nothing but poll": {nil, nil, 2, 100, 3, 0},
	} {
		for _, qp := range []*QP{f.qp, f.ex} {
			f.Set(fakeverbs.Script{EmptyPolls: tt.empty, Completions: tt.n})
			n, err := qp.Exchange(tt.recv, tt.send, f.cq, wcs, tt.least, MaxSpin)
			require.NoError(t, err, name)
			require.Equal(t, tt.n, n, name)
			require.Equal(t, tt.posted, f.Requests(), name)
		}
	}
}

// Time that is up is no error, and what has come is not lost.
func TestExchangeRunsOutOfTime(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 8)
	f.Set(fakeverbs.Script{Completions: 2})
	n, err := f.qp.Exchange(nil, nil, f.cq, wcs, 3, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = f.qp.Exchange(nil, nil, f.cq, wcs, 1, 0)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestExchangeFails(t *testing.T) {
	f := newFakeDevice(t)
	mr := fakeMR(t, 64, 1)
	send := filled(t, mr, 3)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(7, mr.All()))
	wcs := make([]WC, 8)

	f.Set(fakeverbs.Script{Completions: 3, PostError: int(syscall.ENOMEM)})
	n, err := f.qp.Exchange(recv, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_post_recv")
	require.Zero(t, n)
	require.Zero(t, f.Requests(), "the requests were not posted")

	n, err = f.qp.Exchange(nil, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_post_send")
	require.Zero(t, n)

	f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
	_, err = f.qp.Exchange(recv, send, f.cq, wcs, 1, MaxSpin)
	require.ErrorIs(t, err, syscall.EFAULT)

	for _, least := range []int{-1, 0, 9} {
		_, err = f.qp.Exchange(recv, send, f.cq, wcs, least, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	_, err = f.qp.Exchange(&RecvBatch{}, &SendBatch{}, f.cq, nil, 1, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = f.qp.Exchange(recv, send, &CQ{}, wcs, 1, 0)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Each post gives C the requests that the batch has then and no others,
// whatever it had before and however earlier posts ended.
func TestPostedList(t *testing.T) {
	f := newFakeDevice(t)
	closed := fakeMR(t, 64, 1)
	b, err := NewSendBatch(4, 1)
	require.NoError(t, err)
	add := func(ids ...uint64) {
		for _, id := range ids {
			require.NoError(t, b.Send(id, 0))
		}
	}
	posted := func(script fakeverbs.Script) []uint64 {
		script.Completions = 1
		f.Set(script)
		var ids []uint64
		for _, post := range []func(){
			func() { _, _ = f.qp.PostSend(b) },
			func() { _, _, _ = f.qp.PostSendAndSpin(b, f.cq, make([]WC, 1), 0) },
		} {
			before := len(f.Calls())
			post()
			ids = nil
			for _, c := range f.Calls()[before:] {
				ids = append(ids, c.ID)
			}
		}
		return ids
	}
	fails := fakeverbs.Script{FailAt: 1, PostError: int(syscall.ENOMEM)}

	add(1, 2)
	require.Equal(t, []uint64{1, 2}, posted(fakeverbs.Script{}))
	add(3)
	require.Equal(t, []uint64{1, 2, 3}, posted(fakeverbs.Script{}))
	require.Equal(t, []uint64{1}, posted(fails))
	require.ErrorIs(t, b.Send(4, 0, closed.Sub(0, 65)), syscall.EINVAL)
	require.Equal(t, []uint64{1, 2, 3}, posted(fakeverbs.Script{}), "without what was refused")
	add(4)
	require.ErrorIs(t, b.Send(5, 0), ErrBatchFull)
	require.Equal(t, []uint64{1, 2, 3, 4}, posted(fakeverbs.Script{}))

	b.Reset()
	require.Empty(t, posted(fakeverbs.Script{}))
	add(6)
	require.Equal(t, []uint64{6}, posted(fakeverbs.Script{}))
	require.NoError(t, b.Send(7, SendInline, closed.All()))
	closeFake(t, closed)
	_, err = f.qp.PostSend(b)
	require.ErrorIs(t, err, os.ErrClosed)
	require.Empty(t, posted(fakeverbs.Script{}))
	require.NoError(t, b.WR(1).SetFlags(0))
	add(8)
	require.Equal(t, []uint64{6, 7, 8}, posted(fakeverbs.Script{}))
}

// A request that is refused keeps no memory reachable.
func TestRefusedRequestsOwnNothing(t *testing.T) {
	mr, device := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
	device.bytes = nil
	b, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	for _, err := range []error{
		b.Send(1, 0, mr.All(), mr.Sub(60, 5)),
		b.Send(1, SendInline, mr.All(), device.All()),
		b.Write(1, RemoteBuffer{Len: 127}, 0, mr.All(), mr.All()),
	} {
		require.ErrorIs(t, err, syscall.EINVAL)
		require.Zero(t, b.Len())
		require.Equal(t, make([]*MR, 4), b.owner)
	}
}

// An error comes with no count that could be taken for completions or requests.
func TestErrorsBringNothing(t *testing.T) {
	f := newFakeDevice(t)
	ctx := t.Context()
	var none context.Context
	mr := fakeMR(t, 64, 1)
	send, recv := filled(t, mr, 1), must1(NewRecvBatch(1, 0))(t)
	require.NoError(t, recv.Recv(1))
	closed := fakeMR(t, 64, 2)
	stale := must1(NewSendBatch(1, 1))(t)
	require.NoError(t, stale.Send(1, SendInline, closed.All()))
	closeFake(t, closed)
	wcs := make([]WC, 1)
	for name, calls := range map[string]map[string]func() (int, error){
		"nil": {
			"Poll":             func() (int, error) { return (*CQ)(nil).Poll(wcs) },
			"Spin":             func() (int, error) { return (*CQ)(nil).Spin(wcs, 0) },
			"Wait":             func() (int, error) { return (*CQ)(nil).Wait(ctx, wcs) },
			"Sleep":            func() (int, error) { return (*CQ)(nil).Sleep(wcs, 0) },
			"PostSend":         func() (int, error) { return (*QP)(nil).PostSend(send) },
			"PostRecv":         func() (int, error) { return (*QP)(nil).PostRecv(recv) },
			"Exchange":         func() (int, error) { return (*QP)(nil).Exchange(recv, send, f.cq, wcs, 1, 0) },
			"Exchange, no CQ":  func() (int, error) { return f.qp.Exchange(recv, send, nil, wcs, 1, 0) },
			"PostSend, none":   func() (int, error) { return f.qp.PostSend(nil) },
			"PostRecv, none":   func() (int, error) { return f.qp.PostRecv(nil) },
			"Wait, no context": func() (int, error) { return f.cq.Wait(none, wcs) },
		},
		"no room": {
			"Spin":     func() (int, error) { return f.cq.Spin(nil, 0) },
			"Wait":     func() (int, error) { return f.cq.Wait(ctx, nil) },
			"Sleep":    func() (int, error) { return f.cq.Sleep(nil, 0) },
			"Exchange": func() (int, error) { return f.qp.Exchange(recv, send, f.cq, nil, 1, 0) },
		},
		"not so made": {
			"Wait":             func() (int, error) { return f.cq.Wait(ctx, wcs) },
			"Sleep":            func() (int, error) { return f.cq.Sleep(wcs, 0) },
			"ExchangeAndSleep": func() (int, error) { return f.qp.ExchangeAndSleep(recv, send, f.cq, wcs, 1, 0) },
		},
		"closed memory": {
			"PostSend": func() (int, error) { return f.qp.PostSend(stale) },
			"Exchange": func() (int, error) { return f.qp.Exchange(nil, stale, f.cq, wcs, 1, 0) },
		},
	} {
		for call, f := range calls {
			n, err := f()
			require.Error(t, err, "%s: %s", name, call)
			require.Zero(t, n, "%s: %s", name, call)
		}
	}
	require.Zero(t, f.Requests())
	f.Set(fakeverbs.Script{PostError: int(syscall.ENOMEM), Completions: 1})
	n, err := f.qp.Exchange(recv, nil, f.cq, wcs, 1, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Zero(t, n)
	n, err = f.cq.Poll(nil) // no error, and nothing either
	require.NoError(t, err)
	require.Zero(t, n)
	for name, post := range map[string]func() (posted, n int, err error){
		"no QP":         func() (int, int, error) { return (*QP)(nil).PostSendAndSpin(send, f.cq, wcs, 0) },
		"no CQ":         func() (int, int, error) { return f.qp.PostSendAndSpin(send, nil, wcs, 0) },
		"no room":       func() (int, int, error) { return f.qp.PostSendAndSpin(send, f.cq, nil, 0) },
		"no requests":   func() (int, int, error) { return f.qp.PostSendAndSpin(nil, f.cq, wcs, 0) },
		"closed memory": func() (int, int, error) { return f.qp.PostSendAndSpin(stale, f.cq, wcs, 0) },
	} {
		posted, n, err := post()
		require.Error(t, err, name)
		require.Zero(t, posted, name)
		require.Zero(t, n, name)
	}
	// Another goroutine waits, or there is nothing to wait with.
	f.Set(fakeverbs.Script{})
	busy := &CQ{raw: f.PlainCQ(), queue: datapath.NewQueue(f.PlainCQ()), channel: &CompChannel{raw: &libibverbs.CompChannel{Fd: -1}}, turn: make(chan struct{}, 1)}
	busy.object.InitUnlisted("busy CQ")
	n, err = busy.Wait(ctx, wcs)
	require.Error(t, err)
	require.Zero(t, n)
	busy.turn <- struct{}{}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	n, err = busy.Wait(ended, wcs)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, n)
	// And none of them keeps the objects in use, so that Close would wait.
	for _, o := range []interface {
		Close(func(), func() error) error
	}{&f.qp.object, &f.cq.object} {
		require.NoError(t, o.Close(nil, func() error { return nil }))
	}
}

func must1[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// The first request of a batch is checked, too.
func TestFirstRequestNeedsExtendedQP(t *testing.T) {
	f := newFakeDevice(t)
	for name, typ := range map[string]QPType{"RC": QPTypeRC, "UD": QPTypeUD} {
		f.qp.raw.QpType = typ
		b := must1(NewSendBatch(2, 0))(t)
		require.NoError(t, b.Flush(7, RemoteBuffer{Addr: 8, Len: 8}, FlushGlobal, 0))
		n, err := f.qp.PostSend(b)
		require.Zero(t, n, name)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "request 0 of the batch (ID 7), none was posted: ibv_post_send", name)
		require.Zero(t, f.Requests(), name)
	}
}

// C does not say which request ibv_wr_complete has failed with; of one there is
// no doubt.
func TestRefusedByComplete(t *testing.T) {
	f := newFakeDevice(t)
	for n, want := range map[int]PostError{
		1: {Index: 0, ID: 9, None: true}, 2: {Index: -1, None: true}, 3: {Index: -1, None: true},
	} {
		b := must1(NewSendBatch(n, 0))(t)
		for range n {
			require.NoError(t, b.Send(9, 0))
		}
		f.Set(fakeverbs.Script{PostError: int(syscall.ENOSPC)})
		posted, err := f.ex.PostSend(b)
		require.Zero(t, posted)
		var failed *PostError
		require.ErrorAs(t, err, &failed)
		want.Err = failed.Err
		require.Equal(t, want, *failed)
	}
	b := must1(NewRecvBatch(2, 0))(t)
	require.NoError(t, b.Recv(5))
	require.NoError(t, b.Recv(6))
	n, err := b.failed(&f.qp.object, nil, syscall.ENOMEM)
	require.Zero(t, n)
	require.ErrorContains(t, err, "request 0 of the batch (ID 5)")
}

// An error names the step that C has failed at.
func TestPollingSteps(t *testing.T) {
	f := newFakeDevice(t)
	for step, want := range map[datapath.Step]string{
		datapath.Polling: "ibv_poll_cq", datapath.Arming: "ibv_req_notify_cq", datapath.Reading: "ibv_get_cq_event",
	} {
		err := f.cq.notPolled(1, &datapath.Polled{Step: step, Value: -1, Errno: int32(syscall.EIO)})
		require.ErrorContains(t, err, want)
		require.NoError(t, f.cq.notPolled(1, &datapath.Polled{Step: step}))
	}
}

// What C looks at while it posts is what the batch has now, not what it had
// when it was posted before.
func TestChangesAreHeld(t *testing.T) {
	f := newFakeDevice(t)
	newFakeAH := func() *AH {
		ah := &AH{raw: &libibverbs.Ah{}}
		ah.object.InitUnlisted("fake AH")
		return ah
	}
	for name, change := range map[string]func(b *SendBatch, mr *MR) (closed func()){
		"inline now": func(b *SendBatch, mr *MR) func() {
			require.NoError(t, b.WR(1).SetFlags(SendInline))
			return func() { closeFake(t, mr) }
		},
		"other segments": func(b *SendBatch, _ *MR) func() {
			other := fakeMR(t, 64, 4)
			require.NoError(t, b.WR(0).SetSegments(other.All()))
			return func() { closeFake(t, other) }
		},
		"a header": func(b *SendBatch, _ *MR) func() {
			other := fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, other.All(), 100, 0))
			return func() { closeFake(t, other) }
		},
		"a destination": func(b *SendBatch, mr *MR) func() {
			ah, header := newFakeAH(), fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, header.All(), 100, 0))
			_, err := f.qp.PostSend(b)
			require.NoError(t, err)
			require.NoError(t, b.WR(2).SetDestination(Destination{AH: ah}))
			return func() { require.NoError(t, ah.object.Close(nil, func() error { return nil })) }
		},
		"a header beside a destination": func(b *SendBatch, mr *MR) func() {
			ah, header := newFakeAH(), fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, header.All(), 100, 0))
			require.NoError(t, b.WR(2).SetDestination(Destination{AH: ah}))
			return func() { closeFake(t, header) }
		},
		"a datagram": func(b *SendBatch, mr *MR) func() {
			ah := newFakeAH()
			require.NoError(t, b.SendTo(3, Destination{AH: ah}, 0))
			return func() { require.NoError(t, ah.object.Close(nil, func() error { return nil })) }
		},
		"a region beside bytes": func(b *SendBatch, mr *MR) func() {
			other := fakeMR(t, 64, 4)
			b.Reset() // so that no other request is inline
			require.NoError(t, b.Send(3, SendInline, InlineBytes([]byte("bytes")), other.All()))
			return func() { closeFake(t, other) }
		},
	} {
		b := must1(NewSendBatch(3, 2))(t)
		first, second := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
		require.NoError(t, b.Send(1, SendInline, first.All()))
		require.NoError(t, b.Send(2, 0, second.All()))
		_, err := f.qp.PostSend(b)
		require.NoError(t, err)
		closed := change(b, second)
		_, err = f.qp.PostSend(b)
		require.NoError(t, err, name)
		closed()
		_, err = f.qp.PostSend(b)
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
}

// Segments that replace others are all there, belong to their regions, and may
// fill the room.
func TestSetSegmentsOfSeveral(t *testing.T) {
	one, two := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
	two.start = 1 << 20 // for the device, as of a region with an address of its own
	to := RemoteBuffer{Addr: 8, Len: 72}
	for flags, wantTwo := range map[SendFlags]uint64{0: two.start + 8, SendInline: addressOf(two.bytes) + 8} {
		b := must1(NewSendBatch(2, 2))(t)
		require.NoError(t, b.Send(0, 0))
		require.NoError(t, b.Write(1, to, flags, one.Sub(0, 8)))
		require.NoError(t, b.WR(1).SetSegments(one.All(), two.Sub(8, 8)))
		require.Equal(t, []libibverbs.Sge{
			{Addr: one.start, Length: 64, Lkey: 1}, {Addr: wantTwo, Length: 8, Lkey: 2},
		}, b.arena.place(1)[:2])
		require.Equal(t, []*MR{nil, nil, one, two}, b.owner)
		require.EqualValues(t, 2, b.arena.wrs[1].NumSge)
		require.ErrorIs(t, b.WR(1).SetSegments(one.All(), two.Sub(8, 9)), syscall.EINVAL)

		// C reads inline data at this process's address, the device at its own.
		require.NoError(t, b.WR(1).SetFlags(flags^SendInline))
		require.Equal(t, two.start+addressOf(two.bytes)+16-wantTwo, b.arena.place(1)[1].Addr)
		require.NoError(t, b.WR(1).SetFlags(flags))
		require.Equal(t, wantTwo, b.arena.place(1)[1].Addr)

		// The room is the remote buffer's.
		to := to
		to.Len = 80
		require.NoError(t, b.WR(1).SetRemote(to))
		require.NoError(t, b.WR(1).SetSegments(one.All(), two.Sub(0, 16)))
	}
}

// A header may have as many bytes as its length can say.
func TestLargestHeader(t *testing.T) {
	const most = 1<<16 - 1
	mr := fakeMR(t, most+1, 1)
	b := must1(NewSendBatch(2, 0))(t)
	require.NoError(t, b.TSO(1, mr.Sub(0, most), 100, 0))
	require.EqualValues(t, most, b.arena.wrs[0].Tso().HdrSz)
	require.ErrorIs(t, b.TSO(2, mr.All(), 100, 0), syscall.EINVAL)
}

// A request that cannot be inline keeps no memory reachable.
func TestRefusedInlineOwnsNothing(t *testing.T) {
	mr := fakeMR(t, 64, 1)
	b := must1(NewSendBatch(1, 1))(t)
	require.ErrorIs(t, b.Read(1, RemoteBuffer{Len: 64}, SendInline, mr.All()), syscall.EINVAL)
	require.Zero(t, b.Len())
	require.Equal(t, []*MR{nil}, b.owner)
}
