// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// follow returns the list that C sees, from the first request on.
func follow[T any](b []T, next func(*T) *T) []*T {
	var list []*T
	if len(b) > 0 {
		for wr := &b[0]; wr != nil; wr = next(wr) {
			list = append(list, wr)
		}
	}
	return list
}

// sendList returns the list that C sees of a batch that is posted.
func sendList(t *testing.T, b *SendBatch) []*libibverbs.SendWr {
	t.Helper()
	if b.Len() == 0 {
		return nil
	}
	require.NoError(t, b.begin(b.arena.used()))
	defer b.finish()
	return follow(b.arena.used(), func(wr *libibverbs.SendWr) *libibverbs.SendWr { return wr.Next })
}

func nextRecv(wr *libibverbs.RecvWr) *libibverbs.RecvWr { return wr.Next }

func TestSendBatchLayout(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	at := func(offset int) uint64 { return mr.addr() + uint64(offset) }
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 512}
	const imm = 0x01020304
	immBytes := [4]byte{1, 2, 3, 4} // network order

	tests := map[string]struct {
		add    func(b *SendBatch) error
		opcode libibverbs.WrOpcode
		flags  SendFlags
		imm    bool
		remote bool
		sges   []libibverbs.Sge
	}{
		"send": {
			add:    func(b *SendBatch) error { return b.Send(9, SendSignaled, mr.Sub(10, 20)) },
			opcode: libibverbs.IBV_WR_SEND, flags: SendSignaled,
			sges: []libibverbs.Sge{{Addr: at(10), Length: 20, Lkey: 0x55}},
		},
		"send nothing": {
			add:    func(b *SendBatch) error { return b.Send(9, 0) },
			opcode: libibverbs.IBV_WR_SEND,
		},
		"send inline": {
			add:    func(b *SendBatch) error { return b.Send(9, SendInline|SendSolicited, mr.Sub(0, 1)) },
			opcode: libibverbs.IBV_WR_SEND, flags: SendInline | SendSolicited,
			sges: []libibverbs.Sge{{Addr: at(0), Length: 1, Lkey: 0x55}},
		},
		"send imm": {
			add:    func(b *SendBatch) error { return b.SendImm(9, imm, SendFence, mr.Sub(4096, 0)) },
			opcode: libibverbs.IBV_WR_SEND_WITH_IMM, flags: SendFence, imm: true,
			sges: []libibverbs.Sge{{Addr: at(4096), Lkey: 0x55}},
		},
		"write": {
			add: func(b *SendBatch) error {
				return b.Write(9, remote, 0, mr.Sub(0, 256), mr.Sub(1000, 256))
			},
			opcode: libibverbs.IBV_WR_RDMA_WRITE, remote: true,
			sges: []libibverbs.Sge{{Addr: at(0), Length: 256, Lkey: 0x55}, {Addr: at(1000), Length: 256, Lkey: 0x55}},
		},
		"write imm": {
			add:    func(b *SendBatch) error { return b.WriteImm(9, remote, imm, 0) },
			opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, imm: true, remote: true,
		},
		"read": {
			add:    func(b *SendBatch) error { return b.Read(9, remote, 0, mr.Sub(1, 2)) },
			opcode: libibverbs.IBV_WR_RDMA_READ, remote: true,
			sges: []libibverbs.Sge{{Addr: at(1), Length: 2, Lkey: 0x55}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := NewSendBatch(4, 2)
			require.NoError(t, err)
			for range 2 { // each use meets what an earlier one has left
				b.Reset()
				for i := range 2 {
					require.NoError(t, b.Write(1, RemoteBuffer{Addr: 1, RKey: 1, Len: 99}, SendFence, mr.Sub(5, 5), mr.Sub(6, 6)))
					require.NoError(t, b.WR(i).SetXRCSRQ(5))
				}
				b.Reset()
				require.NoError(t, b.Write(1, RemoteBuffer{Addr: 1, RKey: 1, Len: 99}, SendFence, mr.Sub(5, 5), mr.Sub(6, 6)))
				require.NoError(t, tt.add(b))
				require.Equal(t, 2, b.Len())

				list := sendList(t, b)
				require.Len(t, list, 2)
				wr := list[1]
				require.EqualValues(t, 9, wr.WrId)
				require.Equal(t, tt.opcode, wr.Opcode)
				require.Equal(t, tt.flags, wr.SendFlags)
				require.Equal(t, tt.sges, append([]libibverbs.Sge(nil), sgesOf(wr.SgList, wr.NumSge)...))
				if tt.imm {
					require.Equal(t, immBytes, *(*[4]byte)(unsafe.Pointer(wr.ImmData())))
				}
				if tt.remote {
					require.Equal(t, libibverbs.SendWrWrRdma{RemoteAddr: 0x1000, Rkey: 0x77}, *wr.Wr.Rdma())
				} else {
					require.Nil(t, wr.Wr.Ud().Ah)
				}
				require.Zero(t, wr.QpType.Xrc().RemoteSrqn)
			}
		})
	}
}

