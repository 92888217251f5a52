// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// test is one run of the program.
type test struct {
	*options
	to      rdmacm.AddrInfo // or where to listen
	queues  ibverbs.QPConfig
	life    context.Context // ends with the first failure
	fail    context.CancelCauseFunc
	channel *rdmacm.EventChannel // to migrate to
	all     []*connection
	opened  []io.Closer
	reading sync.WaitGroup // of events
}

// run takes all connections through the test, each step together.
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

// open makes an end of each connection, at the server when it is asked for.
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
		t.opened = append(t.opened, ep.ID(), ep) // the endpoint leaves an id alone that has migrated
	}
	return nil
}

// watch ends connections when their events say so.
func (t *test) watch(next func(context.Context) (*rdmacm.Event, error)) {
	t.reading.Go(func() {
		for ev, err := next(t.life); err == nil; ev, err = next(t.life) {
			if ev.Type == rdmacm.EventDisconnected || ev.Type == rdmacm.EventDeviceRemoval {
				ev.ID.Value().(*connection).end(ev.Err())
				_ = ev.ID.Disconnect() // which answers the peer, if that began
			}
		}
	})
}

// each does a step with all connections at once.
func (t *test) each(step func(*connection) error) error {
	var working sync.WaitGroup
	for _, c := range t.all {
		working.Go(func() {
			if err := step(c); err != nil {
				t.fail(cmp.Or(context.Cause(c.life), err))
			}
		})
	}
	working.Wait()
	return context.Cause(t.life)
}

// close ends what is still under way.
func (t *test) close() (err error) {
	t.fail(nil)
	t.reading.Wait()
	for _, c := range slices.Backward(t.opened) {
		err = errors.Join(err, c.Close())
	}
	return err
}
