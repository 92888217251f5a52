// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
)

// A region's addresses in work requests may be others than the memory's; what
// is sent inline is read where the memory is.
func TestSegmentAddresses(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	mr.start = 0x5000
	batch, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, mr.Sub(10, 20)))
	require.NoError(t, batch.Send(2, SendInline, mr.Sub(10, 20), mr.Sub(99, 1)))
	wrs := batch.arena.used()
	require.Equal(t, []libibverbs.Sge{{Addr: 0x500a, Length: 20, Lkey: 7}}, sgesOf(wrs[0].SgList, wrs[0].NumSge))
	require.Equal(t, []libibverbs.Sge{
		{Addr: addressOf(mr.bytes[10:]), Length: 20, Lkey: 7},
		{Addr: addressOf(mr.bytes[99:]), Length: 1, Lkey: 7},
	}, sgesOf(wrs[1].SgList, wrs[1].NumSge))
	remote, err := mr.Sub(10, 20).Remote()
	require.NoError(t, err)
	require.Equal(t, RemoteBuffer{Addr: 0x500a, RKey: 8, Len: 20}, remote)
	require.Equal(t, RemoteBuffer{Addr: 0x5000, RKey: 8, Len: 100}, mr.Remote())
}

func TestSegmentWithoutBytes(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	mr.bytes, mr.size = nil, math.MaxInt
	require.Nil(t, mr.Sub(0, 10).Bytes())
	batch, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, mr.Sub(1<<30, 8)))
	err = batch.Send(2, SendInline, mr.Sub(0, 8))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "segment 0: the memory of fake MR cannot be sent inline")
	require.NoError(t, batch.Send(2, SendInline))
	require.Equal(t, 2, batch.Len())
}

func TestSegmentRanges(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	for _, s := range []Segment{
		{},
		mr.Sub(-1, 1), mr.Sub(0, -1), mr.Sub(0, 101), mr.Sub(100, 1), mr.Sub(101, 0), mr.Sub(math.MaxInt, 1),
		mr.Sub(1, math.MaxInt), mr.Sub(math.MinInt, 0), mr.Sub(0, math.MinInt),
	} {
		require.ErrorIs(t, s.check(), syscall.EINVAL, s)
		_, err := s.Remote()
		require.ErrorIs(t, err, syscall.EINVAL, s)
		require.Nil(t, s.Bytes())
	}
	for _, s := range []Segment{mr.All(), mr.Sub(100, 0), mr.Sub(0, 0), mr.Sub(99, 1)} {
		require.NoError(t, s.check())
		require.Len(t, s.Bytes(), s.Len())
	}

	mr.size = math.MaxInt // too much for a work request, but not for a window or a peer
	require.ErrorIs(t, mr.All().check(), syscall.EINVAL)
	require.NoError(t, mr.Sub(0, math.MaxInt32).check())
	_, err := mr.All().Remote()
	require.NoError(t, err)
}

func TestSegmentSub(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	s := mr.Sub(10, 50)
	require.Equal(t, mr.Sub(15, 20), s.Sub(5, 20))
	require.Equal(t, mr.Sub(60, 0), s.Sub(50, 0))
	require.Equal(t, mr.Sub(15, 20), s.Sub(1, 40).Sub(4, 20))
	for _, outside := range []Segment{
		s.Sub(-1, 1), s.Sub(0, -1), s.Sub(0, 51), s.Sub(50, 1), s.Sub(math.MaxInt, 1), s.Sub(1, math.MaxInt),
		s.Sub(math.MinInt, math.MinInt), s.Sub(40, 20).Sub(0, 1), Segment{}.Sub(0, 1), InlineBytes([]byte{1}).Sub(1, 1),
	} {
		require.ErrorIs(t, outside.check(), syscall.EINVAL, outside)
		require.ErrorContains(t, outside.check(), "is outside the segment that it is a piece of")
		require.Nil(t, outside.Bytes())
		_, err := outside.Remote()
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Equal(t, []byte("cd"), InlineBytes([]byte("abcdef")).Sub(1, 4).Sub(1, 2).Bytes())
	require.ErrorIs(t, Segment{}.Sub(0, 0).check(), syscall.EINVAL)
}

// What something else has registered is named by address and key alone.
func TestRawSegment(t *testing.T) {
	s := RawSegment(0xfff000, 1000, 0x66)
	require.Equal(t, 1000, s.Len())
	require.Nil(t, s.Bytes())
	batch, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, s, s.Sub(10, 20)))
	wr := &batch.arena.wrs[0]
	require.Equal(t, []libibverbs.Sge{{Addr: 0xfff000, Length: 1000, Lkey: 0x66}, {Addr: 0xfff00a, Length: 20, Lkey: 0x66}},
		sgesOf(wr.SgList, wr.NumSge))
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, recv.Recv(1, s.Sub(0, 8)))

	_, err = s.Remote()
	require.ErrorContains(t, err, "Segment.Remote (raw memory with key 0x66): the remote key of memory from RawSegment is not known")
	require.ErrorContains(t, batch.Send(1, SendInline, s), "cannot be sent inline: only the device can access it")
	require.ErrorContains(t, RawSegment(0, -1, 1).check(), "segment of -1 bytes at 0 is outside raw memory")
	require.ErrorContains(t, RawSegment(0, 8, 1).Sub(4, 8).check(), "outside the segment")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		batch.Reset()
		_ = batch.Send(1, 0, s.Sub(1, 2))
	}))

	pd := &PD{device: &Device{}}
	pd.object.InitUnlisted("fake PD")
	require.ErrorContains(t, pd.Advise(AdvicePrefetch, false, s), "raw memory with key 0x66 is known by its key only")
	mw := &MW{pd: pd, typ: MWType2}
	mw.object.InitUnlisted("fake MW")
	_, err = mw.bindWR(Binding{Memory: s, Access: AccessRemoteRead})
	require.ErrorContains(t, err, "(fake MW): raw memory with key 0x66 is known by its key only, so a window cannot be bound to it")
	require.ErrorIs(t, err, syscall.EINVAL)
}

