// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/owned"
)

// A Listener accepts connections. Its methods may be called concurrently.
type Listener struct {
	dispatcher *dispatcher
	id         *ID
	config     Config // default config of accepted connections
	addr       netip.AddrPort
	requests   chan *Request // requests that wait for Accept; each holds one use of the dispatcher
	serving    chan struct{} // has one element for each request in Serve; nil if there is no limit
	closed     chan struct{}
	closer     owned.Closer

	mu     sync.Mutex
	failed error // reason why closed was closed
}

// A ListenConfig configures a listener. The zero value is usable.
type ListenConfig struct {
	// Config is the config of an accepted connection if the config passed to
	// Request.Accept is nil. Listen fails if Config.Check fails.
	Config Config
	// Backlog is the maximum number of requests that wait for Accept, up to
	// 65536; 0 means the system's net.core.somaxconn. Further requests are
	// rejected in a way that makes Dial try again; see ErrBacklogFull. C
	// programs take the rejection for a refusal. If more requests than the
	// system's net.rdma_ucm.max_backlog arrive at once, some get no answer, and
	// their peers ask again some seconds later.
	Backlog int
	// MaxServed is the maximum number of requests that Serve handles
	// concurrently; 0 means no limit. Further requests wait in the backlog.
	MaxServed int
	// ReuseAddr lets IDs that do not listen share the address; only one ID at a
	// time can listen on it. AFOnly stops a listener on all IPv6 addresses from
	// also accepting IPv4.
	ReuseAddr, AFOnly bool
}

// Listen listens for connections at host:port. If the host is empty, it listens
// on every address of every device, with both IPv4 and IPv6. If the port is 0,
// the system chooses one. The config may be nil.
//
// For a loopback address such as 127.0.0.1, Listen fails with an error matching
// syscall.EADDRNOTAVAIL unless a device has the address. The device of package
// softroce has loopback addresses, unless it is on the network. For any other
// device, a loopback address stands for every address of every device: the
// listener would be open to the network, but not to dials of the loopback
// address.
//
// If the device that has the address is removed, Accept returns an error
// matching syscall.ENODEV, and the caller should close the listener. A listener
// without a host continues with the remaining devices.
func Listen(ctx context.Context, address string, config *ListenConfig) (*Listener, error) {
	if err := ended("Listen", ctx); err != nil {
		return nil, err
	}
	var ln *Listener
	err := config.check()
	if err == nil {
		ln, err = config.listen(ctx, PortSpaceTCP, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return ln, nil
}

// withDefaults returns a copy with zero values replaced by their defaults.
func (c *ListenConfig) withDefaults() ListenConfig {
	var out ListenConfig
	if c != nil {
		out = *c
	}
	out.Backlog = backlogOf(out.Backlog)
	return out
}

// check returns an error if no request can be accepted with the config.
func (c *ListenConfig) check() error {
	if c == nil {
		return nil
	}
	return c.Config.Check()
}

func (c *ListenConfig) listen(ctx context.Context, ps PortSpace, address string) (*Listener, error) {
	addrs, err := lookup(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx)
	}
	return c.listenInfo(AddrInfo{PortSpace: ps, Src: addrs[0]})
}

func (c *ListenConfig) listenInfo(info AddrInfo) (*Listener, error) {
	config := c.withDefaults()
	d, id, err := newDispatchedID(info.PortSpace, ownDispatcher)
	if err != nil {
		return nil, err
	}
	ln := &Listener{
		dispatcher: d, id: id, config: config.Config,
		requests: make(chan *Request, config.Backlog), closed: make(chan struct{}),
	}
	if config.MaxServed > 0 {
		ln.serving = make(chan struct{}, config.MaxServed)
	}
	d.handle(id, ln.handle)
	if err := ln.start(info, config); err != nil {
		d.forget(id)
		return nil, errors.Join(err, id.Close(), d.release())
	}
	return ln, nil
}

// refuseLoopback rejects a loopback address that no device has. A listener on
// that address is meant for this machine alone, but would be open to the
// network.
func (ln *Listener) refuseLoopback(addr netip.Addr) error {
	if !addr.IsLoopback() {
		return nil
	}
	if err := ln.id.self().Use(); err != nil {
		return err
	}
	bound := ln.id.verbs() != nil
	ln.id.object.Done()
	if bound {
		return nil
	}
	return cerr.Argument("rdma_listen", addr.String(), cerr.InvalidAs(syscall.EADDRNOTAVAIL,
		"no RDMA device has this loopback address, so the kernel would listen on every address of every device: "+
			"use the address of a device, or no host to listen on all of them"))
}

func (ln *Listener) start(info AddrInfo, config ListenConfig) error {
	if config.ReuseAddr {
		if err := ln.id.SetReuseAddr(true); err != nil {
			return err
		}
	}
	if config.AFOnly {
		if err := ln.id.SetAFOnly(true); err != nil {
			return err
		}
	}
	if err := ln.id.bindInfo(info); err != nil {
		return err
	}
	if err := ln.refuseLoopback(info.Src.Addr()); err != nil {
		return err
	}
	if err := ln.id.listen(config.Backlog, unread); err != nil {
		return err
	}
	ln.addr = ln.id.LocalAddr()
	return nil
}

// handle handles the listening ID's events.
func (ln *Listener) handle(ev *Event) {
	switch ev.Type {
	case EventConnectRequest:
		// The request waits for Accept, or for Close.
		d := ln.dispatcher
		d.keep(ev.ID, &ln.mu, func() bool { return ln.failed == nil && len(ln.requests) < cap(ln.requests) }, func() {
			ln.requests <- &Request{dispatcher: d, event: ev, config: &ln.config}
		})
	case EventDeviceRemoval, EventConnectError:
		ln.end(ev.Err())
	}
}

// end makes Accept return an error from now on.
func (ln *Listener) end(cause error) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if ln.failed == nil {
		ln.failed = cause
		close(ln.closed)
	}
}

