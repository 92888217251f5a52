// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// MessageSize is the number of bytes of the message in each direction, the same
// as in C's programs.
const MessageSize = 16

// Queues is the config of a queue pair with room for one message in each
// direction.
var Queues = ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1, SignalAll: true}

// Prepare registers memory for both messages, and posts the receive. Call it
// before the peer can send. It returns the memory of the message to send.
func Prepare(ep *endpoint.Endpoint) (sent *ibverbs.MR, err error) {
	received, err := ep.RegMsgs(make([]byte, MessageSize))
	if err != nil {
		return nil, err
	}
	if sent, err = ep.RegMsgs(make([]byte, MessageSize)); err != nil {
		return nil, err
	}
	return sent, ep.PostRecv(0, received.All())
}

// Answer sends the message in sent to the peer, and waits until the peer's
// device has acknowledged it, or until the peer has ended the connection. A
// peer ends the connection when it has received the message, which may be
// before its device has acknowledged it. life is what Watch has returned.
func Answer(life context.Context, ep *endpoint.Endpoint, sent *ibverbs.MR) error {
	if err := ep.PostSend(0, 0, sent.All()); err != nil {
		return Cause(life, err)
	}
	return unlessDisconnected(Sent(life, ep))
}

// unlessDisconnected returns err, or nil if err is that the peer has ended the
// connection.
func unlessDisconnected(err error) error {
	if ended, ok := errors.AsType[*rdmacm.EventError](err); ok && ended.Type == rdmacm.EventDisconnected {
		return nil
	}
	return err
}

// Ask sends the message in sent, and waits for the peer's answer, which shows
// that the peer has received the message. Ask does not wait for the
// acknowledgement of the message: it may never come if the peer ends the
// connection at once.
// life is what Watch has returned.
func Ask(life context.Context, ep *endpoint.Endpoint, sent *ibverbs.MR) error {
	if err := ep.PostSend(0, 0, sent.All()); err != nil {
		return Cause(life, err)
	}
	err := completed(life, ep.RecvComp)
	if err != nil { // the receive may have been flushed because the send failed
		err = cmp.Or(completed(life, ep.SendComp), err)
	}
	return Cause(life, err)
}

// Receive waits for the peer's message. life is what Watch has returned.
func Receive(life context.Context, ep *endpoint.Endpoint) error {
	return Cause(life, completed(life, ep.RecvComp))
}

// Sent waits until the peer's device has acknowledged a message. life is what
// Watch has returned.
func Sent(life context.Context, ep *endpoint.Endpoint) error {
	return Cause(life, completed(life, ep.SendComp))
}

// patience is how long Leave waits for the peer.
const patience = 10 * time.Second

// Leave waits until the peer has ended the connection, and then ends it at this
// end. When the peer ends the connection, it has received all messages. If this
// end ended the connection first, its device might not have acknowledged the
// peer's message, and the peer would wait for the acknowledgement in vain. life
// is what Watch has returned for ctx.
func Leave(ctx, life context.Context, ep *endpoint.Endpoint) error {
	select {
	case <-life.Done():
		if err := unlessDisconnected(context.Cause(life)); err != nil {
			return err
		}
	case <-time.After(patience):
	}
	return ep.Disconnect(ctx)
}
