// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/verbena-go/verbena/cmd/cmtime/internal/summary"
	"github.com/verbena-go/verbena/rdmacm"
)

// node is one end of a connection, with the times at which its current step
// began and ended.
type node struct {
	id         *rdmacm.ID
	start, end time.Time
	failures   int // number of failures in the current step so far
}

// step is a step that every connection completes before any begins the next
// one.
type step struct {
	name string
	take func(*node) error
	ends rdmacm.EventType // event that ends the step
}

const none = rdmacm.EventUser // an event that does not occur here: the step is over at once

func (c *cmtime) create(n *node) (err error) {
	if n.id, err = c.channel.NewID(rdmacm.PortSpaceTCP); err == nil {
		n.id.SetValue(n)
	}
	return err
}

// connectAll takes all nodes through all steps, and prints the time of each
// step.
func (c *cmtime) connectAll(ctx context.Context, stdout io.Writer) error {
	var results []result
	c.nodes = make([]node, c.connections)
	each := make([]time.Duration, c.connections)
	param := rdmacm.ConnParam{PrivateData: c.to.Connect, ResponderResources: 1, InitiatorDepth: 1, RetryCount: cmp.Or(c.retries, -1), PeerRNRRetryCount: -1}
	for _, s := range []step{
		{"create id", c.create, none},
		{"bind addr", func(n *node) error { return n.id.BindAddr(c.to.Src) }, none},
		{"resolve addr", func(n *node) error { return n.id.ResolveAddr(c.to.Src, c.to.Dst, c.timeout) }, rdmacm.EventAddrResolved},
		{"resolve route", func(n *node) error { return n.id.ResolveRoute(c.timeout) }, rdmacm.EventRouteResolved},
		{"create qp", func(n *node) error { return c.domains.createQP(n.id) }, none},
		{"connect", func(n *node) error { return n.id.Connect(param) }, rdmacm.EventEstablished},
		{"disconnect", func(n *node) error { return errors.Join(n.id.Disconnect(), n.id.QP().Close()) }, rdmacm.EventDisconnected},
		{"destroy", func(n *node) error { return n.id.Close() }, none},
	} {
		if s.name == "bind addr" && c.bind == "" {
			continue
		}
		start := time.Now()
		if err := c.take(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		all := summary.Microseconds(time.Since(start))
		for i, n := range c.nodes {
			each[i] = n.end.Sub(n.start)
		}
		results = append(results, result{s.name, all / 1000, all / float64(c.connections), summary.Of(each)})
	}
	return print(stdout, results, c.json)
}

// take starts a step for all nodes, and reads events until all have completed
// it.
func (c *cmtime) take(ctx context.Context, s step) error {
	for i := range c.nodes {
		n := &c.nodes[i]
		n.start = time.Now()
		if err := s.take(n); err != nil {
			return err
		}
		if s.ends == none {
			n.end = time.Now()
			continue
		}
		c.waiting++
		ev, _, err := c.channel.Poll()
		if err := c.handle(ev, err, s); err != nil {
			return err
		}
	}
	for c.waiting > 0 {
		ev, err := c.channel.Next(ctx)
		if err := c.handle(ev, err, s); err != nil {
			return err
		}
	}
	return nil
}

// handle records that a node has completed the step, or repeats the step if it
// failed.
func (c *cmtime) handle(ev *rdmacm.Event, err error, s step) error {
	if ev == nil {
		return err
	}
	n := ev.ID.Value().(*node)
	switch {
	case ev.Type == s.ends:
		n.end, n.failures = time.Now(), 0
		c.waiting--
		return nil
	case (ev.Type == rdmacm.EventAddrError || ev.Type == rdmacm.EventRouteError) && n.failures < c.retries:
		n.failures++
		return s.take(n)
	}
	return ev.Err()
}

// result is the time of a step.
type result struct {
	Step          string  `json:"step"`
	Total         float64 `json:"total_ms"` // time until all connections have completed the step
	PerConnection float64 `json:"us_per_connection"`
	summary.Durations
}

func print(w io.Writer, results []result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(results)
	}
	fmt.Fprintln(w, "step              total ms  us / conn     min us     avg us     50% us     90% us     99% us     max us")
	for _, r := range results {
		fmt.Fprintf(w, "%-13s: %11.2f%11.2f%11.2f%11.2f%11.2f%11.2f%11.2f%11.2f\n",
			r.Step, r.Total, r.PerConnection, r.Min, r.Mean, r.P50, r.P90, r.P99, r.Max)
	}
	return nil
}
