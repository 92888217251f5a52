// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// UDPPort is the UDP port of RoCE version 2.
const UDPPort = 4791

const (
	// maxDatagram is the size in bytes of the longest packet: headers, 4096
	// bytes and the ICRC.
	maxDatagram = 4352
	// batch is the number of datagrams that one system call receives.
	batch = 16
	// maxSegments limits the number of datagrams in a message that the
	// system cuts into datagrams (UDP_SEGMENT), and maxTrain the number of
	// their bytes.
	maxSegments = 64
	maxTrain    = 65507
	// outgoing limits the number of datagrams that wait until the system
	// takes them. Further ones are dropped.
	outgoing = 256
	// buffer is the requested size of socket buffers, in bytes. Without
	// privileges, the system's limit may be lower (net.core.rmem_max).
	buffer = 4 << 20
	// usualHops is the default hop limit of a socket.
	usualHops = 64
	// usualClass is the default traffic class of a socket. Packets of
	// connections have it: it lets routers mark them (ECT(0)).
	usualClass = 2
)

// Datagram is a received datagram.
type Datagram struct {
	From         netip.AddrPort
	Data         []byte // valid until the function that gets the datagram returns
	TrafficClass uint8
	HopLimit     uint8
}

// Socket sends and receives UDP datagrams with one of the machine's addresses.
// Send and Flush must not be called concurrently.
type Socket struct {
	addr netip.Addr
	conn io.Closer
	raw  syscall.RawConn

	poller *Poller      // poller of the socket; set by Start
	fd     int32        // descriptor for the poller, which may use it once more after Close
	pause  receivePause // pause in receiving; the poller uses it

	using     sync.RWMutex // held for reading during a system call with the descriptor
	receiving sync.Mutex   // held from receiving datagrams until they were handled, which keeps them in order
	in        receiver
	receive   func([]Datagram)                 // handles datagrams; set by Start
	refused   func(to netip.Addr, data []byte) // handles refusals; set by Start

	mu      sync.Mutex
	out     sender      // datagrams that the system has not taken
	blocked atomic.Bool // whether the system has no room for datagrams
	stuck   bool        // whether GiveUp was called and the system has taken no datagram since
	closed  bool
	resume  func() // called when blocked has become false; set by Start
}

// OpenUDP opens a socket with the port UDPPort on addr. A link-local addr must
// have a zone. Datagrams are sent unfragmented, with the IPv4 identification 0.
//
// If the system supports UDP_SEGMENT and renumber is not nil, several datagrams
// may be passed to the system as one message. The system then gives them the
// identifications 0, 1, 2 and so on. If the network device cannot send such a
// message, the datagrams are sent one by one. renumber changes the checksum of
// such a datagram from the one for the identification id to the one for 0.
//
// OpenUDP fails with an error matching syscall.EADDRINUSE if the port is in
// use. It also fails if the system refuses the calls that send and receive, as
// a sandbox may.
func OpenUDP(addr netip.Addr, renumber func(b []byte, id uint16)) (*Socket, error) {
	trains := false
	s, err := openSocket(addr, func(fd int) error {
		trains = syscall.SetsockoptInt(fd, syscall.IPPROTO_UDP, udpSegment, 0) == nil
		return prepareSender(fd, addr)
	})
	if err != nil {
		return nil, err
	}
	s.out.renumber, s.out.trains = renumber, trains && renumber != nil
	return s, nil
}

