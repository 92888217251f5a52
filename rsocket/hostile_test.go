// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// rawPeer is an end that does what a test says, and knows nothing of the
// protocol.
type rawPeer struct {
	t     testing.TB
	conn  *rdmacm.Conn
	mr    *ibverbs.MR // its table, behind it its buffer, and behind that the words that it receives on iWARP
	bytes []byte
	peer  protocol.Hello
	deaf  bool          // posts no receives
	other *rsocket.Conn // the other end
}

const (
	rawTable  = protocol.Entries * protocol.EntryLen
	rawBuffer = 1 << 17
	rawWords  = 64 * 4
)

// setup prepares the connection of a raw peer, whose private data change may
// change.
func (p *rawPeer) setup(change func(*protocol.Hello)) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) (err error) {
		p.mr, err = c.Alloc(rawTable+rawBuffer+rawWords, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
		if err != nil {
			return err
		}
		p.bytes = p.mr.Bytes()
		for i := range 64 {
			if p.deaf {
				break
			}
			if _, err := c.PostRecv(p.mr.Sub(rawTable+rawBuffer+4*i, 4)); err != nil {
				return err
			}
		}
		remote := p.mr.Remote()
		hello := protocol.Hello{
			Credits: 32, Table: protocol.Region{Addr: remote.Addr, Key: remote.RKey, Length: protocol.Entries},
			Buffer: protocol.Region{Addr: remote.Addr + rawTable, Key: remote.RKey, Length: rawBuffer / 2},
		}
		if change != nil {
			change(&hello)
		}
		return c.SetPrivateData(hello.Marshal())
	}
}

// dialRaw connects a raw peer to a listener, and returns the other end.
func dialRaw(t testing.TB, ln *rsocket.Listener, change func(*protocol.Hello)) (*rawPeer, *rsocket.Conn) {
	t.Helper()
	return (&rawPeer{t: t}).dial(ln, change)
}

func (p *rawPeer) dial(ln *rsocket.Listener, change func(*protocol.Hello)) (*rawPeer, *rsocket.Conn) {
	t := p.t
	t.Helper()
	var err error
	p.conn, err = rdmacm.Dial(bounded(t), ln.Addr().String(), &rdmacm.Config{SendQueue: 64, RecvQueue: 64, Setup: p.setup(change)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.conn.Close()) })
	p.peer, err = protocol.ParseHello(p.conn.PeerData())
	require.NoError(t, err)
	p.other = acceptOne(t, ln)
	return p, p.other
}

// word sends a word, and n bytes to offset at.
func (p *rawPeer) word(w protocol.Word, to protocol.Region, offset, n int) {
	p.t.Helper()
	var segments []ibverbs.Segment
	if n > 0 {
		segments = append(segments, p.mr.Sub(rawTable, n))
	}
	remote := ibverbs.RemoteBuffer{Addr: to.Addr + uint64(offset), RKey: to.Key, Len: uint64(n)}
	// What does not arrive because the connection has ended is part of the test.
	if err := p.write(bounded(p.t), remote, w, segments); err != nil {
		require.Error(p.t, p.conn.Err(), "%v", err)
	}
}

// write writes the segments with a word, on iWARP as a message of its own.
func (p *rawPeer) write(ctx context.Context, to ibverbs.RemoteBuffer, w protocol.Word, segments []ibverbs.Segment) error {
	if testdevice.Require(p.t).Has(p.t, testdevice.InfiniBand) {
		return p.conn.WriteImm(ctx, to, uint32(w), segments...)
	}
	if len(segments) > 0 {
		if err := p.conn.Write(ctx, to, segments...); err != nil {
			return err
		}
	}
	place := p.mr.Sub(rawTable+rawBuffer-4, 4)
	binary.NativeEndian.PutUint32(place.Bytes(), uint32(w))
	return p.conn.Send(ctx, place)
}

// data sends n bytes as it should.
func (p *rawPeer) data(offset, n int) {
	p.t.Helper()
	p.word(protocol.Data(n), p.peer.Buffer, offset, n)
}

// entry writes an entry of the table, and announces it.
func (p *rawPeer) entry(i int, r protocol.Region) {
	p.t.Helper()
	b := p.bytes[rawTable:]
	binary.NativeEndian.PutUint64(b, r.Addr)
	binary.NativeEndian.PutUint32(b[8:], r.Key)
	binary.NativeEndian.PutUint32(b[12:], r.Length)
	p.word(protocol.Update(100), p.peer.Table, i*protocol.EntryLen, protocol.EntryLen)
}

func (p *rawPeer) own(length int) protocol.Region {
	remote := p.mr.Remote()
	return protocol.Region{Addr: remote.Addr + rawTable, Key: remote.RKey, Length: uint32(length)}
}

