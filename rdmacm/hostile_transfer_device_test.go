package rdmacm_test

import (
	"context"
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// A peer writes any number of bytes with immediate data: what a receive says that
// it has is in its segments.
func TestHostileWriteImm(t *testing.T) {
	d := needDevice(t)
	for _, size := range []int{0, 1, 15, 16, 17, 1000, 1 << 16} {
		client, server := connect(t, d.IPv4, nil, nil)
		here, there := alloc(t, client, 1<<16), alloc(t, server, 1<<16)
		small := alloc(t, server, 16)
		ctx := bounded(t)

		received, err := server.PostRecv(small.All())
		require.NoError(t, err)
		require.NoError(t, client.WriteImm(ctx, there.Remote(), 9, here.Sub(0, size)))
		n, err := received.Wait(ctx)
		require.NoError(t, err)
		require.Zero(t, n, "%d bytes", size)
		written, isWrite := received.Written()
		require.True(t, isWrite)
		require.Equal(t, size, written)

		sent := make(chan error, 1)
		each(sent, func() error { return client.WriteImm(ctx, there.Remote(), 9, here.Sub(0, size)) })
		n, err = server.Recv(ctx, small.All())
		require.NoError(t, err)
		require.Empty(t, small.Bytes()[:n])
		require.NoError(t, <-sent)
	}
}

// What a peer may not do ends the connection, at an end that does nothing but wait
// for that too.
func TestHostileRequests(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		attack func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error
		want   error
	}{
		"write with a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.Write(ctx, there, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"write behind the memory": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			return client.Write(ctx, there.Sub(there.Len-4, 8), here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"write with immediate and a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.WriteImm(ctx, there, math.MaxUint32, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"read with a wrong key": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			there.RKey ^= 0xff00
			return client.Read(ctx, here.Sub(0, 8), there)
		}, ibverbs.WCRemoteAccess},
		"atomic without the right": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, there ibverbs.RemoteBuffer) error {
			return client.FetchAdd(ctx, there, 1, here.Sub(0, 8))
		}, ibverbs.WCRemoteAccess},
		"message longer than the receive": {func(ctx context.Context, client *rdmacm.Conn, here *ibverbs.MR, _ ibverbs.RemoteBuffer) error {
			err := client.Send(ctx, here.Sub(0, 17))
			if errors.Is(err, ibverbs.WCRemoteOperation) { // Soft-RoCE
				return ibverbs.WCRemoteInvalidRequest
			}
			return err
		}, ibverbs.WCRemoteInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			bystander, other := connect(t, d.IPv4, nil, nil)
			client, server := connect(t, d.IPv4, nil, nil)
			here, there := alloc(t, client, 64), alloc(t, server, 64)
			// The server has receives, as a rule, and here nobody who waits for them.
			small := alloc(t, server, 16)
			received, err := server.PostRecv(small.All())
			require.NoError(t, err)

			require.ErrorIs(t, tt.attack(ctx, client, here, there.Remote()), tt.want)
			select {
			case <-server.Done():
			case <-ctx.Done():
				t.Fatal("the server does not notice")
			}
			t.Log(server.Err())
			require.Error(t, server.Wait(ctx))
			require.Equal(t, server.Err(), server.Wait(ctx))
			_, err = received.Wait(ctx)
			require.Error(t, err)
			_, err = server.PostRecv(small.All())
			require.Equal(t, server.Err(), err)
			require.Equal(t, server.Err(), server.Send(ctx))

			// Others go on.
			_, err = other.PostRecv()
			require.NoError(t, err)
			require.NoError(t, bystander.Send(ctx))
		})
	}
}

// More messages than receives come: they wait, and none is lost.
func TestHostileFlood(t *testing.T) {
	d := needDevice(t)
	const messages = 100
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 32}, &rdmacm.Config{RecvQueue: 2})
	ctx := bounded(t)
	sent := make(chan error, messages)
	for range messages {
		each(sent, func() error { return client.Send(ctx) })
	}
	for range messages {
		_, err := server.Recv(ctx)
		require.NoError(t, err)
	}
	for range messages {
		require.NoError(t, <-sent)
	}
	require.NoError(t, server.Err())
}

// An end that nobody waits on notices that the peer has gone, with requests of
// its own under way.
func TestHostileSilence(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	require.ErrorIs(t, client.Send(short(t)), context.DeadlineExceeded, "the peer has no receive")
	require.NoError(t, server.Close())
	<-client.Done()
	require.ErrorIs(t, client.Err(), syscall.ECONNRESET)
}

// With one receive, the peer need not wait until the program asks for the next
// message.
func TestReceiverOfOne(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, _, r := receiving(t, d.IPv4, 1, 8)
	out := alloc(t, client, 8)
	for i := range 3 {
		out.Bytes()[0] = byte(i)
		require.NoError(t, client.Send(ctx, out.Sub(0, 1)), "before the message is asked for")
		m, err := r.Next(ctx)
		require.NoError(t, err)
		out.Bytes()[0] = byte(100 + i)
		require.NoError(t, client.Send(ctx, out.Sub(0, 1)), "while the program has a message")
		require.Equal(t, []byte{byte(i)}, m.Data, "which does not change")
		m, err = r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(100 + i)}, m.Data)
	}
}

// Small messages go inline, and so may bytes that are not registered.
func TestInlineUpToTheLimit(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server, r := receiving(t, d.IPv4, 4, 64)
	_ = server
	require.ErrorIs(t, client.Send(ctx, ibverbs.InlineBytes([]byte("no"))), syscall.EINVAL)
	ln := listenOn(t, d.IPv4)
	accepted := acceptOne(ctx, ln, &rdmacm.Config{Setup: func(c *rdmacm.Conn) (err error) {
		r, err = c.NewReceiver(64)
		return err
	}})
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{MaxInline: 32})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	a := <-accepted
	require.NoError(t, a.err)
	defer func() { require.NoError(t, a.conn.Close()) }()
	for range 20 {
		require.NoError(t, client.Send(ctx, ibverbs.InlineBytes([]byte("hello"))))
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, "hello", string(m.Data))
	}
	require.ErrorIs(t, client.Send(ctx, ibverbs.InlineBytes(make([]byte, 33))), syscall.EINVAL)
	mr := alloc(t, client, 64)
	require.NoError(t, client.Send(ctx, mr.All()), "too long, and registered")
	_, err = r.Next(ctx)
	require.NoError(t, err)
}
