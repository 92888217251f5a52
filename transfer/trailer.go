// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"

	"github.com/verbena-go/verbena/internal/sealed"
)

// Data connections carry messages, too. The dialer begins with an empty one.
// Later, an empty message acknowledges a trailer; any other message is one. It
// has a byte, so that it is not empty, and the notification.
const (
	trailerHeader = 1
	trailerLen    = trailerHeader + MaxNotification
	// maxUntaken is the number of messages that an end may not have taken: the
	// dialer's first, a trailer and an acknowledgement.
	maxUntaken = 3
)

// trailer is a notification that was posted behind all data of its batch, on
// the path that has carried them. So it comes after them, and sooner than by
// the control connection. While a session has one, it sends no other
// notification.
type trailer struct {
	path  *path  // nil: there is none
	batch *Batch // nil if its requests have failed
}

// addTrailer makes the notification of the batch that has the last slice of a
// flight a trailer, if it can be one: all data of the batch go over the path.
// The caller holds the peer's mu.
func (s *session) addTrailer(f *flight, p *path) {
	b := f.slices[f.n-1].batch
	switch {
	case !b.mayTrail || b.firstPath != p || b.prev != nil || b.firstError() != nil:
		return // in the queue, it has more slices
	case s.trailer.path != nil || p.trailerPosted || len(s.waiting) > 0 || s.sent-s.consumed >= s.mailbox || !s.stream.idle():
		return // what was sent before must come first
	}
	s.trailer = trailer{p, b}
	s.sent++
	p.trailerPosted = true
	f.trailer = trailerHeader + copy(p.trailerMemory[trailerHeader:], b.message)
}

// trailerDone is called when it is known whether the peer has the trailer. The
// caller holds the peer's mu.
func (s *session) trailerDone(arrived bool) {
	b := s.trailer.batch
	s.trailer = trailer{}
	if !arrived {
		s.sent--
	}
	if b != nil {
		b.mayTrail, b.trailerArrived = false, arrived
		if b.state == notifying {
			b.notify()
		}
	}
	s.sendWaiting()
}

// receiveMessages takes the messages that have come, as many as the peer may
// send without an answer. The caller is the poller.
func (p *path) receiveMessages() {
	for range maxUntaken {
		if p.noMessages {
			return
		}
		has, failed := sealed.Open(p.conn.Internals()).HasMessage()
		if !has {
			return
		}
		if p.noMessages = failed; failed { // the connection has ended
			return
		}
		m, err := p.conn.Receive(context.Background())
		if err != nil {
			p.noMessages = true
			return
		}
		if err := p.handle(m.Data); err != nil {
			p.noMessages = true
			p.session.end(err)
		}
	}
}

// handle handles a message.
func (p *path) handle(message []byte) error {
	if len(message) == 0 {
		return p.session.acknowledged(p)
	}
	if err := p.session.takeNotification(message[trailerHeader:]); err != nil {
		return err
	}
	p.ack.Reset()
	if err := p.ack.Send(0, 0); err != nil {
		return err
	}
	if p.conn.Post(context.Background(), nil, p.ack) != nil {
		p.noMessages = true // the connection has ended
	}
	return nil
}

// acknowledged is called when the peer acknowledges a trailer.
func (s *session) acknowledged(p *path) error {
	peer := s.peer
	peer.mu.Lock()
	defer peer.unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.trailer.path != p:
		return protocolError("an acknowledgement of no notification")
	}
	s.trailerDone(true)
	return nil
}
