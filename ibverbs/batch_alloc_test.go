package ibverbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

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