// Addr returns the listener's address.
func (ln *Listener) Addr() netip.AddrPort {
	if ln == nil {
		return netip.AddrPort{}
	}
	return ln.addr
}

// check returns an error if ln was not created by Listen.
func (ln *Listener) check() error {
	if ln == nil || ln.closed == nil {
		return notMade("Listener")
	}
	return nil
}

// Device returns the device that has the listener's address. The caller need
// not close it. Device fails for a listener on every address, whose requests
// may each be on another device.
//
// To register memory once for all connections, allocate a protection domain on
// the device, pass it as Config.PD, and close it after the connections. Peers
// of connections with the same protection domain can reach each other's memory
// if they know the keys; see docs/guide/memory.md.
func (ln *Listener) Device() (*ibverbs.Device, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	device, err := ln.id.Device()
	if err != nil && ln.addr.Addr().IsUnspecified() {
		return nil, fmt.Errorf("the listener on %v is not bound to a single device; listen on a device's address: %w", ln.addr, err)
	}
	return device, err
}

// Accept waits for a connection request. The caller must accept or reject the
// request, which also releases its resources. Accept returns an error matching
// ctx.Err() when ctx ends, and one matching os.ErrClosed when the listener is
// closed.
func (ln *Listener) Accept(ctx context.Context) (*Request, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, cerr.Nil("Listener.Accept", "ctx")
	}
	select {
	case <-ln.closed:
		return nil, ln.err()
	default:
	}
	select {
	case req := <-ln.requests:
		req.local, req.peer = req.event.ID.LocalAddr(), req.event.ID.RemoteAddr()
		return req, nil
	case <-ln.closed:
		return nil, ln.err()
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
}

func (ln *Listener) err() error {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return fmt.Errorf("listener on %v: %w", ln.addr, ln.failed)
}

// Close stops listening and rejects the requests that have not been accepted.
// Accepted connections stay up.
func (ln *Listener) Close() error {
	if err := ln.check(); err != nil {
		return err
	}
	ln.end(os.ErrClosed)
	return ln.closer.Do(func() error {
		if err := ln.id.Close(); err != nil {
			return err
		}
		ln.dispatcher.forget(ln.id)
		for {
			select {
			case req := <-ln.requests:
				if err := req.drop(); err != nil {
					ln.requests <- req // there is room, because no more requests arrive
					return err
				}
			default:
				return ln.dispatcher.release()
			}
		}
	})
}

// Serve accepts requests until ctx ends and calls handle for each in its own
// goroutine. It rejects a request that handle neither accepts nor rejects.
// ListenConfig.MaxServed limits the number of concurrent calls.
//
// When ctx ends, so does the context passed to handle. After the end of ctx,
// Serve accepts no more requests, waits for all calls to return, and returns
// nil. Work that should outlast ctx needs another context, such as that of
// context.WithoutCancel. Later requests wait in the backlog until Close rejects
// them. Close may be called while Serve waits.
//
// If the listener fails first, because it was closed or its device was removed,
// Serve cancels the context passed to handle, waits for all calls, and returns
// the error.
//
// A call of handle may block and may call anything, such as Close of the
// listener.
func (ln *Listener) Serve(ctx context.Context, handle func(ctx context.Context, req *Request)) error {
	if err := ln.check(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil("Listener.Serve", "ctx")
	case handle == nil:
		return cerr.Nil("Listener.Serve", "handle")
	}
	inner, cancel := context.WithCancel(ctx)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	for {
		req, err := ln.acceptServed(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		handlers.Go(func() {
			defer ln.served()
			defer func() {
				if req.answer("Listener.Serve") == nil {
					_ = req.drop() // the request is over even after an error
				}
			}()
			handle(inner, req)
		})
	}
}

// acceptServed waits until MaxServed allows another request, and accepts one.
// The request counts until served is called.
func (ln *Listener) acceptServed(ctx context.Context) (*Request, error) {
	if ln.serving != nil {
		select {
		case ln.serving <- struct{}{}:
		case <-ln.closed:
			return nil, ln.err()
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
	}
	req, err := ln.Accept(ctx)
	if err != nil {
		ln.served()
	}
	return req, err
}

func (ln *Listener) served() {
	if ln.serving != nil {
		<-ln.serving
	}
}
