package cmtime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// client takes all connections through the steps.
type client struct {
	*options
	channel *rdmacm.EventChannel
	domains domains
	nodes   []node
	done    chan error // nil for each connection that has taken the step under way
}

func (c *client) run(ctx context.Context) (err error) {
	c.nodes = make([]node, c.connections)
	c.done = make(chan error, c.connections)
	reading, stop := context.WithCancel(ctx)
	read := make(chan struct{})
	go func() { defer close(read); c.read(reading) }()
	defer func() {
		stop()
		<-read
		err = errors.Join(err, c.close())
	}()
	all := [steps]func(*node) error{
		createID: c.create, bindAddr: c.bindAddr, resolveAddr: c.resolveAddr, resolveRoute: c.resolveRoute,
		createQP: c.createQP, connect: c.connect, disconnect: c.disconnect, destroy: c.destroy,
	}
	printHead(c.stdout)
	for s, f := range all {
		if s := step(s); s != bindAddr || c.bind.IsValid() {
			if err := c.take(ctx, s, f); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
		}
	}
	return nil
}

// take takes all nodes through a step, and prints how long that took. An event
// says when a node has taken one that is asynchronous.
func (c *client) take(ctx context.Context, s step, f func(*node) error) error {
	isAsync := s == resolveAddr || s == resolveRoute || s == connect || s == disconnect
	all := span{start: time.Now()}
	for i := range c.nodes {
		n := &c.nodes[i]
		n.retries.Store(int32(c.retries))
		n.times[s].start = time.Now()
		if err := f(n); err != nil {
			return err
		}
		if !isAsync {
			n.times[s].end = time.Now()
		}
	}
	if isAsync {
		for range c.nodes {
			select {
			case err := <-c.done:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	all.end = time.Now()
	each := make([]time.Duration, len(c.nodes))
	for i := range c.nodes {
		each[i] = c.nodes[i].times[s].took()
	}
	print(c.stdout, s, all.took(), each)
	return nil
}

// read hands events to their nodes until ctx ends.
func (c *client) read(ctx context.Context) {
	for ev, err := range c.channel.Events(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				c.done <- err
			}
			return
		}
		c.handle(ev)
	}
}

func (c *client) handle(ev *rdmacm.Event) {
	n := ev.ID.Value().(*node)
	end := func(s step) {
		n.times[s].end = time.Now()
		c.done <- nil
	}
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		end(resolveAddr)
	case rdmacm.EventRouteResolved:
		end(resolveRoute)
	case rdmacm.EventEstablished:
		end(connect)
	case rdmacm.EventDisconnected:
		end(disconnect)
	case rdmacm.EventAddrError:
		c.retry(n, ev, c.resolveAddr)
	case rdmacm.EventRouteError:
		c.retry(n, ev, c.resolveRoute)
	default:
		if err := ev.Err(); err != nil {
			c.done <- err
		}
	}
}

// retry tries a step once more, if there is a try left.
func (c *client) retry(n *node, ev *rdmacm.Event, f func(*node) error) {
	err := ev.Err()
	if n.retries.Add(-1) >= 0 {
		err = f(n)
	}
	if err != nil {
		c.done <- err
	}
}

func (c *client) from() netip.AddrPort {
	if !c.bind.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(c.bind, 0)
}

func (c *client) create(n *node) (err error) {
	if n.id, err = c.channel.NewID(rdmacm.PortSpaceTCP); err == nil {
		n.id.SetValue(n)
	}
	return err
}

func (c *client) bindAddr(n *node) error { return n.id.BindAddr(c.from()) }

func (c *client) resolveAddr(n *node) error {
	return n.id.ResolveAddr(c.from(), netip.AddrPortFrom(c.server, c.port), c.timeout)
}

func (c *client) resolveRoute(n *node) error { return n.id.ResolveRoute(c.timeout) }
func (c *client) createQP(n *node) error     { return c.domains.createQP(n.id) }

func (c *client) connect(n *node) error {
	return n.id.Connect(rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: uint8(c.retries)})
}

func (c *client) disconnect(n *node) error { return errors.Join(n.id.Disconnect(), n.closeQP()) }
func (c *client) destroy(n *node) error    { return n.id.Close() }

func (c *client) close() error {
	var errs []error
	for i := range c.nodes {
		if n := &c.nodes[i]; n.id != nil {
			errs = append(errs, n.close())
		}
	}
	return errors.Join(append(errs, c.domains.close())...)
}
