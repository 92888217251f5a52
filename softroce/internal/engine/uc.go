// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/verbena-go/verbena/softroce/internal/wire"

// receiveUnreliable takes a packet of an unreliable connection. Nobody learns of what is lost: a
// gap ends the message that is under way, and the next first packet begins another. The receive that the
// lost message has taken serves the next one. So it is with a message that is wrong or longer than the receive, since
// no packet of the network's may end the queue pair. A receive that cannot be written is the program's own mistake.
func (q *QP) receiveUnreliable(p *wire.Packet) {
	r := &q.responder
	q.noteFirst()
	begins := p.Opcode.IsFirst() || p.Opcode.IsOnly()
	if begins || p.PSN != r.psn {
		r.message = message{}
	}
	r.psn = p.PSN.Add(1)
	if !begins && r.message.kind == noMessage {
		return
	}
	switch refused := q.doMessage(p); refused {
	case nil:
	case badReceive:
		q.refuse(refused)
	default:
		r.message = message{}
	}
}