// What the device may not write to is refused where it would be written to, and
// nowhere else.
func TestSegmentsToWrite(t *testing.T) {
	pd := &PD{device: &Device{}}
	pd.object.InitUnlisted("fake PD")
	region := func(access AccessFlags) *MR {
		b := make([]byte, 64)
		return newMR(&libibverbs.Mr{Lkey: 7}, region{pd: pd, access: access, bytes: b, start: addressOf(b), size: len(b)})
	}
	readOnly, open := region(AccessRemoteRead), region(AccessLocalWrite)
	t.Cleanup(func() {
		closeFake(t, readOnly)
		closeFake(t, open)
	})
	at := RemoteBuffer{Addr: 0x1000, Len: 64}
	send, err := NewSendBatch(16, 2)
	require.NoError(t, err)
	recv, err := NewRecvBatch(16, 2)
	require.NoError(t, err)
	for name, add := range map[string]func(first, second Segment) error{
		"Read":        func(first, second Segment) error { return send.Read(1, at, 0, first, second) },
		"CompareSwap": func(_, second Segment) error { return send.CompareSwap(1, at, 1, 2, 0, second) },
		"FetchAdd":    func(_, second Segment) error { return send.FetchAdd(1, at, 1, 0, second) },
		"Recv":        func(first, second Segment) error { return recv.Recv(1, first, second) },
		"other packages": func(_, second Segment) error {
			_, err := sealed.Open(second.Internals()).SGE(true)
			return err
		},
		"read, changed": func(first, second Segment) error {
			require.NoError(t, send.Read(1, at, 0))
			return send.WR(send.Len()-1).SetSegments(first, second)
		},
		"atomic, changed": func(_, second Segment) error {
			require.NoError(t, send.FetchAdd(1, at, 1, 0, open.Sub(0, 8)))
			return send.WR(send.Len() - 1).SetSegments(second)
		},
		"receive, changed": func(first, second Segment) error {
			require.NoError(t, recv.Recv(1))
			return recv.WR(recv.Len()-1).SetSegments(first, second)
		},
	} {
		err := add(open.Sub(0, 8), readOnly.Sub(0, 8))
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "MR 0x7 of  is without AccessLocalWrite, so the device cannot write to it", name)
		require.NoError(t, add(open.Sub(0, 8), open.Sub(0, 8)), name)
		require.NoError(t, add(open.Sub(0, 8), RawSegment(1, 8, 7)), "%s: of which only the device knows", name)
	}
	require.NoError(t, send.Send(1, 0, readOnly.All()))
	require.NoError(t, send.Write(1, at, 0, readOnly.All()))
	require.NoError(t, send.Read(1, at, 0, readOnly.Sub(0, 0)), "no bytes")
	require.NoError(t, recv.Recv(1, readOnly.Sub(0, 0)), "no bytes")
}

// On iWARP, an RDMA read needs memory that the peer may write.
func TestSinksOnIWARP(t *testing.T) {
	for name, tt := range map[string]struct {
		transport libibverbs.TransportType
		access    AccessFlags
		text      string
	}{
		"InfiniBand":          {libibverbs.IBV_TRANSPORT_IB, AccessLocalWrite, ""},
		"iWARP":               {libibverbs.IBV_TRANSPORT_IWARP, AccessLocalWrite, "is without AccessRemoteWrite, which the memory of an RDMA read needs on iWARP"},
		"iWARP, remote write": {libibverbs.IBV_TRANSPORT_IWARP, AccessLocalWrite | AccessRemoteWrite, ""},
		"iWARP, read-only":    {libibverbs.IBV_TRANSPORT_IWARP, 0, "is without AccessLocalWrite"},
	} {
		t.Run(name, func(t *testing.T) {
			pd := &PD{device: &Device{raw: &libibverbs.Context{Device: &libibverbs.Device{TransportType: tt.transport}}}}
			pd.object.InitUnlisted("fake PD")
			b := make([]byte, 64)
			mr := newMR(&libibverbs.Mr{Lkey: 7}, region{pd: pd, access: tt.access, bytes: b, start: addressOf(b), size: len(b)})
			t.Cleanup(func() { closeFake(t, mr) })
			send, err := NewSendBatch(4, 2)
			require.NoError(t, err)
			at := RemoteBuffer{Addr: 0x1000, Len: 64}
			require.NoError(t, send.Read(1, at, 0), "no memory")
			for _, err := range []error{send.Read(1, at, 0, mr.All()), send.WR(0).SetSegments(mr.All())} {
				if tt.text == "" {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, syscall.EINVAL)
				require.ErrorContains(t, err, tt.text)
			}
			require.NoError(t, send.Send(2, 0, mr.All()), "any other request")
		})
	}
}
