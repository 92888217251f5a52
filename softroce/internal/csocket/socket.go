// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// state is what has become of a socket.
type state int

const (
	idle state = iota // new or bound
	listening
	connecting
	connected
	failed // connecting has failed, and SO_ERROR has the reason
)

// socket is a socket of the program.
type socket struct {
	fd, family  int
	isDatagram  bool
	nonblocking atomic.Bool
	timeouts    [2]atomic.Int64                    // SO_RCVTIMEO and SO_SNDTIMEO in nanoseconds; 0 means none
	watchers    watchers                           // threads that wait for the socket, and epoll sets that have it
	conn        atomic.Pointer[rsocket.Conn]       // set by setConn
	packets     atomic.Pointer[rsocket.PacketConn] // of a socket for datagrams
	accepted    chan *rsocket.Conn                 // connections of a listener that wait for raccept
	done        chan struct{}                      // closed when rclose begins
	ctx         context.Context                    // of connecting; ends when rclose begins
	cancel      context.CancelFunc

	mu       sync.Mutex // guards the fields below
	state    state
	closed   bool
	config   rsocket.Config
	options  options
	binding  *binding       // holds the address that the socket is bound to, until it listens or connects
	local    netip.AddrPort // address that the socket is bound to
	peer     netip.AddrPort // of a socket for datagrams that is connected
	listener *rsocket.Listener
	err      syscall.Errno // what SO_ERROR says
}

// table has the sockets and epoll sets of the program by their descriptors.
var table struct {
	sync.RWMutex
	sockets map[int]*socket
	sets    map[int]*epollSet
}

// find returns the socket of a descriptor, or nil.
func find(fd int32) *socket {
	table.RLock()
	defer table.RUnlock()
	return table.sockets[int(fd)]
}

// newSocket makes a socket. Its descriptor is an eventfd that is never written
// to.
func newSocket(family int) (*socket, syscall.Errno) {
	fd, err := newEventFD()
	if err != 0 {
		return nil, err
	}
	s := &socket{fd: fd, family: family, done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.config.KeepAlive = -1 // as with C, off until SO_KEEPALIVE
	s.options.keepIdle = 7200 * time.Second
	return s, 0
}

// enter makes the socket the program's.
func (s *socket) enter() {
	table.Lock()
	defer table.Unlock()
	if table.sockets == nil {
		table.sockets = map[int]*socket{}
	}
	vacate(s.fd)
	table.sockets[s.fd] = s
}

// vacate ends the socket or epoll set that has the number fd, if there is one:
// the program has closed it with close(2), and a new one has the number now.
// The caller holds the lock of table.
func vacate(fd int) {
	if s := table.sockets[fd]; s != nil {
		delete(table.sockets, fd)
		go s.end()
	}
	if set := table.sets[fd]; set != nil {
		delete(table.sets, fd)
		go set.end()
	}
}

// open is rsocket.
func open(domain, typ, protocol int32) (int, syscall.Errno) {
	const flags = syscall.SOCK_NONBLOCK | syscall.SOCK_CLOEXEC
	protocols := map[int32]int32{syscall.SOCK_STREAM: syscall.IPPROTO_TCP, syscall.SOCK_DGRAM: syscall.IPPROTO_UDP}
	only, known := protocols[typ&^flags]
	if domain != syscall.AF_INET && domain != syscall.AF_INET6 || !known || protocol != 0 && protocol != only {
		return 0, syscall.ENOTSUP
	}
	if err := useDevice(); err != 0 {
		return 0, err
	}
	s, err := newSocket(int(domain))
	if err != 0 {
		return 0, err
	}
	s.isDatagram = typ&^flags == syscall.SOCK_DGRAM
	s.nonblocking.Store(typ&syscall.SOCK_NONBLOCK != 0)
	s.enter()
	return s.fd, 0
}

// closeSocket is rclose. Until the descriptor is closed, it is that of a closed
// socket: poll(2) of the descriptor itself would wait forever.
func closeSocket(fd int32) syscall.Errno {
	table.Lock()
	s, set := table.sockets[int(fd)], table.sets[int(fd)]
	delete(table.sets, int(fd))
	table.Unlock()
	switch {
	case s != nil:
		if !s.end() {
			return syscall.EBADF
		}
		table.Lock()
		defer table.Unlock()
		if table.sockets[s.fd] == s {
			delete(table.sockets, s.fd)
			syscall.Close(s.fd)
		}
	case set != nil:
		set.end()
		syscall.Close(set.fd)
	default:
		return syscall.EBADF
	}
	return 0
}

// end ends what the socket is. Threads that wait for it return. end reports
// whether this is the first call.
func (s *socket) end() bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	s.closed = true
	binding, listener := s.binding, s.listener
	s.mu.Unlock()
	close(s.done)
	s.cancel()
	s.watchers.notify()
	for _, m := range s.watchers.members() {
		m.set.remove(m) // before the descriptor that the set watches is closed
	}
	if binding != nil {
		binding.end()
	}
	if listener != nil {
		listener.Close()
		s.dropAccepted()
	}
	if c := s.conn.Load(); c != nil {
		if s.options.lingers {
			c.SetLinger(int(s.options.linger))
		}
		c.Close()
	}
	if p := s.packets.Load(); p != nil {
		p.Close()
	}
	return true
}

