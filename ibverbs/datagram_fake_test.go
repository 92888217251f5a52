//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

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
	require.NoError(t, b.WR(0).SetXRCSRQ(77))
	f.Set(fakeverbs.Script{})
	_, err := f.ex.PostSend(b)
	require.NoError(t, err)
	require.EqualValues(t, 77, f.Calls()[2].Args[0])
}
