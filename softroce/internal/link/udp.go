//go:build linux

package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// UDPPort is the port of RoCE version 2.
const UDPPort = 4791

const (
	// maxDatagram is how long a datagram may be: the longest header, 4096 bytes and the ICRC fit.
	maxDatagram = 4352
	// batch is how many datagrams one system call receives.
	batch = 32
	// outgoing is how many datagrams wait at most until the system takes them. More are dropped.
	outgoing = 256
	// receiveBuffer is what is asked of the system, which may give less: net.core.rmem_max.
	receiveBuffer = 4 << 20
	// usualHops is a socket's hop limit.
	usualHops = 64
)

// Datagram is one that has arrived.
type Datagram struct {
	From         netip.AddrPort
	Data         []byte // valid until the function returns that has got it
	TrafficClass uint8
	HopLimit     uint8
}

// Socket is where the datagrams of one address of the machine come from and go to. Its owner calls Send and Flush, one at a time.
type Socket struct {
	addr netip.Addr
	conn *net.UDPConn
	raw  syscall.RawConn
	done chan struct{} // closed when nothing is received any more; nil before Start

	mu      sync.Mutex
	out     sender
	blocked atomic.Bool // the system takes no more for now
	resume  func()
}

// OpenUDP opens the socket of an address, which has a zone if it is one that means nothing without. What it sends has the
// identification 0 in IPv4's header and is never fragmented. The error matches syscall.EADDRINUSE if somebody has the port.
func OpenUDP(addr netip.Addr) (*Socket, error) {
	conn, err := listenUDP(addr, UDPPort)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Socket{addr: addr, conn: conn, raw: raw}, nil
}

func listenUDP(addr netip.Addr, port int) (*net.UDPConn, error) {
	network := "udp4"
	if addr.Is6() {
		network = "udp6"
	}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = prepare(int(fd), addr.Is6()) }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := config.ListenPacket(context.Background(), network, net.JoinHostPort(addr.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// Options that package syscall does not have.
const (
	ipPMTUDiscDo     = 2
	udpNoCheck6RX    = 102
	ipv6RecvHopLimit = 51
	ipv6HopLimit     = 52
	ipv6RecvTClass   = 66
	ipv6TClass       = 67
	ipv6MTUDiscover  = 23
)

// prepare sets a socket's options.
func prepare(fd int, is6 bool) error {
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer)
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, receiveBuffer)
	type option struct{ level, name, value int }
	options := []option{
		{syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, ipPMTUDiscDo},
		{syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1},
		{syscall.IPPROTO_IP, syscall.IP_RECVTTL, 1},
		{syscall.IPPROTO_IP, syscall.IP_TTL, usualHops},
	}
	if is6 {
		options = []option{
			{syscall.IPPROTO_IPV6, ipv6MTUDiscover, ipPMTUDiscDo},
			{syscall.IPPROTO_IPV6, ipv6RecvTClass, 1},
			{syscall.IPPROTO_IPV6, ipv6RecvHopLimit, 1},
			{syscall.IPPROTO_IPV6, syscall.IPV6_UNICAST_HOPS, usualHops},
			{syscall.IPPROTO_UDP, udpNoCheck6RX, 1}, // Linux's driver sends none
		}
	}
	for _, o := range options {
		if err := syscall.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("option %d of level %d: %w", o.name, o.level, err)
		}
	}
	return nil
}

// Addr returns the address of the socket.
func (s *Socket) Addr() netip.Addr { return s.addr }

// Start lets receive have what arrives, and resume know that Blocked has become false, until Close. They are called by
// goroutines of the socket's.
func (s *Socket) Start(receive func([]Datagram), resume func()) {
	s.done = make(chan struct{})
	s.resume = resume
	go func() {
		defer close(s.done)
		var r receiver
		for {
			got, err := r.receive(s.raw)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if len(got) > 0 {
				receive(got)
			}
		}
	}()
}

// Close closes the socket. The functions that Start got may still be called for what has just arrived.
func (s *Socket) Close() error { return s.conn.Close() }

// Send sends a datagram of size bytes, which fill writes; if it returns false there is none. It may leave that to Flush. It does
// not block: what the system has no room for is lost, as on a network.
func (s *Socket) Send(to netip.Addr, class, hops uint8, size int, fill func(b []byte) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > maxDatagram {
		return
	}
	if s.out.full() && !s.blocked.Load() {
		s.flush()
	}
	if s.out.full() {
		return
	}
	if fill(s.out.buffer(size)) {
		s.out.add(to, class, hops)
	}
}

// Flush sends what is left of what was sent.
func (s *Socket) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.len() > 0 && !s.blocked.Load() {
		s.flush()
	}
}

// Blocked reports whether the system takes no more for now.
func (s *Socket) Blocked() bool { return s.blocked.Load() }

// flush gives the system what is waiting. Whoever calls it has s.mu.
func (s *Socket) flush() {
	sent := true
	_ = s.raw.Control(func(fd uintptr) { sent = s.out.send(fd) })
	if sent {
		return
	}
	s.blocked.Store(true)
	go func() {
		_ = s.raw.Write(func(fd uintptr) bool { // returns when all is sent, or the socket closed
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.out.send(fd)
		})
		s.blocked.Store(false)
		if s.resume != nil {
			s.resume()
		}
	}()
}
