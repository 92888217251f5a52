// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// Server serves clients, one after the other: while one has a session, others
// are refused. A client that vanishes is noticed within some seconds.
type Server struct {
	// Tell, if not nil, is called when a client comes, has gone, or is refused,
	// one call after the other.
	Tell func(Happening)
	// Clients is how many clients are served; 0 means any number.
	Clients int

	ln  *rdmacm.Listener
	end context.CancelFunc // ends Serve

	mu      sync.Mutex
	current *visit
	served  int
	telling sync.Mutex
}

// Happening is what a server tells.
type Happening struct {
	Event  string // connected, ended or refused
	Client netip.AddrPort
	Err    error // why a client was refused, or has not ended in an orderly way
}

// visit is the session of a client at the server.
type visit struct {
	token       uint64
	ctx         context.Context // ends with the session
	cancel      context.CancelFunc
	connections sync.WaitGroup
}

const (
	most     = 64              // connections of all clients, with those that are refused
	longest  = time.Hour       // time of a session
	vanished = 2 * time.Second // time after which an end checks that the other is there
)

// Listen makes the server listen. It must be served and closed.
func (s *Server) Listen(ctx context.Context, address string) (err error) {
	s.ln, err = rdmacm.Listen(ctx, address, &rdmacm.ListenConfig{MaxServed: most})
	return err
}

// Addr returns the address of the listener.
func (s *Server) Addr() netip.AddrPort { return s.ln.Addr() }

// Serve serves clients until ctx ends, or until there were enough.
func (s *Server) Serve(ctx context.Context) error {
	ctx, s.end = context.WithCancel(ctx)
	defer s.end()
	return s.ln.Serve(ctx, s.handle)
}

// Close closes the listener, after Serve has returned.
func (s *Server) Close() error { return s.ln.Close() }

func (s *Server) tell(h Happening) {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.Tell != nil {
		s.Tell(h)
	}
}

// errBusy is why a server refuses the session of a second client.
var errBusy = errors.New("another client has a session")

func (s *Server) handle(ctx context.Context, request *rdmacm.Request) {
	g, err := parse(request.PrivateData())
	switch {
	case err != nil:
	case g.service == session:
		if v := s.enter(ctx); v != nil {
			s.host(v, request)
			return
		}
		err = errBusy
	default:
		if err = s.serve(request, g); err == nil {
			return
		}
	}
	reason := []byte(err.Error())
	err = errors.Join(err, request.Reject(reason[:min(len(reason), MaxRejection)]))
	s.tell(Happening{"refused", request.RemoteAddr(), err})
}

// serve serves a connection of the session.
func (s *Server) serve(request *rdmacm.Request, g greeting) error {
	v := s.visit(g.token)
	if v == nil {
		return errors.New("the client has no session")
	}
	defer v.connections.Done()
	return v.serve(request, g)
}

// visit returns the session with the token, with one connection more, or nil.
func (s *Server) visit(token uint64) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil || s.current.token != token || s.current.ctx.Err() != nil {
		return nil
	}
	s.current.connections.Add(1)
	return s.current
}

// enter begins a session, unless there is one.
func (s *Server) enter(ctx context.Context) *visit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil || s.Clients > 0 && s.served >= s.Clients {
		return nil
	}
	v := &visit{token: rand.Uint64() | 1}
	v.ctx, v.cancel = context.WithTimeout(ctx, longest)
	s.current = v
	return v
}

// host accepts a session and waits for its end.
func (s *Server) host(v *visit, request *rdmacm.Request) {
	client := request.RemoteAddr()
	conn, err := request.Accept(v.ctx, &rdmacm.Config{
		SendQueue: 1, RecvQueue: 1, ReadDepth: -1, KeepAlive: vanished, PrivateData: binary.BigEndian.AppendUint64(nil, v.token),
	})
	accepted := err == nil
	if accepted {
		s.tell(Happening{Event: "connected", Client: client})
		err = errors.Join(orderly(conn.Wait(v.ctx)), conn.Close())
	}
	v.cancel()
	v.connections.Wait()
	s.mu.Lock()
	s.current = nil
	if accepted {
		s.served++
	}
	enough := s.Clients > 0 && s.served >= s.Clients
	s.mu.Unlock()
	switch {
	case accepted:
		s.tell(Happening{"ended", client, err})
	default:
		s.tell(Happening{"refused", client, err})
	}
	if enough {
		s.end()
	}
}

// orderly removes the error of a peer that has closed its connection, and that
// of the end of a context.
func orderly(err error) error {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