func TestRecvBatchLayout(t *testing.T) {
	mr := fakeMR(t, 64, 0x55)
	b, err := NewRecvBatch(3, 2)
	require.NoError(t, err)
	require.NoError(t, b.Recv(1, mr.Sub(0, 8), mr.Sub(16, 8)))
	require.NoError(t, b.Recv(2))
	require.NoError(t, b.Recv(3, mr.All()))

	list := follow(b.arena.used(), nextRecv)
	require.Len(t, list, 3)
	for i, want := range [][]libibverbs.Sge{
		{{Addr: mr.addr(), Length: 8, Lkey: 0x55}, {Addr: mr.addr() + 16, Length: 8, Lkey: 0x55}},
		nil,
		{{Addr: mr.addr(), Length: 64, Lkey: 0x55}},
	} {
		require.EqualValues(t, i+1, list[i].WrId)
		require.Equal(t, want, append([]libibverbs.Sge(nil), sgesOf(list[i].SgList, list[i].NumSge)...))
	}
}

// A list ends after its last request, whatever the batch has held before.
func TestBatchReuse(t *testing.T) {
	send, err := NewSendBatch(5, 0)
	require.NoError(t, err)
	recv, err := NewRecvBatch(5, 0)
	require.NoError(t, err)
	for _, n := range []int{5, 1, 3, 0, 2, 5} {
		send.Reset()
		recv.Reset()
		for i := range n {
			require.NoError(t, send.Send(uint64(i), 0))
			require.NoError(t, recv.Recv(uint64(i)))
		}
		require.Equal(t, n, send.Len())
		require.Equal(t, n, recv.Len())
		require.Len(t, sendList(t, send), n)
		require.Len(t, follow(recv.arena.used(), nextRecv), n)
	}
}

func TestNewBatchLimits(t *testing.T) {
	for _, tt := range []struct {
		requests, segments int
		ok                 bool
	}{
		{1, 0, true},
		{1, 1 << 10, true},
		{1 << 20, 1, true},
		{0, 1, false},
		{-1, 1, false},
		{1, -1, false},
		{1<<20 + 1, 1, false},
		{1, 1<<10 + 1, false},
		{math.MaxInt, math.MaxInt, false},
		{math.MinInt, math.MinInt, false},
	} {
		send, sendErr := NewSendBatch(tt.requests, tt.segments)
		recv, recvErr := NewRecvBatch(tt.requests, tt.segments)
		for _, err := range []error{sendErr, recvErr} {
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, syscall.EINVAL)
			}
		}
		require.Equal(t, tt.ok, send != nil)
		require.Equal(t, tt.ok, recv != nil)
	}
}

func TestBatchFull(t *testing.T) {
	send, err := NewSendBatch(2, 0)
	require.NoError(t, err)
	recv, err := NewRecvBatch(2, 0)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, send.Send(0, 0))
		require.NoError(t, recv.Recv(0))
	}
	for name, err := range map[string]error{
		"send":      send.Send(0, 0),
		"send imm":  send.SendImm(0, 0, 0),
		"write":     send.Write(0, RemoteBuffer{}, 0),
		"write imm": send.WriteImm(0, RemoteBuffer{}, 0, 0),
		"read":      send.Read(0, RemoteBuffer{}, 0),
		"recv":      recv.Recv(0),
	} {
		require.ErrorIs(t, err, ErrBatchFull, name)
	}
	require.Equal(t, 2, send.Len())
	require.Equal(t, 2, recv.Len())
}

func TestSegmentBounds(t *testing.T) {
	mr := fakeMR(t, 100, 1)
	closed := fakeMR(t, 100, 1)
	closeFake(t, closed)
	for name, tt := range map[string]struct {
		segment Segment
		want    string // the error's text, empty: none
		is      error
	}{
		"all":             {segment: mr.All()},
		"one":             {segment: mr.Sub(99, 1)},
		"empty":           {segment: mr.Sub(50, 0)},
		"empty at end":    {segment: mr.Sub(100, 0)},
		"too long":        {mr.Sub(0, 101), "segment of 101 bytes at 0 is outside fake MR of 100 bytes", syscall.EINVAL},
		"past the end":    {mr.Sub(100, 1), "segment of 1 bytes at 100 is outside", syscall.EINVAL},
		"empty past end":  {mr.Sub(101, 0), "segment of 0 bytes at 101 is outside fake MR", syscall.EINVAL},
		"negative offset": {mr.Sub(-1, 1), "segment of 1 bytes at -1 is outside", syscall.EINVAL},
		"negative length": {mr.Sub(1, -1), "segment of -1 bytes at 1 is outside", syscall.EINVAL},
		"overflow":        {mr.Sub(math.MaxInt, math.MaxInt), "segment of ", syscall.EINVAL},
		"underflow":       {mr.Sub(math.MinInt, math.MinInt), "segment of ", syscall.EINVAL},
		"mixed":           {mr.Sub(math.MinInt, math.MaxInt), "segment of ", syscall.EINVAL},
		"zero segment":    {Segment{}, "segment without a memory region", syscall.EINVAL},
		"nil region":      {(*MR)(nil).Sub(0, 0), "segment without a memory region", syscall.EINVAL},
		"zero region":     {(&MR{}).Sub(0, 0), "segment without a memory region", syscall.EINVAL},
		"closed region":   {closed.Sub(0, 1), "fake MR: file already closed", os.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			send, err := NewSendBatch(1, 2)
			require.NoError(t, err)
			recv, err := NewRecvBatch(1, 2)
			require.NoError(t, err)
			errs := []error{
				send.Send(1, 0, mr.Sub(0, 1), tt.segment), recv.Recv(1, mr.Sub(0, 1), tt.segment),
			}
			if tt.want == "" {
				require.Equal(t, []error{nil, nil}, errs)
				require.Len(t, tt.segment.Bytes(), tt.segment.Len())
				require.Equal(t, tt.segment.Len(), cap(tt.segment.Bytes()))
				return
			}
			for _, err := range errs {
				require.ErrorContains(t, err, "segment 1: "+tt.want)
				require.ErrorIs(t, err, tt.is)
			}
			require.Zero(t, send.Len())
			require.Zero(t, recv.Len())
			require.Nil(t, tt.segment.Bytes())
		})
	}
}

