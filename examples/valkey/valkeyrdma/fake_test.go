// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// fake is the server's end of a connection, which does what a test says.
type fake struct {
	*rdmacm.Conn
	messages *rdmacm.Receiver
	mr       *ibverbs.MR // the window, what is written from, and control messages
	client   ibverbs.RemoteBuffer
	written  uint64     // bytes in the client's window
	using    sync.Mutex // held while the memory is used, and by Close
}

const fakeWindow = 100_000

// Where a fake's memory has what.
const (
	fakeOut     = fakeWindow // as large as the window
	fakeControl = 2 * fakeWindow
)

// serveFake listens for one connection, for which it calls serve. It returns
// the address, and the result of serve.
func serveFake(t testing.TB, serve func(*fake) error) (string, <-chan error) {
	return serveFakeWith(t, 1024, serve)
}

// serveFakeWith is serveFake for a server with that many receives.
func serveFakeWith(t testing.TB, receives int, serve func(*fake) error) (string, <-chan error) {
	d := cmtest.NeedDevice(t)
	ln, err := rdmacm.Listen(t.Context(), netip.AddrPortFrom(d.IPv4, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String(), cmtest.InBackground(func() error {
		req, err := ln.Accept(context.Background())
		if err != nil {
			return err
		}
		f := new(fake)
		conn, err := req.Accept(context.Background(), &rdmacm.Config{SendQueue: 1024, RecvQueue: receives, Setup: f.setup})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		f.Conn = conn
		return serve(f)
	})
}

func (f *fake) setup(c *rdmacm.Conn) (err error) {
	if f.mr, err = c.Alloc(fakeControl+4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
		return err
	}
	f.messages, err = c.NewReceiver(32)
	return err
}

// use calls use with the memory, unless Close has freed it.
func (f *fake) use(use func(memory []byte)) error {
	f.using.Lock()
	defer f.using.Unlock()
	memory := f.mr.Bytes()
	if memory == nil {
		return net.ErrClosed
	}
	use(memory)
	return nil
}

// Close ends the connection, and frees the memory when no call of use has it.
func (f *fake) Close() error {
	f.using.Lock()
	defer f.using.Unlock()
	return f.Conn.Close()
}

// say sends a control message of size bytes.
func (f *fake) say(opcode uint16, size int, features uint64) error {
	err := f.use(func(memory []byte) {
		b := memory[fakeControl:]
		clear(b)
		binary.BigEndian.PutUint16(b, opcode)
		binary.BigEndian.PutUint64(b[24:], features)
	})
	if err != nil {
		return err
	}
	return f.Send(context.Background(), f.mr.Sub(fakeControl, size))
}

// offer tells the client to write to a window.
func (f *fake) offer(window ibverbs.RemoteBuffer) error {
	err := f.use(func(memory []byte) {
		b := memory[fakeControl:]
		clear(b)
		binary.BigEndian.PutUint16(b, 3)
		binary.BigEndian.PutUint64(b[16:], window.Addr)
		binary.BigEndian.PutUint32(b[24:], uint32(window.Len))
		binary.BigEndian.PutUint32(b[28:], window.RKey)
	})
	if err != nil {
		return err
	}
	return f.Send(context.Background(), f.mr.Sub(fakeControl, 32))
}

// window is the fake's window.
func (f *fake) window() ibverbs.RemoteBuffer {
	w := f.mr.Remote()
	w.Len = fakeWindow
	return w
}

// greet answers the client's first messages, and offers a window.
func (f *fake) greet(window ibverbs.RemoteBuffer) error {
	for f.client.Len == 0 {
		m, err := f.messages.Next(context.Background())
		if err != nil {
			return err
		}
		f.takeOffer(m)
	}
	if err := f.offer(window); err != nil {
		return err
	}
	return f.say(0, 32, 0)
}

// takeOffer notes a window that the client has offered, and reports whether it
// has.
func (f *fake) takeOffer(m *rdmacm.Message) bool {
	if binary.BigEndian.Uint16(m.Data) != 3 {
		return false
	}
	f.client = ibverbs.RemoteBuffer{
		Addr: binary.BigEndian.Uint64(m.Data[16:]), Len: uint64(binary.BigEndian.Uint32(m.Data[24:])), RKey: binary.BigEndian.Uint32(m.Data[28:]),
	}
	f.written = 0
	return true
}

// write writes the first n bytes of the memory for that to the client's window.
func (f *fake) write(n int) error {
	to := f.client.Sub(f.written, uint64(n))
	f.written += uint64(n)
	return f.WriteImm(context.Background(), to, uint32(n), f.mr.Sub(fakeOut, n))
}

// claim says that n bytes were written to the client's window, and writes none.
func (f *fake) claim(n uint32) error {
	return f.WriteImm(context.Background(), ibverbs.RemoteBuffer{}, n, f.mr.Sub(0, 0))
}

// waitForEnd waits until the client has ended the connection.
func (f *fake) waitForEnd() error { return f.Wait(context.Background()) }

// bridge serves as Valkey does: what the client writes goes to the other end,
// and what that writes to the client. It returns when both have closed.
func (f *fake) bridge(other net.Conn) error {
	if err := f.greet(f.window()); err != nil {
		return err
	}
	b := &bridge{fake: f, other: other, offered: make(chan struct{}, 1), arrived: make(chan int, fakeWindow)}
	var ends sync.WaitGroup
	ends.Go(b.toClient)
	ends.Go(b.toOther)
	ends.Go(b.receive)
	ends.Wait()
	return nil
}

type bridge struct {
	*fake
	other   net.Conn
	arrived chan int      // numbers of bytes in the fake's window
	offered chan struct{} // has a value after the client has offered a window

	mu sync.Mutex // guards the client's window, and the memory for control messages
}

// receive takes what comes from the client until it closes.
func (b *bridge) receive() {
	defer close(b.arrived)
	for m, err := range b.messages.Messages(context.Background()) {
		if err != nil {
			return
		}
		if n, ok := m.Written(); ok {
			b.arrived <- n
			continue
		}
		b.mu.Lock()
		switch {
		case b.takeOffer(m):
			select {
			case b.offered <- struct{}{}:
			default:
			}
		case binary.BigEndian.Uint16(m.Data) == 0:
			_ = b.say(0, 32, 0) // if it fails, the next message does
		}
		b.mu.Unlock()
	}
}

// toOther writes what has arrived to the other end, until one has closed. It
// then closes the other end, which has all that arrived.
func (b *bridge) toOther() {
	defer func() {
		_ = b.other.Close()
		_ = b.Close()
	}()
	at := 0
	buf := make([]byte, fakeWindow)
	for n := range b.arrived {
		if b.use(func(memory []byte) { copy(buf, memory[at:at+n]) }) != nil {
			return
		}
		if _, err := b.other.Write(buf[:n]); err != nil {
			return
		}
		if at += n; at == fakeWindow {
			at = 0
			b.mu.Lock()
			_ = b.offer(b.window()) // if it fails, receive ends
			b.mu.Unlock()
		}
	}
}

// toClient writes what comes from the other end to the client, until one has
// closed. If it is the other end, it closes the connection. Otherwise, toOther
// does, which may still need the memory.
func (b *bridge) toClient() {
	buf := make([]byte, fakeWindow)
	for {
		n, err := b.other.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			b.mu.Lock()
			k := min(len(p), int(b.client.Len-b.written))
			if k > 0 && (b.use(func(memory []byte) { copy(memory[fakeOut:], p[:k]) }) != nil || b.write(k) != nil) {
				b.mu.Unlock()
				return
			}
			b.mu.Unlock()
			if p = p[k:]; k == 0 {
				select {
				case <-b.offered:
				case <-b.Done():
					return
				}
			}
		}
		if err != nil {
			_ = b.Close()
			return
		}
	}
}
