// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// end is one end of a connection, with memory for one message.
type end struct {
	size     int
	conn     *rdmacm.Conn
	messages *rdmacm.Receiver
	memory   *ibverbs.MR
	batch    *ibverbs.SendBatch // request that sends the memory
}

func newEnd(size int) (*end, error) {
	batch, err := ibverbs.NewSendBatch(1, 1)
	return &end{size: size, batch: batch}, err
}

// config returns the config of the connection. Only one message is in flight at
// a time.
func (e *end) config() *rdmacm.Config {
	return &rdmacm.Config{
		PrivateData: greeting(e.size), SendQueue: 2, RecvQueue: 2, ReadDepth: -1,
		Setup: func(c *rdmacm.Conn) (err error) {
			if e.messages, err = c.NewReceiver(e.size); err != nil {
				return err
			}
			if e.memory, err = c.Alloc(e.size, 0); err != nil {
				return err
			}
			return e.batch.Send(1, 0, e.memory.All())
		},
	}
}

func (e *end) accept(ctx context.Context, request *rdmacm.Request) (err error) {
	e.conn, err = request.Accept(ctx, e.config())
	return err
}

func (e *end) dial(ctx context.Context, address string) (err error) {
	if e.conn, err = rdmacm.Dial(ctx, address, e.config()); err != nil {
		return err
	}
	if size, ok := greeted(e.conn.PeerData()); !ok || size != e.size {
		return errors.Join(fmt.Errorf("the program that listens on %s is not verbena ping -l of this version", address), e.conn.Close())
	}
	return nil
}

// exchange sends a message and returns the time until the answer has arrived.
func (e *end) exchange(ctx context.Context, seq uint64) (time.Duration, error) {
	out := e.memory.Bytes()
	binary.BigEndian.PutUint64(out, seq)
	for i := minSize; i < len(out); i++ {
		out[i] = byte(seq) + byte(i)
	}
	start := time.Now()
	var sent rdmacm.Transfer
	if err := e.conn.Post(ctx, &sent, e.batch); err != nil {
		return 0, err
	}
	answer, err := e.messages.Next(ctx)
	took := time.Since(start)
	if err == nil {
		err = sent.Wait(ctx) // the memory belongs to the device until then, although the message has arrived
	}
	if err == nil && !bytes.Equal(answer.Data, out) {
		err = errors.New("the answer differs from the message that was sent")
	}
	return took, err
}
