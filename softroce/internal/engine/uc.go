// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/verbena-go/verbena/softroce/internal/wire"

// receiveUnreliable handles a packet of an unreliable connection. Losses are
// not reported. A gap in the PSNs drops the current message; the next first
// packet begins another message, which uses the same receive. A message that is
// malformed or longer than the receive is dropped in the same way, since
// packets of a peer must not fail the queue pair. If the memory of the receive
// cannot be written, the queue pair fails, since that is a fault of the
// program.
func (q *QP) receiveUnreliable(p *wire.Packet) {
	r := &q.responder
	q.noteFirst()
	begins := p.Opcode.Begins()
	if begins || p.PSN != r.psn {
		q.dropMessage()
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
		q.dropMessage()
	}
}

// dropMessage drops the message that is arriving, if any. The next message uses
// the same receive.
func (q *QP) dropMessage() {
	q.noteOverwritten(q.responder.message.length)
	q.responder.message = message{}
}
