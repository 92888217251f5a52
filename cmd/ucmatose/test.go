// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// test is one run of the program.
type test struct {
	*options
	to      rdmacm.AddrInfo // address to connect to, or to listen on
	queues  ibverbs.QPConfig
	life    context.Context // context that ends with the first failure
	fail    context.CancelCauseFunc
	channel *rdmacm.EventChannel // event channel to migrate the IDs to
	all     []*connection
	opened  []io.Closer
	reading sync.WaitGroup // goroutines that read events
}

// run takes all connections through the steps of the test. All connections
// complete a step before the next one begins.
func (t *test) run() error {
	if err := t.open(); err != nil {
		return err
	}
	steps := []func(*connection) error{t.resolve, t.prepare, t.connect, t.receive, t.send}
	if t.server == "" {
		steps = []func(*connection) error{t.prepare, t.accept, t.send, t.sent, t.receive}
	}
	if t.migrate {
		steps = append(steps, t.move)
	}
	for _, step := range append(steps, t.disconnect) {
		if err := t.each(step); err != nil {
			return err
		}
	}
	return nil
}

// open creates the client's end of each connection, or the server's end when a
// client asks for it.
func (t *test) open() (err error) {
	if t.channel, err = rdmacm.NewEventChannel(); err != nil {
		return err
	}
	t.watch(t.channel.Next)
	t.opened = append(t.opened, t.channel)
	next := func(context.Context) (*endpoint.Endpoint, error) { return endpoint.New(t.to.PortSpace) }
	if t.server == "" {
		listener, err := endpoint.Create(t.life, t.to, nil, &t.queues)
		if err != nil {
			return err
		}
		t.opened = append(t.opened, listener)
		if err := listener.Listen(0); err != nil {
			return err
		}
		next = listener.GetRequest
	}
	for range t.connections {
		ep, err := next(t.life)
		if err != nil {
			return err
		}
		c := &connection{Endpoint: ep}
		c.life, c.end = context.WithCancelCause(t.life)
		ep.ID().SetValue(c)
		t.watch(ep.Next)
		t.all = append(t.all, c)
		t.opened = append(t.opened, ep.ID(), ep) // Close of the endpoint does not close an ID that has migrated
	}
	return nil
}

// watch reads events and ends the connections whose peer has disconnected.
func (t *test) watch(next func(context.Context) (*rdmacm.Event, error)) {
	t.reading.Go(func() {
		for ev, err := next(t.life); err == nil; ev, err = next(t.life) {
			if ended := peers.Ended(ev); ended != nil {
				ev.ID.Value().(*connection).end(ended)
				_ = ev.ID.Disconnect() // answers the peer, if it has disconnected first
			}
		}
	})
}

// each calls step for all connections at the same time.
func (t *test) each(step func(*connection) error) error {
	var working sync.WaitGroup
	for _, c := range t.all {
		working.Go(func() {
			if err := step(c); err != nil {
				t.fail(peers.Cause(c.life, err))
			}
		})
	}
	working.Wait()
	return context.Cause(t.life)
}

// close closes all objects and waits for the goroutines.
func (t *test) close() (err error) {
	t.fail(nil)
	t.reading.Wait()
	for _, c := range slices.Backward(t.opened) {
		err = errors.Join(err, c.Close())
	}
	return err
}