// setConn makes the connection the socket's, and makes it notify the socket's
// watchers.
func (s *socket) setConn(c *rsocket.Conn) {
	sealed.Open(c.Internals()).NotifyOf(s.watchers.notify)
	s.conn.Store(c)
}

// isClosed reports whether rclose has begun.
func (s *socket) isClosed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// dropAccepted closes the connections that wait for raccept.
func (s *socket) dropAccepted() {
	for {
		select {
		case c, more := <-s.accepted:
			if !more {
				return
			}
			c.SetLinger(0)
			c.Close()
		default:
			return
		}
	}
}

// bind is rbind.
func (s *socket) bind(addr netip.AddrPort) syscall.Errno {
	if s.isDatagram {
		return s.bindDatagrams(addr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return syscall.EBADF
	case s.state != idle || s.local.IsValid():
		return syscall.EINVAL
	}
	b, err := bindTo(addr, &s.options)
	if err != nil {
		return errnoOf(err)
	}
	s.binding, s.local = b, netip.AddrPortFrom(addr.Addr(), b.id.LocalAddr().Port())
	return 0
}

// unbind gives the address up, so that the socket can listen or connect there.
// The caller holds s.mu.
func (s *socket) unbind() {
	if s.binding != nil {
		s.binding.end()
		s.binding = nil
	}
}

// listen is rlisten.
func (s *socket) listen(backlog int) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return syscall.EBADF
	case s.isDatagram:
		return syscall.EOPNOTSUPP
	case s.state == listening:
		return 0
	case s.state != idle:
		return syscall.EINVAL
	}
	local := s.local
	if !local.IsValid() {
		local = netip.AddrPortFrom(s.unspecified(), 0)
	}
	network := "rdma"
	if s.family == syscall.AF_INET {
		network = "rdma4"
	} else if s.options.only6 {
		network = "rdma6"
	}
	s.unbind()
	lc := rsocket.ListenConfig{Config: s.config, Backlog: max(backlog, 1), ReuseAddr: s.options.reuse}
	ln, err := lc.Listen(s.ctx, network, local.String())
	if err != nil {
		return errnoOf(err)
	}
	s.listener, s.state, s.accepted = ln, listening, make(chan *rsocket.Conn, 1)
	s.local = netip.AddrPortFrom(local.Addr(), ln.Addr().(rsocket.Addr).Port())
	go s.serve(ln)
	return 0
}

// unspecified returns the address of all interfaces in the socket's family.
func (s *socket) unspecified() netip.Addr {
	if s.family == syscall.AF_INET {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// serve takes the connections of a listener, one more than raccept has taken.
func (s *socket) serve(ln *rsocket.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			s.mu.Lock()
			s.err = errnoOf(err)
			s.mu.Unlock()
			close(s.accepted)
			s.watchers.notify()
			return
		}
		select {
		case s.accepted <- c.(*rsocket.Conn):
			s.watchers.notify()
		case <-s.done:
			c.Close()
		}
	}
}

// accept is raccept.
func (s *socket) accept() (*socket, syscall.Errno) {
	if s.isDatagram {
		return nil, syscall.EOPNOTSUPP
	}
	s.mu.Lock()
	state := s.state
	s.mu.Unlock()
	if state != listening {
		return nil, syscall.EINVAL
	}
	for {
		select {
		case c, more := <-s.accepted:
			if s.isClosed() {
				if more {
					c.Close()
				}
				return nil, syscall.EBADF
			}
			if !more {
				s.mu.Lock()
				defer s.mu.Unlock()
				return nil, s.err
			}
			return s.child(c)
		default:
		}
		if s.isClosed() {
			return nil, syscall.EBADF
		}
		if s.nonblocking.Load() {
			return nil, syscall.EAGAIN
		}
		if err := s.await(pollIn, time.Duration(s.timeouts[0].Load())); err != 0 {
			return nil, err
		}
	}
}

// child makes the socket of an accepted connection. As in C, it begins with
// options of the listener, and does not block if that does not.
func (s *socket) child(c *rsocket.Conn) (*socket, syscall.Errno) {
	child, err := newSocket(s.family)
	if err != 0 {
		c.SetLinger(0)
		c.Close()
		return nil, err
	}
	s.mu.Lock()
	child.config, child.options = s.config, s.options
	s.mu.Unlock()
	child.nonblocking.Store(s.nonblocking.Load())
	child.state = connected
	child.setConn(c)
	child.enter()
	return child, 0
}

