package ibverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

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
	require.Equal(t, uint32(SendSignaled|SendInline), wr(0).SendFlags)
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
		"imm of a send":       {b.WR(0).SetImm(1), "(IBV_WR_SEND, request 0 of the batch): it has no immediate data"},
		"remote of a send":    {b.WR(0).SetRemote(remote), "has no remote buffer"},
		"operands":            {b.WR(1).SetOperands(1, 2), "has no operands"},
		"invalidate":          {b.WR(1).SetInvalidate(2), "has no key to invalidate"},
		"destination":         {b.WR(1).SetDestination(Destination{}), "has no destination"},
		"no handle":           {b.WR(0).SetDestination(Destination{}), "datagram without an address handle"},
		"too many":            {b.WR(0).SetSegments(mr.All(), mr.All(), mr.All()), "3 segments in a batch made for 2"},
		"second outside":      {b.WR(0).SetSegments(mr.Sub(1, 1), mr.Sub(4096, 1)), "segment 1: segment of 1 bytes at 4096 is outside"},
		"more than remote":    {b.WR(1).SetSegments(mr.Sub(0, 101)), "101 bytes for a remote buffer of 100"},
		"remote too small":    {b.WR(1).SetRemote(remote.Sub(0, 9)), "10 bytes for a remote buffer of 9"},
		"result":              {b.WR(2).SetSegments(mr.Sub(0, 9)), "an atomic operation has one segment of 8 bytes"},
		"no result":           {b.WR(2).SetSegments(), "an atomic operation has one segment of 8 bytes"},
		"unaligned":           {b.WR(2).SetRemote(remote.Sub(4, 8)), "atomic operation at 0x1004, which is not a multiple of 8"},
		"unaligned write":     {b.WR(5).SetRemote(remote.Sub(4, 8)), "which is not a multiple of 8"},
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
		"atomic operation at 0x1001, which is not a multiple of 8": b.FetchAdd(1, RemoteBuffer{Addr: 0x1001, Len: 8}, 1, 0, mr.Sub(0, 8)),
		"atomic operation on 8 bytes in a remote buffer of 7":      b.CompareSwap(1, remote.Sub(0, 7), 1, 2, 0, mr.Sub(0, 8)),
		"atomic operation with a result of 7 bytes, not 8":         b.CompareSwap(1, remote, 1, 2, 0, mr.Sub(0, 7)),
		"atomic operation at 0x1004, which is not a multiple of 8": b.AtomicWrite(1, remote.Sub(4, 8), [8]byte{}, 0),
		"placement is 0":                                                                b.Flush(1, remote, 0, 0),
		"placement is 0x4":                                                              b.FlushRegion(1, remote, 4, 0),
		"header: segment of 1 bytes":                                                    b.TSO(1, mr.Sub(1<<17, 1), 1, 0),
		"packets of 0 bytes behind a header of 1":                                       b.TSO(1, mr.Sub(0, 1), 0, 0),
		"packets of 9 bytes behind a header of 0":                                       b.TSO(1, mr.Sub(0, 0), 9, 0),
		"packets of 9 bytes behind a header of 65536":                                   b.TSO(1, mr.Sub(0, 1<<16), 9, 0),
		"header: memory of fake MR cannot be sent inline":                               b.TSO(1, far.Sub(0, 8), 9, 0),
		"(IBV_WR_RDMA_READ, request 0 of the batch): SendInline is only for":            b.Read(1, remote, SendInline, mr.Sub(0, 8)),
		"(IBV_WR_ATOMIC_FETCH_AND_ADD, request 0 of the batch): SendInline is only for": b.FetchAdd(1, remote, 1, SendInline, mr.Sub(0, 8)),
		"(IBV_WR_ATOMIC_CMP_AND_SWP, request 0 of the batch): SendInline is only for":   b.CompareSwap(1, remote, 1, 2, SendInline|SendSignaled, mr.Sub(0, 8)),
		"datagram without an address handle":                                            b.SendImmTo(1, Destination{}, 1, 0),
		"MW.BindWR: the object is nil, or was not made by the package's functions": b.BindMW(1, nil, Binding{Memory: mr.All()}, 0),
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
	require.ErrorContains(t, b.WR(0).SetSegments(mr.All(), mr.All()), "2 segments in a batch made for 1")
	require.ErrorContains(t, RecvWR{}.SetSegments(), "(receive 0): the batch has 0 receives")
	require.NoError(t, b.WR(0).SetSegments())
	require.Zero(t, wr.NumSge)
}