// Whatever a peer does, only its own connection ends, with an error that says
// what it did.
func TestHostilePeer(t *testing.T) {
	const half = 1 << 16
	// On iWARP, a word does not say what was written before it.
	unseen := map[string]bool{"a length that is a lie": true, "an entry that is used": true, "an empty entry": true, "half an entry": true}
	for name, c := range map[string]struct {
		attack func(p *rawPeer)
		read   int // bytes that arrive before
		want   error
		says   string
	}{
		"more than the window has": {func(p *rawPeer) {
			p.data(0, half)
			require.Equal(p.t, half, p.other.Buffered()) // gives the other half, if that was not given before
			p.data(half, half)
			p.data(0, 1)
			require.Equal(p.t, 2*half, p.other.Buffered()) // which takes both, so that the last is too much
		}, 2 * half, syscall.EPROTO, "bytes of room"},
		"across the window's end": {func(p *rawPeer) { p.data(0, half+1) }, 0, syscall.EPROTO, "the 65536 bytes of room"},
		"a length that is a lie":  {func(p *rawPeer) { p.word(protocol.Data(1000), p.peer.Buffer, 0, 10) }, 0, syscall.EPROTO, "DATA of 1000 bytes, with a write of 10 bytes"},
		"no bytes":                {func(p *rawPeer) { p.word(protocol.Data(0), p.peer.Buffer, 0, 0) }, 0, syscall.EPROTO, "DATA of 0 bytes"},
		"the most there can be":   {func(p *rawPeer) { p.word(protocol.Data(protocol.MaxData), p.peer.Buffer, 0, 0) }, 0, syscall.EPROTO, "DATA of 536870911 bytes"},
		"data after SHUTDOWN": {func(p *rawPeer) {
			p.data(0, 10)
			p.word(protocol.Shutdown, protocol.Region{}, 0, 0)
			p.data(10, 10)
		}, 10, syscall.EPROTO, "after the peer has ended its data"},
		"an unknown word":       {func(p *rawPeer) { p.word(protocol.Disconnect|9, protocol.Region{}, 0, 0) }, 0, syscall.EPROTO, "word 0xe0000009"},
		"a reserved word":       {func(p *rawPeer) { p.word(3<<29, protocol.Region{}, 0, 0) }, 0, syscall.EPROTO, "word 0x60000000"},
		"no word":               {func(p *rawPeer) { _ = p.conn.Send(bounded(p.t)) }, 0, syscall.EPROTO, "message without a word"},
		"an entry that is used": {func(p *rawPeer) { p.entry(1, p.own(99)); p.entry(0, p.own(99)) }, 0, syscall.EPROTO, "entry 0 of the target table was replaced before it was used up (65536 bytes left)"},
		"an empty entry":        {func(p *rawPeer) { p.entry(1, p.own(0)) }, 0, syscall.EPROTO, "entry 1 of the target table is empty"},
		"half an entry":         {func(p *rawPeer) { p.word(protocol.Update(9), p.peer.Table, 16, 8) }, 0, syscall.EPROTO, "a write of 8 bytes"},
		"memory of others": {func(p *rawPeer) {
			p.word(protocol.Data(1), protocol.Region{Addr: p.peer.Buffer.Addr + 1<<30, Key: p.peer.Buffer.Key}, 0, 1)
		}, 0, syscall.ECONNRESET, ""},
		"an unknown key": {func(p *rawPeer) {
			p.word(protocol.Data(1), protocol.Region{Addr: p.peer.Buffer.Addr, Key: ^p.peer.Buffer.Key}, 0, 1)
		}, 0, syscall.ECONNRESET, ""},
		"death": {func(p *rawPeer) { p.data(0, 5); _ = p.conn.Close() }, 5, syscall.ECONNRESET, "has ended without closing"},
	} {
		t.Run(name, func(t *testing.T) {
			if unseen[name] {
				needDevice(t).Have(t, testdevice.InfiniBand)
			}
			ln := listen(t, rsocket.Config{})
			good, other := pairOn(t, ln, rsocket.Config{})
			p, conn := dialRaw(t, ln, nil)
			c.attack(p)
			got, err := io.ReadAll(conn)
			require.Equal(t, c.read, len(got), "%v", err)
			if !errors.Is(err, syscall.EIO) { // as some devices say of a forbidden access
				require.ErrorIs(t, err, c.want)
			}
			require.ErrorContains(t, err, c.says)
			_, again := conn.Write([]byte{1})
			require.Error(t, again)
			if c.want == syscall.EPROTO {
				cmtest.Take(t, p.conn.Done(), "the end at the peer, which must be told")
			}
			require.NoError(t, conn.Close())
			echo(t, good, other)
		})
	}
}