func TestTooManySegments(t *testing.T) {
	mr := fakeMR(t, 100, 1)
	send, err := NewSendBatch(1, 1)
	require.NoError(t, err)
	err = send.Send(1, 0, mr.All(), mr.All())
	require.ErrorContains(t, err, "the request has 2 segments, but the batch was made for 1")
	require.Zero(t, send.Len())
}

func TestRemoteBufferTooSmall(t *testing.T) {
	mr := fakeMR(t, 100, 1)
	send, err := NewSendBatch(1, 2)
	require.NoError(t, err)
	remote := mr.Remote().Sub(50, 9)
	require.Equal(t, RemoteBuffer{Addr: mr.addr() + 50, RKey: 2, Len: 9}, remote)
	for name, err := range map[string]error{
		"write":     send.Write(1, remote, 0, mr.Sub(0, 5), mr.Sub(0, 5)),
		"write imm": send.WriteImm(1, remote, 7, 0, mr.Sub(0, 5), mr.Sub(0, 5)),
		"read":      send.Read(1, remote, 0, mr.Sub(0, 5), mr.Sub(0, 5)),
	} {
		require.ErrorContains(t, err, "10 bytes do not fit into the remote buffer of 9 bytes", name)
	}
	require.Zero(t, send.Len())
	require.NoError(t, send.Write(1, remote, 0, mr.Sub(0, 4), mr.Sub(0, 5)))
}

// TestRemoteBufferOutside has pieces that are outside their buffer: every
// request refuses them, even one without bytes, and none gets into the batch.
func TestRemoteBufferOutside(t *testing.T) {
	mr := fakeMR(t, 128, 1)
	whole := RemoteBuffer{Addr: 0x1000, RKey: 7, Len: 64}
	for name, tt := range map[string]struct {
		piece      RemoteBuffer
		n, offset  uint64
		isInBuffer bool
	}{
		"all":                    {piece: whole.Sub(0, 64), isInBuffer: true},
		"nothing at the end":     {piece: whole.Sub(64, 0), isInBuffer: true},
		"piece of a piece":       {piece: whole.Sub(8, 16).Sub(8, 8), isInBuffer: true},
		"one byte more":          {piece: whole.Sub(0, 65), n: 65},
		"nothing behind the end": {piece: whole.Sub(65, 0), offset: 65},
		"over the end":           {piece: whole.Sub(60, 8), n: 8, offset: 60},
		"around zero":            {piece: whole.Sub(math.MaxUint64-7, 16), n: 16, offset: math.MaxUint64 - 7},
		"longest":                {piece: whole.Sub(8, math.MaxUint64), n: math.MaxUint64, offset: 8},
		"piece of a short piece": {piece: whole.Sub(8, 16).Sub(16, 8), n: 8, offset: 16},
		"piece of one outside":   {piece: whole.Sub(8, 128).Sub(8, 8), n: 128, offset: 8},
		"of the zero buffer":     {piece: RemoteBuffer{}.Sub(0, 8), n: 8},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := NewSendBatch(16, 2)
			require.NoError(t, err)
			word := mr.Sub(0, 8)
			require.NoError(t, b.Write(1, whole, 0))
			require.NoError(t, b.CompareSwap(1, whole, 0, 1, 0, word))
			require.NoError(t, b.Flush(1, whole, FlushGlobal, 0))
			there := tt.piece
			errs := []error{
				b.Write(2, there, 0), b.WriteImm(2, there, 7, 0), b.Read(2, there, 0), b.Flush(2, there, FlushGlobal, 0),
				b.FlushRegion(2, there, FlushGlobal, 0),
				b.WR(0).SetRemote(there), b.WR(2).SetRemote(there),
			}
			_, binaryErr := there.AppendBinary(nil)
			errs = append(errs, binaryErr)
			if there.Len >= 8 {
				errs = append(errs, b.CompareSwap(2, there, 0, 1, 0, word), b.FetchAdd(2, there, 1, 0, word),
					b.AtomicWrite(2, there, [8]byte{}, 0), b.WR(1).SetRemote(there))
			}
			if tt.isInBuffer {
				for i, err := range errs {
					require.NoError(t, err, "%d", i)
				}
				require.Equal(t, RemoteBuffer{Addr: there.Addr, RKey: 7, Len: there.Len}, there)
				return
			}
			for i, err := range errs {
				require.ErrorIs(t, err, syscall.EINVAL, "%d", i)
				require.ErrorContains(t, err, fmt.Sprintf(
					"remote buffer of %d bytes at %d is outside the remote buffer that it is a piece of", tt.n, tt.offset), "%d", i)
			}
			require.Equal(t, 3, b.Len())
			marshalled, err := there.MarshalBinary()
			require.Error(t, err)
			require.Nil(t, marshalled)
		})
	}
}

