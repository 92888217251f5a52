// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// connection is an end of one of the test's connections.
type connection struct {
	*endpoint.Endpoint
	memory *ibverbs.MR     // of all messages
	life   context.Context // ends with the connection
	end    context.CancelCauseFunc
}

// resolve resolves the server's address, and creates the client's queue pair.
// The server's end of a connection is made with both.
func (t *test) resolve(c *connection) error {
	if err := c.ID().SetTOS(uint8(t.tos)); err != nil {
		return err
	}
	if err := c.Resolve(c.life, t.to); err != nil {
		return err
	}
	_, err := c.CreateQP(nil, t.queues)
	return err
}

// prepare posts all receives, before the peer can send.
func (t *test) prepare(c *connection) (err error) {
	if t.ackExponent != 0 {
		if err := c.ID().SetAckTimeout(4096 << t.ackExponent); err != nil {
			return err
		}
	}
	if c.memory, err = c.RegMsgs(make([]byte, max(t.size, 1))); err != nil {
		return err
	}
	return t.repeat(func() error { return c.PostRecv(0, c.memory.All()) })
}

func (t *test) connect(c *connection) error {
	_, err := c.Connect(c.life, rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5, PeerRNRRetryCount: -1})
	return err
}

func (t *test) accept(c *connection) error { return c.Accept(c.life, rdmacm.ConnParam{}) }

func (t *test) send(c *connection) error {
	return t.repeat(func() error { return c.PostSend(0, 0, c.memory.All()) })
}

func (t *test) sent(c *connection) error    { return t.await(c, c.SendComp) }
func (t *test) receive(c *connection) error { return t.await(c, c.RecvComp) }

func (t *test) await(c *connection, completion func(context.Context) (ibverbs.WC, error)) error {
	return t.repeat(func() error {
		_, err := completion(c.life)
		return err
	})
}

// repeat does something for each message.
func (t *test) repeat(do func() error) error {
	for range t.count {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func (t *test) move(c *connection) error {
	_, err := c.Migrate(t.channel)
	return err
}

// disconnect waits for a connection to end, which is for the server to begin.
func (t *test) disconnect(c *connection) error {
	if t.server == "" {
		_ = c.ID().Disconnect() // which fails if the client has done so
	}
	<-c.life.Done()
	return context.Cause(t.life)
}
