// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rdmacm"
)

// stream carries the items of a session to the peer, each exactly once and in
// order, over one control connection after the other. Items are kept until the
// peer has acknowledged them, and sent again on the next connection.
type stream struct {
	mu       sync.Mutex
	items    []streamed // not acknowledged, in order
	first    uint64     // number of items[0] in the stream
	sent     int        // number of items that were sent on the current connection
	received uint64     // number of items that this end has received
	mustAck  bool       // whether the peer is to be told received
	answers  int        // number of items that answer the peer's
	err      error      // after the end of the session
	wake     chan struct{}

	handling sync.Mutex // held from before an item is handled until it is counted
}

type streamed struct {
	item []byte
	done func(error) // if not nil, called when the peer has the item, or the session has ended, without locks
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

// add adds an item, which fill appends. done may be nil.
func (s *stream) add(done func(error), fill func(*encoder)) {
	var e encoder
	fill(&e)
	s.mu.Lock()
	err := s.err
	if err == nil {
		s.items = append(s.items, streamed{e, done})
		if isAnswer(e) {
			s.answers++
		}
	}
	s.mu.Unlock()
	if err != nil {
		if done != nil {
			go done(err) // the caller may hold locks
		}
		return
	}
	s.signal()
}

// maxAnswers is the number of answers that the peer may leave without an
// acknowledgement before this end takes no more questions.
const maxAnswers = 1 << 17

// mayAsk returns an error if the peer asks more and more, and does not
// acknowledge the answers, which would fill this end's memory.
func (s *stream) mayAsk() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers >= maxAnswers {
		return protocolError("%d answers that it does not acknowledge", s.answers)
	}
	return nil
}

func isAnswer(item []byte) bool {
	return item[0] == itemWithdrawn || item[0] == itemFenced || item[0] == itemCredit
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// end ends the stream. It calls done for all items whose arrival is not known.
func (s *stream) end(err error) {
	s.mu.Lock()
	items := s.items
	s.items, s.err = nil, err
	s.mu.Unlock()
	for _, it := range items {
		if it.done != nil {
			it.done(err)
		}
	}
}

// restart prepares the stream for another connection, whose other end has
// received that many items.
func (s *stream) restart(received uint64) error {
	if err := s.acknowledge(received); err != nil {
		return err
	}
	s.mu.Lock()
	s.sent = 0
	s.mu.Unlock()
	s.signal()
	return nil
}

// idle reports whether the peer has acknowledged all items.
func (s *stream) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.items) == 0
}

// receivedCount returns how many items this end has received.
func (s *stream) receivedCount() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// acknowledge drops the items that the peer has received.
func (s *stream) acknowledge(received uint64) error {
	s.mu.Lock()
	if received > s.first+uint64(len(s.items)) && s.err == nil {
		defer s.mu.Unlock()
		return protocolError("acknowledgement of item %d, of %d", received, s.first+uint64(len(s.items)))
	}
	var done []streamed
	if received > s.first && s.err == nil {
		n := int(received - s.first)
		done = s.items[:n:n]
		s.items, s.first, s.sent = s.items[n:], received, max(0, s.sent-n)
		for _, it := range done {
			if isAnswer(it.item) {
				s.answers--
			}
		}
	}
	s.mu.Unlock()
	for _, it := range done {
		if it.done != nil {
			it.done(nil)
		}
	}
	return nil
}

// frame fills b with the next frame, and returns its length, or 0 if there is
// nothing to send.
func (s *stream) frame(b []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := frameHeader
	first := s.first + uint64(s.sent)
	for s.sent < len(s.items) && n+len(s.items[s.sent].item) <= len(b) {
		n += copy(b[n:], s.items[s.sent].item)
		s.sent++
	}
	if n == frameHeader && !s.mustAck {
		return 0
	}
	s.mustAck = false
	binary.BigEndian.PutUint64(b, first)
	binary.BigEndian.PutUint64(b[8:], s.received)
	return n
}

// take passes the new items of a frame to handle.
func (s *stream) take(b []byte, handle func(item) error) error {
	f, err := decodeFrame(b)
	if err != nil {
		return err
	}
	if err := s.acknowledge(f.received); err != nil {
		return err
	}
	for number := f.first; ; number++ {
		it, ok, err := f.next()
		if ok {
			err = s.takeItem(number, it, handle)
		}
		if !ok || err != nil {
			return err
		}
	}
}

func (s *stream) takeItem(number uint64, it item, handle func(item) error) error {
	s.handling.Lock()
	defer s.handling.Unlock()
	expected := s.receivedCount() // only this goroutine changes it
	switch {
	case number > expected:
		return protocolError("item %d where %d is next", number, expected)
	case number == expected:
		if err := handle(it); err != nil {
			return err
		}
	}
	s.mu.Lock() // what is acknowledged has been handled
	s.received = max(s.received, number+1)
	s.mustAck = true
	s.mu.Unlock()
	s.signal()
	return nil
}

// awaitHandled waits until all items that were handled are counted, so that the
// next frame acknowledges them.
func (s *stream) awaitHandled() {
	s.handling.Lock()
	defer s.handling.Unlock()
}

// run sends and receives frames on a connection until it or ctx ends.
func (s *stream) run(ctx context.Context, conn *rdmacm.Conn, handle func(item) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	memory, err := conn.Alloc(messageLen, ibverbs.AccessLocalWrite)
	if err != nil {
		cancel(nil)
		return err
	}
	sealed.Open(conn.Internals()).SetAside(true) // messages are rare, and what the program waits for is on other connections
	var sender sync.WaitGroup
	sender.Go(func() { cancel(s.send(ctx, conn, memory)) })
	for err == nil {
		var m *rdmacm.Message
		if m, err = conn.Receive(ctx); err == nil {
			err = s.take(m.Data, handle)
		}
	}
	cancel(err)
	sender.Wait()
	return err
}

// send sends frames until the connection or ctx ends.
func (s *stream) send(ctx context.Context, conn *rdmacm.Conn, memory *ibverbs.MR) error {
	for {
		if n := s.frame(memory.Bytes()); n > 0 {
			if err := conn.Send(ctx, memory.Sub(0, n)); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.wake:
		case <-conn.Done():
			return conn.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