func TestNoBatch(t *testing.T) {
	for name, send := range map[string]*SendBatch{"nil": nil, "zero": {}} {
		require.ErrorIs(t, send.Send(1, 0), syscall.EINVAL, name)
		require.ErrorIs(t, send.Read(1, RemoteBuffer{}, 0), syscall.EINVAL, name)
		require.Zero(t, send.Len())
		send.Reset()
	}
	for name, recv := range map[string]*RecvBatch{"nil": nil, "zero": {}} {
		require.ErrorIs(t, recv.Recv(1), syscall.EINVAL, name)
		require.Zero(t, recv.Len())
		recv.Reset()
	}
}

// Posting holds the regions of inline requests, whose memory C then reads.
func TestInlineRegionsAreHeld(t *testing.T) {
	a, b := fakeMR(t, 100, 1), fakeMR(t, 100, 2)
	send, err := NewSendBatch(4, 2)
	require.NoError(t, err)
	closed := fakeMR(t, 1, 3)
	require.NoError(t, send.Send(1, 0, closed.All()))
	closeFake(t, closed) // is not looked at
	require.NoError(t, send.Send(2, SendInline, a.All(), b.All()))
	require.NoError(t, send.Send(3, SendInline, b.Sub(1, 1), b.Sub(2, 1)))

	require.NoError(t, send.hold())
	interrupted, result := make(chan struct{}), make(chan error)
	destroyed := false
	go func() {
		result <- b.object.Close(func() { close(interrupted) }, func() error {
			destroyed = true
			return nil
		})
	}()
	<-interrupted
	require.False(t, destroyed)
	send.release()
	require.NoError(t, <-result)

	err = send.hold()
	require.EqualError(t, err, "a request uses an object that was closed: fake MR: file already closed")
	closeFake(t, a) // is not in use any more
	send.Reset()
	require.NoError(t, send.hold())
	_, err = (&QP{raw: &libibverbs.Qp{}}).PostSend(send)
	require.ErrorIs(t, err, os.ErrInvalid)
}

func TestChangeRequests(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 100}
	moved := RemoteBuffer{Addr: 0x2000, RKey: 0x78, Len: 50}
	b, err := NewSendBatch(8, 2)
	require.NoError(t, err)
	require.NoError(t, errors.Join(
		b.SendImm(0, 1, 0, mr.Sub(0, 10)),
		b.Write(1, remote, SendSignaled, mr.Sub(0, 10), mr.Sub(10, 10)),
		b.CompareSwap(2, remote, 1, 2, 0, mr.Sub(0, 8)),
		b.LocalInv(3, 1, 0),
		b.Flush(4, remote, FlushGlobal, 0),
		b.AtomicWrite(5, remote, [8]byte{1}, 0),
		b.Send(6, 0),
	))
	wr := func(i int) *libibverbs.SendWr { return &b.arena.wrs[i] }

	require.NoError(t, b.WR(0).SetID(70))
	require.EqualValues(t, 70, wr(0).WrId)
	require.NoError(t, b.WR(0).SetImm(0x01020304))
	require.EqualValues(t, 0x01020304, wr(0).ImmData().Host())
	require.NoError(t, b.WR(0).SetFlags(SendSignaled|SendInline))
	require.Equal(t, SendSignaled|SendInline, wr(0).SendFlags)
	require.NoError(t, b.WR(0).SetSegments(mr.Sub(5, 6), mr.Sub(7, 8)))
	require.Equal(t, []libibverbs.Sge{{Addr: mr.addr() + 5, Length: 6, Lkey: 0x55}, {Addr: mr.addr() + 7, Length: 8, Lkey: 0x55}},
		sgesOf(wr(0).SgList, wr(0).NumSge))
	require.NoError(t, b.WR(0).SetSegments())
	require.Zero(t, wr(0).NumSge)

	require.NoError(t, b.WR(1).SetRemote(moved))
	require.Equal(t, libibverbs.SendWrWrRdma{RemoteAddr: 0x2000, Rkey: 0x78}, *wr(1).Wr.Rdma())
	require.NoError(t, b.WR(2).SetOperands(3, 4))
	require.NoError(t, b.WR(2).SetRemote(moved))
	require.Equal(t, libibverbs.SendWrWrAtomic{RemoteAddr: 0x2000, CompareAdd: 3, Swap: 4, Rkey: 0x78}, *wr(2).Wr.Atomic())
	require.NoError(t, b.WR(3).SetInvalidate(9))
	require.EqualValues(t, 9, *wr(3).InvalidateRkey())
	require.NoError(t, b.WR(4).SetRemote(moved))
	require.Equal(t, libibverbs.SendWrWrAtomic{RemoteAddr: 0x2000, CompareAdd: 50, Swap: 1, Rkey: 0x78}, *wr(4).Wr.Atomic())
	data := wr(5).Wr.Atomic().CompareAdd
	require.NoError(t, b.WR(5).SetRemote(moved))
	require.Equal(t, libibverbs.SendWrWrAtomic{RemoteAddr: 0x2000, CompareAdd: data, Rkey: 0x78}, *wr(5).Wr.Atomic())
	require.Len(t, sendList(t, b), 7, "the list is as it was")
}

