package rdmacm_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// modes are the ways in which the two ends can make their queue pairs.
var modes = []struct {
	name                       string
	manualClient, manualServer bool
}{
	{"librdmacm's QPs", false, false},
	{"manual client", true, false},
	{"manual server", false, true},
	{"manual both", true, true},
}

func TestTransfers(t *testing.T) {
	d := needDevice(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{Segments: 2, ManualQP: mode.manualClient},
				&rdmacm.Config{Segments: 2, ManualQP: mode.manualServer})
			here, there := alloc(t, client, 4096), alloc(t, server, 4096)
			t.Run("send", func(t *testing.T) { testSend(t, client, server, here, there) })
			t.Run("send back", func(t *testing.T) { testSend(t, server, client, there, here) })
			t.Run("write", func(t *testing.T) { testWrite(t, client, server, here, there) })
			t.Run("write back", func(t *testing.T) { testWrite(t, server, client, there, here) })
			t.Run("read", func(t *testing.T) { testRead(t, client, here, there) })
			t.Run("read back", func(t *testing.T) { testRead(t, server, there, here) })
			require.NoError(t, client.Err())
			require.NoError(t, server.Err())
		})
	}
}

func testSend(t *testing.T, from, to *rdmacm.Conn, source, sink *ibverbs.MR) {
	ctx := bounded(t)
	copy(source.Bytes(), "hello, world")
	received, err := to.PostRecv(sink.Sub(100, 5), sink.Sub(200, 100))
	require.NoError(t, err)
	_, known := received.Imm()
	require.False(t, known, "not before Wait")
	require.NoError(t, from.Send(ctx, source.Sub(0, 7), source.Sub(7, 5)))
	n, err := received.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 12, n)
	require.Equal(t, "hello", string(sink.Bytes()[100:105]))
	require.Equal(t, ", world", string(sink.Bytes()[200:207]))
	_, has := received.Imm()
	require.False(t, has)
	n, err = received.Wait(ctx) // once more
	require.NoError(t, err)
	require.Equal(t, 12, n)

	received, err = to.PostRecv(sink.Sub(0, 8))
	require.NoError(t, err)
	require.NoError(t, from.SendImm(ctx, 0x01020304)) // no bytes
	n, err = received.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	imm, has := received.Imm()
	require.True(t, has)
	require.Equal(t, uint32(0x01020304), imm)
}

func testWrite(t *testing.T, from, to *rdmacm.Conn, source, sink *ibverbs.MR) {
	ctx := bounded(t)
	clear(sink.Bytes())
	copy(source.Bytes(), "written")
	require.NoError(t, from.Write(ctx, sink.Remote().Sub(1000, 7), source.Sub(0, 7)))
	require.Equal(t, "written", string(sink.Bytes()[1000:1007]))

	received, err := to.PostRecv()
	require.NoError(t, err)
	require.NoError(t, from.WriteImm(ctx, sink.Remote().Sub(2000, 7), 77, source.Sub(0, 7)))
	n, err := received.Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, n, "in the receive's segments")
	written, isWrite := received.Written()
	require.True(t, isWrite)
	require.Equal(t, 7, written)
	imm, has := received.Imm()
	require.True(t, has)
	require.Equal(t, uint32(77), imm)
	require.Equal(t, "written", string(sink.Bytes()[2000:2007]))

	err = from.Write(ctx, sink.Remote().Sub(0, 6), source.Sub(0, 7))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "7 bytes for a remote buffer of 6")
}

func testRead(t *testing.T, reader *rdmacm.Conn, sink, source *ibverbs.MR) {
	copy(source.Bytes(), "readable")
	require.NoError(t, reader.Read(bounded(t), sink.Sub(3000, 4), source.Remote().Sub(4, 4)))
	require.Equal(t, "able", string(sink.Bytes()[3000:3004]))
}