// A peer that takes no messages and has ended the connection cannot hold up
// Close at the other end.
func TestDeafPeer(t *testing.T) {
	for _, half := range []bool{true, false} {
		ln := listen(t, rsocket.Config{})
		p, conn := (&rawPeer{t: t, deaf: true}).dial(ln, nil)
		const size = 1 << 16
		answers := protocol.ControlSlots
		if !testdevice.Require(t).Has(t, testdevice.InfiniBand) {
			answers /= 2 // as each is two requests
		}
		for i := range answers { // each wants an answer
			p.data(i%2*size, size)
			_, err := io.ReadFull(conn, make([]byte, size))
			require.NoError(t, err)
		}
		p.word(protocol.Disconnect, protocol.Region{}, 0, 0)
		_, err := conn.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		if half {
			require.NoError(t, conn.CloseWrite())
			require.NoError(t, p.conn.Err(), "CloseWrite has not waited for the peer's end")
		}
		require.NoError(t, conn.Close())
	}
}

// A Write that waits for the peer's first message, as on iWARP, continues when
// that message is data.
func TestFirstMessageIsData(t *testing.T) {
	ln := listen(t, rsocket.Config{KeepAlive: -1}) // a check would wake Write
	p, conn := dialRaw(t, ln, nil)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte{1})
		written <- err
	}()
	if !testdevice.Require(t).Has(t, testdevice.InfiniBand) { // others need not wait
		require.Eventually(t, func() bool { return waiting("rsocket.(*Conn).Write") == 1 && parksInPump() }, time.Minute, time.Millisecond)
	}
	p.data(0, 1)
	require.NoError(t, woken(t, written, "Write"))
	require.NoError(t, conn.Close())
}

// A peer that sends more messages than it was granted.
func TestTooManyMessages(t *testing.T) {
	ln := listen(t, rsocket.Config{RecvQueue: 16})
	p, conn := dialRaw(t, ln, nil)
	require.EqualValues(t, 16, p.peer.Credits)
	for i := range 17 {
		p.data(i, 1)
	}
	_, err := io.ReadAll(conn)
	require.ErrorIs(t, err, syscall.EPROTO)
	require.ErrorContains(t, err, "beyond the limit of 16 messages")
}

// An entry is read only once it was announced, and then only once.
func TestEntriesChange(t *testing.T) {
	p, conn := dialRaw(t, listen(t, rsocket.Config{}), nil)
	window := p.own(1000)
	window.Addr += 5000
	for i := range protocol.Entries {
		b := p.bytes[rawTable:]
		binary.NativeEndian.PutUint64(b, 0xbad<<32)
		binary.NativeEndian.PutUint32(b[8:], 0xbad)
		binary.NativeEndian.PutUint32(b[12:], 1<<31)
		err := p.conn.Write(bounded(t), ibverbs.RemoteBuffer{Addr: p.peer.Table.Addr + uint64(16*i), RKey: p.peer.Table.Key, Len: 16}, p.mr.Sub(rawTable, 16))
		require.NoError(t, err)
	}
	p.entry(1, window)
	_, err := conn.Write(make([]byte, rawBuffer/2))
	require.NoError(t, err)
	sent := bytesOf(1000, 1)
	_, err = conn.Write(sent)
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	require.NoError(t, conn.Close()) // everything has arrived
	require.Equal(t, sent, p.bytes[rawTable+5000:][:1000])
}

// What a dialer or a listener does with private data that is not the
// protocol's.
func TestBadPrivateData(t *testing.T) {
	good := func() []byte {
		return protocol.Hello{Credits: 1, Table: protocol.Region{Length: 2}, Buffer: protocol.Region{Length: 1}}.Marshal()
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"none":            {nil, syscall.ENOTSUP},
		"short":           {good()[:20], syscall.EPROTO},
		"another version": {append([]byte{2}, good()[1:]...), syscall.ENOTSUP},
		"no credits":      {append([]byte{1, 0, 0, 0}, good()[4:]...), syscall.EPROTO},
	} {
		t.Run(name, func(t *testing.T) {
			d := needDevice(t)
			config := &rdmacm.Config{PrivateData: c.data}
			t.Run("request", func(t *testing.T) {
				ln := listen(t, rsocket.Config{})
				_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), config)
				rejected, ok := errors.AsType[*rdmacm.RejectedError](err)
				require.True(t, ok, "%v", err)
				require.Equal(t, rdmacm.ReasonConsumer, rejected.Reason)
				a, b := pairOn(t, ln, rsocket.Config{})
				echo(t, a, b)
			})
			t.Run("reply", func(t *testing.T) {
				ctx := bounded(t)
				ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), nil)
				require.NoError(t, err)
				defer func() { require.NoError(t, ln.Close()) }()
				accepted := inBackground(func() error {
					req, err := ln.Accept(ctx)
					if err != nil {
						return err
					}
					conn, err := req.Accept(ctx, config)
					if errors.Is(err, syscall.ECONNRESET) {
						return nil // the peer's end has overtaken the end of its handshake
					}
					if err != nil {
						return err
					}
					<-conn.Done()
					return conn.Close()
				})
				_, err = rsocket.Dial("rdma", ln.Addr().String())
				require.ErrorIs(t, err, c.want)
				require.NoError(t, <-accepted)
			})
		})
	}
}