// A change that is refused changes nothing.
func TestRefusedChanges(t *testing.T) {
	mr := fakeMR(t, 4096, 0x55)
	remote := RemoteBuffer{Addr: 0x1000, RKey: 0x77, Len: 100}
	b, err := NewSendBatch(8, 2)
	require.NoError(t, err)
	require.NoError(t, errors.Join(
		b.Send(0, 0, mr.Sub(0, 10)), b.Write(1, remote, 0, mr.Sub(0, 10)), b.FetchAdd(2, remote, 1, 0, mr.Sub(0, 8)),
		b.LocalInv(3, 1, 0), b.Flush(4, remote, FlushGlobal, 0), b.AtomicWrite(5, remote, [8]byte{}, 0),
	))
	before := append([]libibverbs.SendWr(nil), b.arena.used()...)
	sges := append([]libibverbs.Sge(nil), b.arena.sges...)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"index":               {b.WR(6).SetID(1), "(request 6): the batch has 6 requests"},
		"negative":            {b.WR(-1).SetFlags(0), "(request -1): the batch has 6 requests"},
		"nil":                 {(*SendBatch)(nil).WR(0).SetSegments(), "(request 0): the batch has 0 requests"},
		"zero":                {SendWR{}.SetRemote(remote), "(request 0): the batch has 0 requests"},
		"inline":              {b.WR(2).SetFlags(SendInline), "SendInline is only for"},
		"imm of a send":       {b.WR(0).SetImm(1), "(IBV_WR_SEND, request 0 of the batch): the request has no immediate data"},
		"remote of a send":    {b.WR(0).SetRemote(remote), "has no remote buffer"},
		"operands":            {b.WR(1).SetOperands(1, 2), "has no operands"},
		"invalidate":          {b.WR(1).SetInvalidate(2), "has no key to invalidate"},
		"destination":         {b.WR(1).SetDestination(Destination{}), "has no destination"},
		"no handle":           {b.WR(0).SetDestination(Destination{}), "datagram without an address handle"},
		"too many":            {b.WR(0).SetSegments(mr.All(), mr.All(), mr.All()), "the request has 3 segments, but the batch was made for 2"},
		"second outside":      {b.WR(0).SetSegments(mr.Sub(1, 1), mr.Sub(4096, 1)), "segment 1: segment of 1 bytes at 4096 is outside"},
		"more than remote":    {b.WR(1).SetSegments(mr.Sub(0, 101)), "101 bytes do not fit into the remote buffer of 100 bytes"},
		"remote too small":    {b.WR(1).SetRemote(remote.Sub(0, 9)), "10 bytes do not fit into the remote buffer of 9 bytes"},
		"result":              {b.WR(2).SetSegments(mr.Sub(0, 9)), "an atomic operation needs one segment of 8 bytes"},
		"no result":           {b.WR(2).SetSegments(), "an atomic operation needs one segment of 8 bytes"},
		"unaligned":           {b.WR(2).SetRemote(remote.Sub(4, 8)), "the address of an atomic operation is 0x1004, not a multiple of 8"},
		"unaligned write":     {b.WR(5).SetRemote(remote.Sub(4, 8)), "not a multiple of 8"},
		"segment of LocalInv": {b.WR(3).SetSegments(mr.Sub(0, 1)), "has no segments"},
		"segment of Flush":    {b.WR(4).SetSegments(mr.Sub(0, 1)), "has no segments"},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
	}
	require.Equal(t, before, b.arena.used())
	require.Equal(t, sges, b.arena.sges)
}

