package rping

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// infoSize is the size of a message: an address, a key and a length, in
// network byte order.
const infoSize = 16

// link is a connection with the buffers of a ping.
type link struct {
	o     *options
	conn  *rdmacm.Conn
	info  *ibverbs.MR     // a message to receive, then one to send
	data  *ibverbs.MR     // the server's copy of a ping; at the client, where it comes back to
	start *ibverbs.MR     // the client's ping
	next  *rdmacm.Receive // that is posted
}

func (l *link) config() *rdmacm.Config {
	return &rdmacm.Config{
		SendQueue: 16, RecvQueue: 2, ReadDepth: 1, ManualQP: l.o.manualQP,
		Setup: l.setup,
	}
}

// setup registers the buffers and posts the first receive, before the peer can
// send.
func (l *link) setup(conn *rdmacm.Conn) error {
	l.conn = conn
	size := l.o.size
	if l.o.server {
		size = maxSize + 1 // clients choose the size
	}
	shared := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite
	var err error
	if l.info, err = conn.Alloc(2*infoSize, ibverbs.AccessLocalWrite); err != nil {
		return err
	}
	if l.data, err = conn.Alloc(size, shared); err != nil {
		return err
	}
	if !l.o.server {
		if l.start, err = conn.Alloc(size, shared); err != nil {
			return err
		}
	}
	l.o.debugf("registered buffers")
	return l.post()
}

func (l *link) post() error {
	var err error
	l.next, err = l.conn.PostRecv(l.info.Sub(0, infoSize))
	return err
}

// receive waits for a message and posts the next receive.
func (l *link) receive(ctx context.Context) (ibverbs.RemoteBuffer, error) {
	n, err := l.next.Wait(ctx)
	if err != nil {
		return ibverbs.RemoteBuffer{}, err
	}
	if n != infoSize {
		return ibverbs.RemoteBuffer{}, fmt.Errorf("received a message of %d bytes, not %d", n, infoSize)
	}
	b := l.info.Bytes()
	remote := ibverbs.RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]),
		Len: uint64(binary.BigEndian.Uint32(b[12:])),
	}
	l.o.debugf("received rkey %x addr %x len %d", remote.RKey, remote.Addr, remote.Len)
	return remote, l.post()
}

// send tells the peer about a buffer. The server's messages say only "go
// ahead", whatever is in them.
func (l *link) send(ctx context.Context, buffer ibverbs.RemoteBuffer) error {
	b := l.info.Bytes()[infoSize:]
	binary.BigEndian.PutUint64(b, buffer.Addr)
	binary.BigEndian.PutUint32(b[8:], buffer.RKey)
	binary.BigEndian.PutUint32(b[12:], uint32(buffer.Len))
	l.o.debugf("send rkey %x addr %x len %d", buffer.RKey, buffer.Addr, buffer.Len)
	return l.conn.Send(ctx, l.info.Sub(infoSize, infoSize))
}