// OpenGroup opens a socket that receives datagrams to a multicast group. It
// receives those that arrive on the interfaces with the given addresses.
// Several sockets may receive the datagrams of one group. The socket cannot
// send.
func OpenGroup(group netip.Addr, addrs []netip.Addr) (*Socket, error) {
	s, err := openSocket(group, func(fd int) error {
		return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	})
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if a.Is4() != group.Is4() {
			continue
		}
		// Errors are ignored: an interface without multicast receives nothing,
		// and an interface with two addresses has already joined.
		_ = s.raw.Control(func(fd uintptr) {
			if group.Is4() {
				_ = syscall.SetsockoptIPMreq(int(fd), syscall.IPPROTO_IP, syscall.IP_ADD_MEMBERSHIP,
					&syscall.IPMreq{Multiaddr: group.As4(), Interface: a.As4()})
			} else if index, err := interfaceOf(a); err == nil {
				_ = syscall.SetsockoptIPv6Mreq(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_JOIN_GROUP,
					&syscall.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
			}
		})
	}
	return s, nil
}

// openSocket opens a socket on addr with the port UDPPort. It calls more to set
// further options.
func openSocket(addr netip.Addr, more func(fd int) error) (*Socket, error) {
	file, err := bindUDP(addr, UDPPort, more)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	s := &Socket{addr: addr, conn: file, raw: raw}
	if cerr := raw.Control(func(fd uintptr) { s.fd, err = int32(fd), tryCalls(fd) }); cerr != nil || err != nil {
		file.Close()
		return nil, errors.Join(cerr, err)
	}
	return s, nil
}

// interfaceOf returns the index of the interface that has the address a.
func interfaceOf(a netip.Addr) (int, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		if slices.ContainsFunc(addrs, func(b net.Addr) bool {
			prefix, err := netip.ParsePrefix(b.String())
			return err == nil && prefix.Addr().WithZone("") == a.WithZone("")
		}) {
			return i.Index, nil
		}
	}
	return 0, syscall.EADDRNOTAVAIL
}

// prepareSender makes multicast datagrams leave through the interface with the
// address addr, if that interface supports multicast.
func prepareSender(fd int, addr netip.Addr) error {
	if addr.Is4() {
		_ = syscall.SetsockoptInet4Addr(fd, syscall.IPPROTO_IP, syscall.IP_MULTICAST_IF, addr.As4())
		return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, syscall.IP_MULTICAST_TTL, usualHops))
	}
	if index, err := interfaceOf(addr); err == nil {
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_MULTICAST_IF, index)
	}
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_MULTICAST_HOPS, usualHops))
}