func TestRefusedRequests(t *testing.T) {
	mr := fakeMR(t, 1<<17, 0x55)
	far := fakeMR(t, 64, 0x66)
	far.bytes = nil // which only the device reaches
	remote := RemoteBuffer{Addr: 0x1000, Len: 8}
	b, err := NewSendBatch(1, 1)
	require.NoError(t, err)
	for want, err := range map[string]error{
		"the address of an atomic operation is 0x1001, not a multiple of 8":      b.FetchAdd(1, RemoteBuffer{Addr: 0x1001, Len: 8}, 1, 0, mr.Sub(0, 8)),
		"the remote buffer has 7 bytes, fewer than the 8 of an atomic operation": b.CompareSwap(1, remote.Sub(0, 7), 1, 2, 0, mr.Sub(0, 8)),
		"the result of an atomic operation has 7 bytes, not 8":                   b.CompareSwap(1, remote, 1, 2, 0, mr.Sub(0, 7)),
		"the address of an atomic operation is 0x1004, not a multiple of 8":      b.AtomicWrite(1, RemoteBuffer{Addr: 0x1004, Len: 8}, [8]byte{}, 0),
		"placement is 0":             b.Flush(1, remote, 0, 0),
		"placement is 0x4":           b.FlushRegion(1, remote, 4, 0),
		"header: segment of 1 bytes": b.TSO(1, mr.Sub(1<<17, 1), 1, 0),
		"mss is 0 and the header has 1 bytes, not from 1 to 65535 each":                   b.TSO(1, mr.Sub(0, 1), 0, 0),
		"mss is 9 and the header has 0 bytes, not from 1 to 65535 each":                   b.TSO(1, mr.Sub(0, 0), 9, 0),
		"mss is 9 and the header has 65536 bytes, not from 1 to 65535 each":               b.TSO(1, mr.Sub(0, 1<<16), 9, 0),
		"header: the memory of fake MR cannot be sent inline":                             b.TSO(1, far.Sub(0, 8), 9, 0),
		"(IBV_WR_RDMA_READ, request 0 of the batch): SendInline is only for":              b.Read(1, remote, SendInline, mr.Sub(0, 8)),
		"(IBV_WR_ATOMIC_FETCH_AND_ADD, request 0 of the batch): SendInline is only for":   b.FetchAdd(1, remote, 1, SendInline, mr.Sub(0, 8)),
		"(IBV_WR_ATOMIC_CMP_AND_SWP, request 0 of the batch): SendInline is only for":     b.CompareSwap(1, remote, 1, 2, SendInline|SendSignaled, mr.Sub(0, 8)),
		"datagram without an address handle":                                              b.SendImmTo(1, Destination{}, 1, 0),
		"SendBatch.BindMW: the object is nil, or was not made by the package's functions": b.BindMW(1, nil, Binding{Memory: mr.All()}, 0),
	} {
		require.ErrorContains(t, err, want)
	}
	require.Zero(t, b.Len())
	require.NoError(t, b.Send(1, 0))
	require.ErrorIs(t, b.BindMW(1, nil, Binding{}, 0), ErrBatchFull)
	require.ErrorIs(t, b.LocalInv(1, 1, 0), ErrBatchFull)
	require.ErrorIs(t, (&SendBatch{}).LocalInv(1, 1, 0), syscall.EINVAL)
	require.ErrorIs(t, (*SendBatch)(nil).BindMW(1, nil, Binding{}, 0), syscall.EINVAL)
}

// What C looks at is held for those requests that need it, however they were
// changed.
func TestHoldsFollowChanges(t *testing.T) {
	mr := fakeMR(t, 64, 1)
	b, err := NewSendBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, b.Send(1, 0, mr.All()))
	require.NoError(t, b.TSO(2, mr.Sub(0, 8), 9, 0, mr.All()))
	require.Equal(t, 1, b.holds)
	for range 2 {
		require.NoError(t, b.WR(0).SetFlags(SendInline))
		require.Equal(t, 2, b.holds)
		require.NoError(t, b.WR(1).SetFlags(SendInline))
		require.Equal(t, 2, b.holds, "its header is held anyway")
	}
	for range 2 {
		require.NoError(t, b.WR(0).SetFlags(0))
		require.NoError(t, b.WR(1).SetFlags(0))
		require.Equal(t, 1, b.holds)
	}
	b.Reset()
	require.Zero(t, b.holds)
}

func TestChangeReceives(t *testing.T) {
	mr := fakeMR(t, 64, 0x55)
	b, err := NewRecvBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, b.Recv(1, mr.All()))
	require.NoError(t, b.WR(0).SetID(9))
	require.NoError(t, b.WR(0).SetSegments(mr.Sub(8, 8)))
	wr := &b.arena.wrs[0]
	require.EqualValues(t, 9, wr.WrId)
	require.Equal(t, []libibverbs.Sge{{Addr: mr.addr() + 8, Length: 8, Lkey: 0x55}}, sgesOf(wr.SgList, wr.NumSge))
	require.ErrorContains(t, b.WR(1).SetID(1), "(receive 1): the batch has 1 receives")
	require.ErrorContains(t, b.WR(0).SetSegments(mr.All(), mr.All()), "the request has 2 segments, but the batch was made for 1")
	require.ErrorContains(t, RecvWR{}.SetSegments(), "(receive 0): the batch has 0 receives")
	require.NoError(t, b.WR(0).SetSegments())
	require.Zero(t, wr.NumSge)
}

