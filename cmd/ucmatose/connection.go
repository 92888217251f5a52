// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// connection is one end of a connection of the test.
type connection struct {
	*endpoint.Endpoint
	memory *ibverbs.MR     // memory of all messages
	life   context.Context // context that ends with the connection
	end    context.CancelCauseFunc
}

// resolve resolves the server's address, and creates the client's queue pair.
// At the server, an end has an address and a queue pair from the start.
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

// repeat calls do for each message.
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

// disconnect waits until a connection has ended. The server ends it, and the
// client waits for that.
func (t *test) disconnect(c *connection) error {
	if t.server == "" {
		_ = c.ID().Disconnect() // fails if the client has disconnected already
	}
	<-c.life.Done()
	return context.Cause(t.life)
}