// bindUDP returns a socket that is bound to an address, which may be a
// multicast address. If more is not nil, bindUDP calls it to set further
// options. The socket does not use Go's netpoller.
func bindUDP(addr netip.Addr, port int, more func(fd int) error) (file *os.File, err error) {
	family := syscall.AF_INET
	if addr.Is6() {
		family = syscall.AF_INET6
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file = os.NewFile(uintptr(fd), "udp")
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err := prepare(fd, addr.Is6()); err != nil {
		return nil, err
	}
	if more != nil {
		if err := more(fd); err != nil {
			return nil, err
		}
	}
	at, err := socketAddress(addr, port)
	if err != nil {
		return nil, err
	}
	if err := syscall.Bind(fd, at); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	return file, nil
}

// listenUDP is like bindUDP, but returns a connection of package net.
func listenUDP(addr netip.Addr, port int) (*net.UDPConn, error) {
	file, err := bindUDP(addr, port, nil)
	if err != nil {
		return nil, err
	}
	defer file.Close() // FilePacketConn has its own descriptor
	c, err := net.FilePacketConn(file)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

// socketAddress returns an address and port in the form of system calls.
func socketAddress(a netip.Addr, port int) (syscall.Sockaddr, error) {
	if a.Is4() {
		return &syscall.SockaddrInet4{Addr: a.As4(), Port: port}, nil
	}
	at := &syscall.SockaddrInet6{Addr: a.As16(), Port: port}
	if zone := a.Zone(); zone != "" {
		if index, err := strconv.ParseUint(zone, 10, 32); err == nil {
			at.ZoneId = uint32(index)
		} else {
			i, err := net.InterfaceByName(zone)
			if err != nil {
				return nil, err
			}
			at.ZoneId = uint32(i.Index)
		}
	}
	return at, nil
}

// Socket options that package syscall does not define.
const (
	ipPMTUDiscDo     = 2
	udpNoCheck6RX    = 102
	udpSegment       = 103
	udpGRO           = 104
	ipv6RecvHopLimit = 51
	ipv6HopLimit     = 52
	ipv6RecvTClass   = 66
	ipv6TClass       = 67
	ipv6MTUDiscover  = 23
)

// prepare sets the options of a socket.
func prepare(fd int, is6 bool) error {
	enlarge(fd, syscall.SO_RCVBUFFORCE, syscall.SO_RCVBUF)
	enlarge(fd, syscall.SO_SNDBUFFORCE, syscall.SO_SNDBUF)
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_UDP, udpGRO, 1) // the system may combine datagrams that arrive together
	type option struct{ level, name, value int }
	options := []option{
		{syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, ipPMTUDiscDo},
		{syscall.IPPROTO_IP, syscall.IP_TOS, usualClass},
		{syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1},
		{syscall.IPPROTO_IP, syscall.IP_RECVTTL, 1},
		{syscall.IPPROTO_IP, syscall.IP_TTL, usualHops},
		{syscall.IPPROTO_IP, syscall.IP_RECVERR, 1},
	}
	if is6 {
		options = []option{
			{syscall.IPPROTO_IPV6, ipv6MTUDiscover, ipPMTUDiscDo},
			{syscall.IPPROTO_IPV6, ipv6TClass, usualClass},
			{syscall.IPPROTO_IPV6, ipv6RecvTClass, 1},
			{syscall.IPPROTO_IPV6, ipv6RecvHopLimit, 1},
			{syscall.IPPROTO_IPV6, syscall.IPV6_UNICAST_HOPS, usualHops},
			{syscall.IPPROTO_UDP, udpNoCheck6RX, 1}, // Linux's driver sends no checksums
			{syscall.IPPROTO_IPV6, syscall.IPV6_RECVERR, 1},
		}
	}
	for _, o := range options {
		if err := syscall.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("setsockopt: option %d of level %d: %w", o.name, o.level, err)
		}
	}
	return nil
}

// enlarge makes a socket buffer as large as the system permits. force is the
// socket option that needs privileges, and usual the one that does not.
func enlarge(fd, force, usual int) {
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, force, buffer) != nil { // needs CAP_NET_ADMIN
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, usual, buffer)
	}
}

// ReceiveBuffer returns the size in bytes of the receive buffer that a socket
// gets, or 0 if the size is unknown. Each datagram in the buffer also takes
// room for the system's overhead.
func ReceiveBuffer() int {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer syscall.Close(fd)
	enlarge(fd, syscall.SO_RCVBUFFORCE, syscall.SO_RCVBUF)
	n, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF)
	if err != nil {
		return 0
	}
	return n
}

// Addr returns the address of the socket.
func (s *Socket) Addr() netip.Addr { return s.addr }

// Start lets the poller receive from the socket, until Close. It sets three
// functions. receive is called with datagrams that have arrived. refused is
// called when a host reports that no process has the port open; it gets the
// address of the host and the beginning of the datagram. resume is called when
// Blocked has become false.
//
// While the system refuses to receive, for lack of memory or in a sandbox that
// was set up later, nothing arrives.
func (s *Socket) Start(p *Poller, receive func([]Datagram), refused func(to netip.Addr, data []byte), resume func()) {
	s.receive, s.refused, s.resume, s.poller = receive, refused, resume, p
	p.add(s)
}

// take handles the datagrams that have arrived. If hasErrors is true, it also
// handles the refusals.
func (s *Socket) take(hasErrors bool) syscall.Errno {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	e := s.pass()
	if hasErrors {
		s.passErrors()
	}
	return e
}