// inlineData returns what C finds as the data of an inline request.
func inlineData(b *SendBatch, i int) (data []byte) {
	wr := &b.arena.wrs[i]
	for _, sge := range sgesOf(wr.SgList, wr.NumSge) {
		// An address of mapped memory, or of a fake region that the batch keeps.
		data = append(data, unsafe.Slice(*(**byte)(unsafe.Pointer(&sge.Addr)), sge.Length)...)
	}
	runtime.KeepAlive(b)
	return data
}

// requireCopied says that what came from InlineBytes is in the memory which the
// batch has now. What it had before stays mapped until a collection.
func requireCopied(t *testing.T, b *SendBatch, i int) {
	t.Helper()
	first := addressOf(b.copies.of(i))
	for k, mr := range b.owners(i) {
		if sge := b.arena.place(i)[k]; mr == nil {
			require.GreaterOrEqual(t, sge.Addr, first)
			require.LessOrEqual(t, sge.Addr+uint64(sge.Length), first+uint64(b.copies.slot))
		}
	}
}

func TestInlineBytes(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	copy(mr.bytes, "region")
	to := RemoteBuffer{Addr: 0x1000, RKey: 5, Len: 100}
	ah := &AH{raw: &libibverbs.Ah{}}
	ah.object.InitUnlisted("fake AH")
	b, err := NewSendBatch(8, 3)
	require.NoError(t, err)
	one, two := []byte("one"), []byte("twotwo")
	add := func(flags SendFlags, segments ...Segment) error {
		return errors.Join(
			b.Send(0, flags, segments...), b.SendImm(1, 1, flags, segments...), b.SendInv(2, 1, flags, segments...),
			b.Write(3, to, flags, segments...), b.WriteImm(4, to, 1, flags, segments...),
			b.SendTo(5, Destination{AH: ah}, flags, segments...), b.SendImmTo(6, Destination{AH: ah}, 1, flags, segments...),
		)
	}
	require.NoError(t, add(SendInline, InlineBytes(one), mr.Sub(0, 6), InlineBytes(two).Sub(0, 3)))
	clear(one) // they are copied
	clear(two)
	require.Equal(t, 7, b.Len())
	for i := range 7 {
		require.Equal(t, "oneregiontwo", string(inlineData(b, i)))
	}
	require.NoError(t, b.Send(7, SendInline, InlineBytes(nil), InlineBytes([]byte{})))
	require.Empty(t, inlineData(b, 7))
	require.NoError(t, b.hold())
	b.release()

	// What is set later replaces it, and others are as they were, however large.
	for _, n := range []int{1, 64, 65, 4096, 3} {
		data := bytes.Repeat([]byte{byte(n)}, n)
		require.NoError(t, b.WR(2).SetSegments(InlineBytes(data[:n/2]), InlineBytes(data[n/2:])))
		require.Equal(t, data, inlineData(b, 2))
		for _, i := range []int{0, 1, 3, 6} {
			require.Equal(t, "oneregiontwo", string(inlineData(b, i)))
			requireCopied(t, b, i)
		}
	}
	require.NoError(t, b.WR(2).SetSegments(mr.Sub(0, 2)))
	require.NoError(t, b.WR(2).SetFlags(0))
	b.Reset()
	require.NoError(t, add(0, mr.All()))
}

// Requests that are added outgrow the memory of those before.
func TestInlineBytesGrow(t *testing.T) {
	b, err := NewSendBatch(16, 2)
	require.NoError(t, err)
	data := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 4096>>(16-i)+i) }
	for i := range 16 {
		d := data(i)
		require.NoError(t, b.Send(uint64(i), SendInline, InlineBytes(d[:i/2]), InlineBytes(d[i/2:])))
	}
	for i := range 16 {
		require.Equal(t, string(data(i)), string(inlineData(b, i)), i)
		requireCopied(t, b, i)
	}
}

