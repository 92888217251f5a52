// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/verbena-go/verbena/softroce/internal/wire"

// receiveUnreliable handles a packet of an unreliable connection. Neither side
// learns of losses: a gap ends the current message, and the next first packet
// begins another. The receive that the lost message had taken serves the next
// message. A message that is malformed or longer than the receive is treated in
// the same way, since a packet from the network must not fail the queue pair. A
// receive that cannot be written fails it, as that is the program's own
// mistake.
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
