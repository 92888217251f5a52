package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
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
