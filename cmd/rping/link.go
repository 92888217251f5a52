// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/rdmacm"
)

// link is a connection with its buffers.
type link struct {
	*options
	conn              *rdmacm.Conn
	incoming, message ibverbs.Segment // memory of the received and of the sent message
	start             *ibverbs.MR     // memory with the client's text, which the server reads
	data              *ibverbs.MR     // memory of the client that the server writes the text to, or the server's copy of the text
	next              *rdmacm.Receive // the posted receive
}

func (l *link) config() *rdmacm.Config {
	config := &rdmacm.Config{SendQueue: 16, RecvQueue: 2, ReadDepth: 1, Setup: l.setup}
	if l.manualQP {
		config.Queues = new(rdmacm.VerbsQP)
	}
	return config
}

// setup prepares all buffers and posts a receive before the peer can send.
func (l *link) setup(conn *rdmacm.Conn) error {
	l.conn = conn
	const n = tag.RendezvousHeaderLen
	messages, err := conn.Alloc(2*n, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	l.incoming, l.message = messages.Sub(0, n), messages.Sub(n, n)
	for _, buffer := range []**ibverbs.MR{&l.start, &l.data} {
		if *buffer, err = conn.Alloc(l.size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite); err != nil {
			return err
		}
	}
	l.next, err = conn.PostRecv(l.incoming)
	return err
}

// receive waits for a message and returns the buffer in it. The message has the
// address, key and length of the buffer, in the layout of a rendezvous header
// of tag matching.
func (l *link) receive(ctx context.Context) (remote ibverbs.RemoteBuffer, err error) {
	n, err := l.next.Wait(ctx)
	if err != nil {
		return remote, err
	}
	header, _, err := tag.ParseRendezvousHeader(l.incoming.Bytes()[:n])
	if err != nil {
		return remote, err
	}
	l.debugf("received rkey %x addr %x len %d", header.RKey, header.Addr, header.Len)
	l.next, err = l.conn.PostRecv(l.incoming)
	return ibverbs.RemoteBuffer(header), err
}

// send sends the peer a buffer. A client ignores the buffer and takes the
// message as the permission to continue.
func (l *link) send(ctx context.Context, buffer ibverbs.RemoteBuffer) error {
	if _, err := tag.RendezvousHeader(buffer).AppendBinary(l.message.Bytes()[:0]); err != nil {
		return err
	}
	l.debugf("send rkey %x addr %x len %d", buffer.RKey, buffer.Addr, buffer.Len)
	return l.conn.Send(ctx, l.message)
}
