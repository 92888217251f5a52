// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
)

// Data connections carry messages, too. The dialer begins with an empty one.
// Later, an empty message acknowledges a trailer; any other message is one. It
// has a byte, so that it is not empty, and the notification.
const (
	trailerHeader = 1
	trailerLen    = trailerHeader + MaxNotification
	// mostHeard is the number of messages that an end may not have taken: the
	// dialer's first, a trailer and an acknowledgement.
	mostHeard = 3
)

// trailer is a notification that was posted behind all data of its batch, on
// the path that has carried them. So it comes after them, and sooner than by
// the control connection. While a session has one, it sends no other
// notification.
type trailer struct {
	path  *path  // nil: there is none
	batch *Batch // nil if its requests have failed
}

// trail makes the notification of the batch that has the last slice of a flight
// a trailer, if it can be one: all data of the batch go over the path. The
// caller holds the peer's mu.
func (s *session) trail(f *flight, p *path) {
	b := f.slices[f.n-1].batch
	switch {
	case !b.trails || b.only != p || b.left != nil || b.firstError() != nil:
		return // in the ring, it has more slices
	case s.trailer.path != nil || p.trailing || len(s.waiting) > 0 || s.sent-s.consumed >= s.mailbox || !s.stream.idle():
		return // what was sent before must come first
	}
	s.trailer = trailer{p, b}
	s.sent++
	p.trailing = true
	f.trailer = trailerHeader + copy(p.memory[trailerHeader:], b.message)
}

// settle is called when it is known whether the peer has the trailer. The
// caller holds the peer's mu.
func (s *session) settle(arrived bool) {
	b := s.trailer.batch
	s.trailer = trailer{}
	if !arrived {
		s.sent--
	}
	if b != nil {
		b.trails, b.arrived = false, arrived
		if b.state == notifying {
			b.notify()
		}
	}
	s.sendWaiting()
}

// hear takes the messages on the path until it ends.
func (p *path) hear() {
	s := p.session
	acknowledgement, err := ibverbs.NewSendBatch(1, 1)
	for err == nil {
		m, end := p.conn.Receive(context.Background())
		if end != nil {
			return
		}
		if len(m.Data) == 0 {
			err = s.acknowledged(p)
			continue
		}
		if err = s.takeNotification(m.Data[trailerHeader:]); err == nil {
			acknowledgement.Reset()
			if err = acknowledgement.Send(0, 0); err == nil && p.conn.Post(context.Background(), nil, acknowledgement) != nil {
				return // the connection has ended
			}
		}
	}
	s.end(err)
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
	s.settle(true)
	return nil
}
