// Package message is what rdmaclient and rdmaserver share: an endpoint that sends one
// message and receives one.
package message

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// size is that of the message in each direction; as in C.
const size = 16

// Queues have room for one message in each direction.
var Queues = ibverbs.QPConfig{MaxSendWR: 1, MaxRecvWR: 1, SignalAll: true}

// Prepare registers memory for both messages, and posts the receive. It must come before
// the peer can send. It returns the memory of the message to send.
func Prepare(ep *rdmacm.Endpoint) (sent *ibverbs.MR, err error) {
	received, err := ep.RegMsgs(make([]byte, size))
	if err != nil {
		return nil, err
	}
	if sent, err = ep.RegMsgs(make([]byte, size)); err != nil {
		return nil, err
	}
	return sent, ep.PostRecv(0, received.All())
}

// Send sends the message, and waits until the peer's device has it.
func Send(ctx context.Context, ep *rdmacm.Endpoint, sent *ibverbs.MR) error {
	if err := ep.PostSend(0, 0, sent.All()); err != nil {
		return err
	}
	_, err := ep.SendComp(ctx)
	return err
}

// Receive waits for the peer's message.
func Receive(ctx context.Context, ep *rdmacm.Endpoint) error {
	_, err := ep.RecvComp(ctx)
	return err
}
