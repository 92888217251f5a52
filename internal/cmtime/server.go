package cmtime

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/verbena-go/verbena/rdmacm"
)

// maxWaiting is how many requests may wait to be read; the kernel allows fewer.
const maxWaiting = 1 << 16

// server accepts every connection, and gives each up when its peer does.
type server struct {
	*options
	channel  *rdmacm.EventChannel
	domains  domains
	requests chan *node // to be accepted
	ended    chan *node // to be given up
	mu       sync.Mutex
	nodes    map[*node]bool // there are
	failed   []error
}

func (s *server) run(ctx context.Context) (err error) {
	s.nodes = map[*node]bool{}
	s.requests, s.ended = make(chan *node, maxWaiting), make(chan *node, maxWaiting)
	listener, err := s.channel.NewID(rdmacm.PortSpaceTCP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	if err := listener.BindAddr(netip.AddrPortFrom(s.bind, s.port)); err != nil {
		return err
	}
	if err := listener.Listen(0); err != nil {
		return err
	}
	var working sync.WaitGroup
	working.Go(func() { s.work(s.requests, s.accept) })
	working.Go(func() { s.work(s.ended, s.end) })
	err = s.read(ctx)
	close(s.requests)
	close(s.ended)
	working.Wait()
	for n := range s.nodes {
		err = errors.Join(err, n.close())
	}
	return errors.Join(append([]error{err, s.domains.close()}, s.failed...)...)
}

// read hands events over until ctx ends.
func (s *server) read(ctx context.Context) error {
	for ev, err := range s.channel.Events(ctx) {
		if err != nil {
			return err
		}
		switch ev.Type {
		case rdmacm.EventConnectRequest:
			n := &node{id: ev.ID}
			n.id.SetValue(n)
			s.mu.Lock()
			s.nodes[n] = true
			s.mu.Unlock()
			s.requests <- n
		case rdmacm.EventDisconnected, rdmacm.EventConnectError, rdmacm.EventRejected, rdmacm.EventUnreachable:
			s.ended <- ev.ID.Value().(*node)
		}
	}
	return nil
}

func (s *server) work(nodes <-chan *node, f func(*node) error) {
	for n := range nodes {
		if err := f(n); err != nil {
			s.mu.Lock()
			s.failed = append(s.failed, err)
			s.mu.Unlock()
		}
	}
}

func (s *server) accept(n *node) error {
	if err := s.domains.createQP(n.id); err != nil {
		return errors.Join(err, s.forget(n))
	}
	if err := n.id.Accept(rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1}); err != nil {
		return errors.Join(err, s.forget(n))
	}
	return nil
}

func (s *server) end(n *node) error {
	_ = n.id.Disconnect() // which is how it may have ended
	return s.forget(n)
}

func (s *server) forget(n *node) error {
	s.mu.Lock()
	delete(s.nodes, n)
	s.mu.Unlock()
	return n.close()
}