// Poll handles the datagrams that have arrived, unless another thread is doing
// that. It reports whether it has received any.
func (s *Socket) Poll() bool {
	if !s.receiving.TryLock() {
		return false
	}
	defer s.receiving.Unlock()
	return s.pass() == 0
}

// pass receives datagrams and calls s.receive with them. The caller holds
// s.receiving. Close waits until use has returned, and the caller of Close may
// hold a lock that s.receive takes. So pass does not call s.receive within use.
func (s *Socket) pass() (e syscall.Errno) {
	var got []Datagram
	if err := s.use(func(fd uintptr) { got, e = s.in.receive(fd) }); err != nil {
		return syscall.EBADF
	}
	if e != 0 && e != syscall.EAGAIN && s.passErrors() { // the error is about a sent datagram
		return s.pass()
	}
	if len(got) > 0 {
		s.receive(got)
	}
	return e
}

// passErrors calls s.refused for each datagram that was refused. It reports
// whether the socket had any error reports about sent datagrams.
func (s *Socket) passErrors() (some bool) {
	for {
		var r refusal
		err := error(syscall.EBADF)
		if s.use(func(fd uintptr) { err = r.receive(fd) }) != nil || err != nil {
			return some
		}
		some = true
		if r.closed && s.refused != nil {
			s.refused(r.to, r.data[:r.size])
		}
	}
}

// use calls f with the descriptor. f must not block.
func (s *Socket) use(f func(fd uintptr)) error {
	s.using.RLock()
	defer s.using.RUnlock()
	return s.raw.Control(f)
}

// Close closes the socket. It waits for system calls that use the descriptor,
// so the address is free when it returns. The functions that were passed to
// Start may still be called for datagrams that have already arrived.
func (s *Socket) Close() error {
	if s.poller != nil {
		s.poller.remove(s)
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.using.Lock()
	defer s.using.Unlock()
	return s.conn.Close()
}

// Send sends a datagram of size bytes, which fill writes. id is the IPv4
// identification that the datagram will have. If fill returns false, nothing is
// sent. The datagram may wait until Flush. Send does not block: it drops the
// datagram if too many are waiting.
func (s *Socket) Send(to netip.Addr, class, hops uint8, size int, fill func(b []byte, id uint16) bool) {
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
	s.out.add(to, class, hops, size, fill)
}

// Flush passes the waiting datagrams to the system.
func (s *Socket) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.len() > 0 && !s.blocked.Load() {
		s.flush()
	}
}

// Blocked reports whether the system has no room for datagrams.
func (s *Socket) Blocked() bool { return s.blocked.Load() }

// Idle reports whether the system has taken all datagrams.
func (s *Socket) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.len() == 0
}

// Mark returns a number for Left that stands for all datagrams sent so far. It
// returns 0 if the system has taken all of them.
func (s *Socket) Mark() (mark uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.len() == 0 {
		return 0
	}
	return s.out.begun()
}

// Left reports whether the system has taken the datagrams that were sent before
// Mark returned mark. It also returns true if the socket is closed, and after
// GiveUp.
func (s *Socket) Left(mark uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || s.stuck || s.out.gone() >= mark
}

// GiveUp makes Left return true until the system takes another datagram.
func (s *Socket) GiveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = s.out.len() > 0
}

// flush passes the waiting datagrams to the system. The caller holds s.mu.
func (s *Socket) flush() {
	sent, gone := true, s.out.gone()
	if s.use(func(fd uintptr) { sent = s.out.send(fd) }) != nil {
		return
	}
	s.stuck = s.stuck && s.out.gone() == gone
	if before := s.blocked.Swap(!sent); !sent && !before && s.poller != nil {
		s.poller.bell.Wake() // the sleeping thread must also wait for room now
	}
}

// Proceed passes waiting datagrams to the system, after the system had no room.
func (s *Socket) Proceed() {
	s.mu.Lock()
	s.flush()
	s.mu.Unlock()
	if !s.blocked.Load() {
		s.resume()
	}
}