// Goroutines share a connection: each has an answer to its own question.
func TestManyGoroutinesOnOneConn(t *testing.T) {
	const goroutines, rounds, size = 32, 20, 8
	d := needDevice(t)
	client, server := connect(t, d.IPv4,
		&rdmacm.Config{SendQueue: 4}, // fewer than goroutines: they wait for room
		&rdmacm.Config{SendQueue: 4, RecvQueue: goroutines * rounds})
	source, sink := alloc(t, client, goroutines*size), alloc(t, server, goroutines*rounds*size)
	remote := alloc(t, server, goroutines*size)
	ctx := bounded(t)

	var receives []*rdmacm.Receive
	for i := range goroutines * rounds {
		r, err := server.PostRecv(sink.Sub(i*size, size))
		require.NoError(t, err)
		receives = append(receives, r)
	}
	_, err := server.PostRecv(sink.Sub(0, size))
	require.ErrorIs(t, err, syscall.ENOBUFS)
	require.ErrorContains(t, err, "Config.RecvQueue")

	results := make(chan error)
	for i := range goroutines {
		each(results, func() error {
			mine := source.Sub(i*size, size)
			for round := range rounds {
				value := uint64(i)<<32 | uint64(round)
				binary.BigEndian.PutUint64(mine.Bytes(), value)
				if err := client.Send(ctx, mine); err != nil {
					return err
				}
				there := remote.Remote().Sub(uint64(i*size), size)
				if err := client.Write(ctx, there, mine); err != nil {
					return err
				}
				clear(mine.Bytes())
				if err := client.Read(ctx, mine, there); err != nil {
					return err
				}
				if got := binary.BigEndian.Uint64(mine.Bytes()); got != value {
					return fmt.Errorf("read %x, wrote %x", got, value)
				}
			}
			return nil
		})
	}
	seen := make([]bool, goroutines*rounds)
	for _, r := range receives {
		each(results, func() error {
			_, err := r.Wait(ctx)
			return err
		})
	}
	for range goroutines + len(receives) {
		require.NoError(t, <-results)
	}
	for i := range receives {
		value := binary.BigEndian.Uint64(sink.Bytes()[i*size:])
		key := int(value>>32)*rounds + int(uint32(value))
		require.False(t, seen[key], "message %x twice", value)
		seen[key] = true
	}
}

// each runs f in a goroutine of its own and sends what it returns.
func each(results chan<- error, f func() error) {
	go func() { results <- f() }()
}

// A receive takes a place in the completion queue until somebody has taken its
// completion, also if nobody waits for it.
func TestReceivesNobodyWaitsFor(t *testing.T) {
	const queue, rounds = 4, 10
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, &rdmacm.Config{SendQueue: 1, RecvQueue: queue})
	source, sink := alloc(t, client, 8), alloc(t, server, 8)
	ctx := bounded(t)
	for range rounds {
		for range queue {
			_, err := server.PostRecv(sink.All())
			require.NoError(t, err)
		}
		for range queue {
			require.NoError(t, client.Send(ctx, source.All()))
		}
	}
	require.NoError(t, server.Err())
	_, err := client.PostRecv()
	require.NoError(t, err)
	require.NoError(t, server.Send(ctx), "the queue is as it was")
}

func TestFailedTransferEndsTheConnection(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	pending, err := client.PostRecv(here.Sub(32, 32))
	require.NoError(t, err)

	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	err = client.Write(ctx, wrong, here.Sub(0, 8))
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess)
	var wcErr *ibverbs.WCError
	require.ErrorAs(t, err, &wcErr)

	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess, "why it was flushed")
	require.ErrorIs(t, client.Send(ctx, here.Sub(0, 8)), ibverbs.WCRemoteAccess, "later ones too")
	<-client.Done()
	require.ErrorIs(t, client.Err(), ibverbs.WCRemoteAccess)
}

func TestRequestThatCannotBePostedLeavesRoom(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 2, RecvQueue: 2}, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	for range 5 { // more than there is room
		require.ErrorContains(t, client.Send(ctx, here.Sub(60, 5)), "outside")
		require.ErrorIs(t, client.Send(ctx, here.Sub(0, 1), here.Sub(1, 1)), syscall.EINVAL, "two segments")
		_, err := client.PostRecv(here.Sub(60, 5))
		require.ErrorContains(t, err, "outside")
		require.Error(t, client.Send(ctx, ibverbs.Segment{}))
	}
	for range 5 {
		require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
	}
	require.True(t, bytes.Equal(here.Bytes(), there.Bytes()))
}

// So does one that nobody waits for any more.
func TestAbandonedTransferEndsTheConnection(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	pending, err := client.PostRecv(here.Sub(0, 8))
	require.NoError(t, err)
	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	// The peer has no receive, so that the write waits behind the message.
	var abandoned *rdmacm.PendingError
	require.ErrorAs(t, client.Send(short(t)), &abandoned)
	require.ErrorAs(t, client.Write(short(t), wrong, here.Sub(8, 8)), &abandoned)
	_, err = server.PostRecv()
	require.NoError(t, err)
	<-client.Done()
	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess, "why it was flushed")
	require.ErrorIs(t, client.Err(), ibverbs.WCRemoteAccess)
}
