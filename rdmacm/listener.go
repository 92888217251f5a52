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
)

// Listener waits for connections. Its methods may be called concurrently.
type Listener struct {
	dispatcher *dispatcher
	id         *ID
	addr       netip.AddrPort
	requests   chan *Request // each uses the dispatcher
	serving    chan struct{} // has an element for each request that Serve handles; nil without a limit
	closed     chan struct{}
	closer     closer

	mu     sync.Mutex
	failed error // why closed is closed
}

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	// Backlog is how many requests may wait for Accept, up to 65536; 0 stands
	// for 128. Further ones are rejected. If more than the system's
	// net.rdma_ucm.max_backlog arrive at once, some are not answered at all,
	// and their peers ask again some seconds later.
	Backlog int
	// MaxServed is the most requests that Serve handles at once; 0 stands for no
	// limit. Further ones wait as Backlog says.
	MaxServed int
	// ReuseAddr lets ids that do not listen share the address; of those that
	// have it, one at a time can listen. AFOnly keeps a listener at all
	// addresses of IPv6 from taking those of IPv4 too.
	ReuseAddr, AFOnly bool
}

// Listen waits for connections at host:port. Without a host it listens on
// every address of every device, for both IPv4 and IPv6; port 0 lets the
// system choose one. The config may be nil.
//
// A loopback address, such as 127.0.0.1, is refused with
// syscall.EADDRNOTAVAIL: the kernel takes it for every address of every device,
// so that the listener would be open to the network, but not to who dials the
// loopback address.
//
// If the device is removed that has the address, Accept returns an error that
// is syscall.ENODEV, and the listener is to be closed. One without a host goes
// on, with whatever devices there are.
func Listen(ctx context.Context, address string, config *ListenConfig) (*Listener, error) {
	if err := ended("Listen", ctx); err != nil {
		return nil, err
	}
	ln, err := config.listen(ctx, PortSpaceTCP, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return ln, nil
}

// withDefaults returns a copy in which no zero value is left to interpret.
func (c *ListenConfig) withDefaults() ListenConfig {
	var out ListenConfig
	if c != nil {
		out = *c
	}
	out.Backlog = backlogOf(out.Backlog)
	return out
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
	if err := refuseLoopback(info.Src.Addr()); err != nil {
		return nil, err
	}
	config := c.withDefaults()
	d, id, err := newDispatchedID(info.PortSpace, ownDispatcher)
	if err != nil {
		return nil, err
	}
	ln := &Listener{
		dispatcher: d, id: id,
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

// refuseLoopback keeps what is meant for this machine alone from being open to
// the network.
func refuseLoopback(addr netip.Addr) error {
	if !addr.IsLoopback() {
		return nil
	}
	return cerr.Argument("rdma_listen", addr.String(), cerr.InvalidAs(syscall.EADDRNOTAVAIL,
		"the kernel takes a loopback address for every address of every RDMA device: "+
			"listen at the address of a device, or without a host at every one"))
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
	if err := ln.id.listen(config.Backlog, unread); err != nil {
		return err
	}
	ln.addr = ln.id.LocalAddr()
	return nil
}

// handle is the handler of the listening id's events.
func (ln *Listener) handle(ev *Event) {
	switch ev.Type {
	case EventConnectRequest:
		// Kept for Accept, or for Close.
		d := ln.dispatcher
		d.keep(ev.ID, &ln.mu, func() bool { return ln.failed == nil && len(ln.requests) < cap(ln.requests) }, func() {
			ln.requests <- &Request{dispatcher: d, event: ev}
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

// Addr returns the address that the listener has.
func (ln *Listener) Addr() netip.AddrPort { return ln.addr }

// check returns an error for what Listen has not made.
func (ln *Listener) check() error {
	if ln == nil || ln.closed == nil {
		return notMade("Listener")
	}
	return nil
}

// Device returns the device that has the listener's address. A protection domain
// that is made on it can serve all connections, as Config.PD, so that memory need
// be registered only once. A listener at every address has no one device, and
// Device fails; its requests have theirs.
func (ln *Listener) Device() (*ibverbs.Device, error) {
	if err := ln.check(); err != nil {
		return nil, err
	}
	device, err := ln.id.Context()
	if err != nil && ln.addr.Addr().IsUnspecified() {
		return nil, fmt.Errorf("listener at %v has no one device; listen at an address of one: %w", ln.addr, err)
	}
	return device, err
}

// Accept waits for a request to connect. The request must be accepted or
// rejected, which also gives its resources back. Accept returns an error that
// is ctx.Err() when ctx ends, and one that is os.ErrClosed on Close.
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
	return fmt.Errorf("listener at %v: %w", ln.addr, ln.failed)
}

// Close stops listening and rejects the requests that nobody has accepted.
// Connections that were accepted stay up.
func (ln *Listener) Close() error {
	if err := ln.check(); err != nil {
		return err
	}
	ln.end(os.ErrClosed)
	return ln.closer.do(func() error {
		if err := ln.id.Close(); err != nil {
			return err
		}
		ln.dispatcher.forget(ln.id)
		for {
			select {
			case req := <-ln.requests:
				if err := req.drop(); err != nil {
					ln.requests <- req // there is room, as no more come
					return err
				}
			default:
				return ln.dispatcher.release()
			}
		}
	})
}

// Serve calls handle with each request, in a goroutine of its own, until ctx
// ends, and returns when all of these have returned: nil then, for that is how a
// server ends. A request that handle neither accepts nor rejects is rejected.
// ListenConfig.MaxServed bounds how many there are at once.
//
// Requests that come after that wait, until Close of the listener rejects them.
//
// If no more requests can be accepted before, because the device was removed or
// the listener closed, Serve ends the context that handle has, and returns why.
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
					_ = req.drop() // it is over whatever becomes of it
				}
			}()
			handle(inner, req)
		})
	}
}

// acceptServed is Accept within ListenConfig.MaxServed. The request counts until
// served.
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
