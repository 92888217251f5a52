package ibverbs

import (
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

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
	require.ErrorContains(t, err, "2 segments in a batch made for 1")
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
		require.ErrorContains(t, err, "10 bytes for a remote buffer of 9", name)
	}
	require.Zero(t, send.Len())
	require.NoError(t, send.Write(1, remote, 0, mr.Sub(0, 4), mr.Sub(0, 5)))
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
	require.EqualError(t, err, "request that cannot be posted any more: fake MR: file already closed")
	closeFake(t, a) // is not in use any more
	send.Reset()
	require.NoError(t, send.hold())
	_, err = (&QP{raw: &libibverbs.Qp{}}).PostSend(send)
	require.ErrorIs(t, err, os.ErrInvalid)
}
