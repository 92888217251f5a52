package ibverbs

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

// What the device may not write to is refused where it would be written to, and
// nowhere else.
func TestSegmentsToWrite(t *testing.T) {
	pd := &PD{device: &Device{}}
	pd.object.InitUnlisted("fake PD")
	region := func(access AccessFlags) *MR {
		b := make([]byte, 64)
		return newMR(&libibverbs.Mr{Lkey: 7}, region{pd: pd, access: access, bytes: b, start: addressOf(b), size: len(b)})
	}
	sealed, open := region(AccessRemoteRead), region(AccessLocalWrite)
	t.Cleanup(func() {
		closeFake(t, sealed)
		closeFake(t, open)
	})
	at := RemoteBuffer{Addr: 0x1000, Len: 64}
	send, err := NewSendBatch(16, 2)
	require.NoError(t, err)
	recv, err := NewRecvBatch(16, 2)
	require.NoError(t, err)
	tags, err := NewTagBatch(16, 2)
	require.NoError(t, err)
	for name, add := range map[string]func(first, second Segment) error{
		"Read":        func(first, second Segment) error { return send.Read(1, at, 0, first, second) },
		"CompareSwap": func(_, second Segment) error { return send.CompareSwap(1, at, 1, 2, 0, second) },
		"FetchAdd":    func(_, second Segment) error { return send.FetchAdd(1, at, 1, 0, second) },
		"Recv":        func(first, second Segment) error { return recv.Recv(1, first, second) },
		"AddTag":      func(first, second Segment) error { return tags.Add(TagOp{}, TagRecv{}, first, second) },
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
		err := add(open.Sub(0, 8), sealed.Sub(0, 8))
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "MR 0x7 of  is without AccessLocalWrite, so the device cannot write to it", name)
		require.NoError(t, add(open.Sub(0, 8), open.Sub(0, 8)), name)
		require.NoError(t, add(open.Sub(0, 8), RawSegment(1, 8, 7)), "%s: of which only the device knows", name)
	}
	require.NoError(t, send.Send(1, 0, sealed.All()))
	require.NoError(t, send.Write(1, at, 0, sealed.All()))
	require.NoError(t, send.Read(1, at, 0, sealed.Sub(0, 0)), "no bytes")
	require.NoError(t, recv.Recv(1, sealed.Sub(0, 0)), "no bytes")
}