// connect is rconnect. As in C, programs may call it again to find out whether
// the socket is connected: librspreload takes a socket of the system after any
// error but EINPROGRESS.
func (s *socket) connect(peer netip.AddrPort) syscall.Errno {
	if s.isDatagram {
		return s.connectDatagrams(peer)
	}
	if err := s.beginConnect(peer); err != 0 || s.conn.Load() != nil {
		return err
	}
	if s.nonblocking.Load() {
		return syscall.EINPROGRESS
	}
	for {
		s.mu.Lock()
		state, err := s.state, s.err
		if state == failed {
			s.state, s.err = idle, 0
		}
		s.mu.Unlock()
		switch {
		case s.isClosed():
			return syscall.EBADF
		case state != connecting:
			return err
		}
		if err := s.await(pollOut, 0); err != 0 {
			return err // the attempt goes on
		}
	}
}

// beginConnect makes a goroutine connect, unless one does or has. If the last
// attempt has failed and the program does not know that yet, it returns the
// reason.
func (s *socket) beginConnect(peer netip.AddrPort) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return syscall.EBADF
	case s.state == connecting, s.state == connected:
		return 0
	case s.state == listening:
		return syscall.EINVAL
	case s.state == failed && s.err != 0:
		err := s.err
		s.state, s.err = idle, 0
		return err
	}
	d := rsocket.Dialer{Config: s.config}
	if s.local.IsValid() {
		d.LocalAddr = s.local.String()
	}
	s.unbind()
	s.state, s.err = connecting, 0
	network := "rdma"
	if s.family == syscall.AF_INET {
		network = "rdma4"
	}
	go func() {
		c, err := d.DialContext(s.ctx, network, peer.String())
		s.connectDone(c, err)
	}()
	return 0
}

// connectDone records the result of connecting.
func (s *socket) connectDone(c any, err error) {
	s.mu.Lock()
	switch conn, _ := c.(*rsocket.Conn); {
	case err != nil:
		s.state, s.err = failed, errnoOf(err)
	case s.closed:
		s.mu.Unlock()
		conn.SetLinger(0)
		conn.Close()
		return
	default:
		s.setConn(conn)
		s.state = connected
		s.keepAlive(conn) // which the program may have changed meanwhile
	}
	s.mu.Unlock()
	s.watchers.notify()
}

// shutdown is rshutdown.
func (s *socket) shutdown(how int32) syscall.Errno {
	if how < syscall.SHUT_RD || how > syscall.SHUT_RDWR {
		return syscall.EINVAL
	}
	if s.isDatagram {
		return syscall.EOPNOTSUPP
	}
	c := s.conn.Load()
	if c == nil {
		return syscall.ENOTCONN
	}
	if how != syscall.SHUT_RD {
		if err := c.CloseWrite(); err != nil {
			return errnoOf(err)
		}
	}
	if how != syscall.SHUT_WR {
		if err := c.CloseRead(); err != nil {
			return errnoOf(err)
		}
	}
	return 0
}

// peerName returns the peer's address.
func (s *socket) peerName() (netip.AddrPort, syscall.Errno) {
	c := s.conn.Load()
	if c == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.peer.IsValid() {
			return s.peer, 0
		}
		return netip.AddrPort{}, syscall.ENOTCONN
	}
	return c.RemoteAddr().(rsocket.Addr).AddrPort, 0
}

// name returns the socket's own address.
func (s *socket) name() netip.AddrPort {
	if c := s.conn.Load(); c != nil {
		return c.LocalAddr().(rsocket.Addr).AddrPort
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// binding holds an address until the socket that is bound to it listens or
// connects.
type binding struct {
	channel *rdmacm.EventChannel
	id      *rdmacm.ID
}

// bindTo binds to an address.
func bindTo(addr netip.AddrPort, o *options) (*binding, error) {
	channel, err := rdmacm.NewEventChannel()
	if err != nil {
		return nil, err
	}
	b := &binding{channel: channel}
	if b.id, err = channel.NewID(rdmacm.PortSpaceTCP); err != nil {
		b.end()
		return nil, err
	}
	if o.reuse {
		err = b.id.SetReuseAddr(true)
	}
	if err == nil && o.only6 {
		err = b.id.SetAFOnly(true)
	}
	if err == nil {
		err = b.id.BindAddr(addr)
	}
	if err != nil {
		b.end()
		return nil, err
	}
	return b, nil
}

// end gives up the address.
func (b *binding) end() {
	if b.id != nil {
		b.id.Close()
	}
	b.channel.Close()
}
