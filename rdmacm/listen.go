package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
)

// Listener waits for connections. Its methods may be called concurrently.
type Listener struct {
	dispatcher *dispatcher
	id         *ID
	addr       netip.AddrPort
	requests   chan *Event
	closed     chan struct{}

	mu     sync.Mutex
	closer closer
	failed error
}

// Listen waits for connections at host:port. Without a host it listens on
// every address of every device, for both IPv4 and IPv6; port 0 lets the
// system choose one. The config may be nil.
func Listen(ctx context.Context, address string, config *ListenConfig) (*Listener, error) {
	backlog := defaultBacklog
	if config != nil && config.Backlog > 0 {
		backlog = config.Backlog
	}
	ln, err := listen(ctx, address, backlog)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return ln, nil
}

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	// Backlog is how many requests may wait for Accept; 0 stands for 128.
	// Further ones are rejected.
	Backlog int
}

func listen(ctx context.Context, address string, backlog int) (*Listener, error) {
	addrs, err := lookup(ctx, address)
	if err != nil {
		return nil, err
	}
	d, err := newDispatcher()
	if err != nil {
		return nil, err
	}
	id, err := d.channel.NewID(PortSpaceTCP)
	if err != nil {
		return nil, errors.Join(err, d.release())
	}
	ln := &Listener{
		dispatcher: d, id: id,
		requests: make(chan *Event, backlog), closed: make(chan struct{}),
	}
	d.handle(id, ln.handle)
	if err := ln.start(addrs[0], backlog); err != nil {
		return nil, errors.Join(err, id.Close(), d.release())
	}
	return ln, nil
}

func (ln *Listener) start(addr netip.AddrPort, backlog int) error {
	if err := ln.id.BindAddr(addr); err != nil {
		return err
	}
	if err := ln.id.Listen(backlog); err != nil {
		return err
	}
	ln.addr = ln.id.LocalAddr()
	return nil
}

// handle is the handler of the listening id's events.
func (ln *Listener) handle(ev *Event) {
	switch ev.Type {
	case EventConnectRequest:
		select {
		case ln.requests <- ev:
		default: // nobody accepts; the peer may try again
			_ = ev.ID.Reject(nil)
			_ = ev.ID.Close()
		}
	case EventDeviceRemoval, EventConnectError:
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if ln.failed == nil {
			ln.failed = ev.Err()
			close(ln.closed)
		}
	}
}

// Addr returns the address that the listener has.
func (ln *Listener) Addr() Addr { return Addr{ln.addr} }

// Accept waits for a request to connect. The request must be accepted or
// rejected. Accept returns an error that is ctx.Err() when ctx ends, and one
// that is os.ErrClosed on Close.
func (ln *Listener) Accept(ctx context.Context) (*Request, error) {
	select {
	case <-ln.closed:
		return nil, ln.err()
	default:
	}
	select {
	case ev := <-ln.requests:
		ln.dispatcher.acquire()
		return &Request{dispatcher: ln.dispatcher, event: ev}, nil
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
	ln.mu.Lock()
	if ln.failed == nil {
		ln.failed = os.ErrClosed
		close(ln.closed)
	}
	ln.mu.Unlock()
	return ln.closer.do(func() error {
		if err := ln.id.Close(); err != nil {
			return err
		}
		ln.dispatcher.handle(ln.id, nil)
		for {
			select {
			case ev := <-ln.requests:
				_ = ev.ID.Reject(nil)
				if err := ev.ID.Close(); err != nil {
					return err
				}
			default:
				return ln.dispatcher.release()
			}
		}
	})
}

// Request is a connection that a peer asks for.
type Request struct {
	dispatcher *dispatcher
	event      *Event
}

// PrivateData returns what the peer sent with the request, and zeros up to the
// transport's maximum.
func (r *Request) PrivateData() []byte { return r.event.PrivateData }

// RemoteAddr returns the peer's address.
func (r *Request) RemoteAddr() Addr { return Addr{r.event.ID.PeerAddr()} }

// LocalAddr returns the address that the peer connects to.
func (r *Request) LocalAddr() Addr { return Addr{r.event.ID.LocalAddr()} }

// Event returns the event that brought the request.
func (r *Request) Event() *Event { return r.event }

// Accept makes the connection and returns when it is up. After an error the
// request is over; the peer was told. The config may be nil.
func (r *Request) Accept(ctx context.Context, config *Config) (*Conn, error) {
	conn, err := r.accept(ctx, config.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return conn, nil
}

func (r *Request) accept(ctx context.Context, config Config) (*Conn, error) {
	id := r.event.ID
	conn, err := newConn(r.dispatcher, id, config)
	if err != nil {
		return nil, err
	}
	fail := func(err error) error {
		_ = id.Reject(nil) // so that the peer need not wait for its timeout
		return errors.Join(err, conn.Close())
	}
	if config.ManualQP {
		if err := conn.moveQP(statesToRTS...); err != nil {
			return nil, fail(err)
		}
	}
	p, err := conn.param(r.event)
	if err != nil {
		return nil, fail(err)
	}
	if err := id.Accept(p); err != nil {
		return nil, fail(err)
	}
	if err := conn.handshake(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Reject refuses the connection. The peer gets the private data, of up to 148
// bytes.
func (r *Request) Reject(privateData []byte) error {
	return errors.Join(r.event.ID.Reject(privateData), r.event.ID.Close(), r.dispatcher.release())
}