func TestInlineBytesRefused(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	at := RemoteBuffer{Addr: 0x1000, Len: 8}
	some := InlineBytes(make([]byte, 8))
	b, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, b.Send(1, SendInline, some))
	_, remote := some.Remote()
	const only = "a segment from InlineBytes, of 8 bytes, can only be sent, with SendInline"
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"not inline":       {b.Send(1, SendSignaled, some), "segment 0: " + only},
		"behind another":   {b.Send(1, 0, mr.All(), some), "segment 1: " + only},
		"read":             {b.Read(1, at, SendInline, some), only},
		"atomic":           {b.FetchAdd(1, at, 1, SendInline, some), only},
		"receive":          {recv.Recv(1, some), only},
		"header":           {b.TSO(1, some, 9, 0), "header: " + only},
		"remote":           {remote, only},
		"another is wrong": {b.Send(1, SendInline, some, mr.Sub(64, 1)), "segment 1: segment of 1 bytes at 64 is outside fake MR"},
		"first is wrong":   {b.Send(1, SendInline, mr.Sub(64, 1), some), "segment 0: segment of 1 bytes at 64 is outside fake MR"},
		"too many":         {b.Send(1, SendInline, some, some, some), "the request has 3 segments, but the batch was made for 2"},
		"too long":         {b.Send(1, SendInline, InlineBytes(make([]byte, 4097))), "4097 bytes from InlineBytes, more than 4096"},
		"too long in two":  {b.Send(1, SendInline, InlineBytes(make([]byte, 4090)), some), "4098 bytes from InlineBytes, more than 4096"},
		"remote too small": {b.Write(1, at.Sub(0, 7), SendInline, some), "8 bytes do not fit into the remote buffer of 7 bytes"},
		"flags":            {b.WR(0).SetFlags(0), "SetFlags cannot clear SendInline: segment 0 is from InlineBytes"},
		"set too long":     {b.WR(0).SetSegments(InlineBytes(make([]byte, 5000))), "bytes from InlineBytes, more than 4096"},
		"set a wrong one":  {b.WR(0).SetSegments(some, mr.Sub(64, 1)), "segment 1: segment of 1 bytes at 64"},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
	}
	require.Equal(t, 1, b.Len())
	require.Len(t, inlineData(b, 0), 8)
	require.NoError(t, b.Send(2, 0, mr.All()))
	require.ErrorContains(t, b.WR(1).SetSegments(some), only)
}

// Neither a batch nor the memory of what is sent is allocated, even if it is on
// the stack.
func TestInlineBytesAllocateNothing(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	b, err := NewSendBatch(4, 2)
	require.NoError(t, err)
	fill := func() {
		var header [32]byte
		header[0] = byte(b.Len())
		b.Reset()
		_ = b.Send(1, SendInline, InlineBytes(header[:]), mr.Sub(0, 8))
		_ = b.Write(2, RemoteBuffer{Len: 64}, SendInline, InlineBytes(header[:8]))
		_ = b.WR(0).SetSegments(InlineBytes(header[:]), InlineBytes(header[8:]))
	}
	fill()
	require.Equal(t, 2, b.Len())
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func TestFillingAllocatesNothing(t *testing.T) {
	mr := fakeMR(t, 4096, 1)
	remote := mr.Remote()
	send, err := NewSendBatch(32, 4)
	require.NoError(t, err)
	recv, err := NewRecvBatch(32, 4)
	require.NoError(t, err)
	fill := func() {
		send.Reset()
		recv.Reset()
		for i := range uint64(6) {
			_ = send.Send(i, SendSignaled, mr.Sub(0, 64))
			_ = send.SendImm(i, 7, SendInline, mr.Sub(0, 64), mr.Sub(64, 64))
			_ = send.Write(i, remote, 0, mr.Sub(0, 64))
			_ = send.WriteImm(i, remote, 7, 0, mr.Sub(0, 64))
			_ = send.Read(i, remote, 0, mr.Sub(0, 64))
			_ = recv.Recv(i, mr.Sub(0, 64), mr.Sub(64, 64), mr.Sub(128, 64))
		}
	}
	fill()
	require.Equal(t, 30, send.Len())
	require.Equal(t, 6, recv.Len())
	require.Zero(t, testing.AllocsPerRun(100, fill))
}

func TestChangingAllocatesNothing(t *testing.T) {
	mr := fakeMR(t, 4096, 1)
	remote := mr.Remote()
	remote.Addr &^= 7
	ah := &AH{raw: &libibverbs.Ah{}}
	send, err := NewSendBatch(8, 2)
	require.NoError(t, err)
	recv, err := NewRecvBatch(1, 2)
	require.NoError(t, err)
	require.NoError(t, errors.Join(send.SendImm(0, 1, 0), send.SendInv(1, 1, 0), send.Write(2, remote, 0),
		send.CompareSwap(3, remote, 1, 2, 0, mr.Sub(0, 8)), send.Send(4, 0), recv.Recv(0)))
	change := func() error {
		return errors.Join(
			send.WR(0).SetID(7), send.WR(0).SetImm(8),
			send.WR(0).SetFlags(SendInline), send.WR(0).SetSegments(mr.Sub(1, 2), mr.Sub(3, 4)), send.WR(0).SetFlags(0),
			send.WR(1).SetInvalidate(9), send.WR(1).SetXRCSRQ(9),
			send.WR(2).SetRemote(remote), send.WR(2).SetSegments(mr.Sub(1, 2)),
			send.WR(3).SetOperands(3, 4), send.WR(3).SetRemote(remote), send.WR(3).SetSegments(mr.Sub(8, 8)),
			send.WR(4).SetDestination(Destination{AH: ah}),
			recv.WR(0).SetID(7), recv.WR(0).SetSegments(mr.Sub(1, 2), mr.Sub(3, 4)),
		)
	}
	require.NoError(t, change())
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = change() }))
}
