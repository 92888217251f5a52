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

// UDPPort is the port of RoCE version 2.
const UDPPort = 4791

const (
	// maxDatagram limits a datagram to the longest header, 4096 bytes and the
	// ICRC.
	maxDatagram = 4352
	// batch is the number of datagrams that one system call receives.
	batch = 16
	// maxSegments and maxTrain limit the datagrams, and their bytes, that the
	// system takes as one message.
	maxSegments = 64
	maxTrain    = 65507
	// outgoing limits the datagrams that wait until the system takes them. More
	// are dropped.
	outgoing = 256
	// buffer is the requested size of socket buffers. Without privileges, the
	// system may give less: net.core.rmem_max.
	buffer = 4 << 20
	// usualHops is a socket's hop limit.
	usualHops = 64
	// usualClass is a socket's traffic class: that of connections' packets,
	// which routers may mark (ECT(0)).
	usualClass = 2
)

// Datagram is a received datagram.
type Datagram struct {
	From         netip.AddrPort
	Data         []byte // valid until the function that gets it returns
	TrafficClass uint8
	HopLimit     uint8
}

// Socket sends and receives the datagrams of one address of the machine. Its
// owner calls Send and Flush one at a time.
type Socket struct {
	addr netip.Addr
	conn io.Closer
	raw  syscall.RawConn

	poller *Poller // set by Start
	fd     int32   // for the poller; after Close, its next call fails once or wakes for another file
	rest   rest    // pause in receiving, for the poller

	using     sync.RWMutex // held for reading while a system call uses the descriptor
	receiving sync.Mutex   // held until received datagrams are passed on, so that they stay in order
	in        receiver
	receive   func([]Datagram)
	refused   func(to netip.Addr, data []byte)

	mu      sync.Mutex
	out     sender
	blocked atomic.Bool // whether the system takes no more datagrams for now
	stuck   bool        // whether the system has taken no datagram since GiveUp
	closed  bool
	resume  func()
}

// OpenUDP opens a socket with RoCE's port at addr, which has a zone if it is
// link-local. Sent datagrams are never fragmented. Their identification in
// IPv4's header is 0, with one exception: if the system supports trains (see
// sender) and renumber is not nil, the datagrams of a train are numbered from
// zero. If the network device then cannot send a train, its datagrams are sent
// one by one, and renumber changes the checksum of a datagram from that for the
// identification id to that for 0.
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

// OpenGroup opens a socket that receives datagrams to a multicast group through
// the interfaces with the given addresses. Several sockets may receive the
// datagrams of one group. The socket sends nothing.
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
		// An interface without multicast does not receive datagrams, and one
		// with two addresses joins once.
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

// interfaceOf returns the index of the interface with an address.
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

// prepareSender makes datagrams to multicast groups leave through the interface
// of an address, if it supports multicast.
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

// bindUDP returns a socket with options, bound to an address, which may be that
// of a group. Go's netpoller does not know the socket.
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

// listenUDP is bindUDP for Go's own functions.
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

// Options that package syscall lacks.
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

// prepare sets a socket's options.
func prepare(fd int, is6 bool) error {
	enlarge(fd, syscall.SO_RCVBUFFORCE, syscall.SO_RCVBUF)
	enlarge(fd, syscall.SO_SNDBUFFORCE, syscall.SO_SNDBUF)
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_UDP, udpGRO, 1) // datagrams that arrive together may be received together
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
			return fmt.Errorf("option %d of level %d: %w", o.name, o.level, err)
		}
	}
	return nil
}

// enlarge makes a socket buffer as large as the system permits.
func enlarge(fd, force, usual int) {
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, force, buffer) != nil { // needs CAP_NET_ADMIN
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, usual, buffer)
	}
}

// ReceiveBuffer returns the bytes of system memory that datagrams waiting at a
// socket may take, or 0 if that is unknown.
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

// Start sets the functions that Poll and the poller's Take call until Close.
// receive gets datagrams that have arrived. refused gets the hosts that report
// that no process has the port, with their quotes of the datagrams. resume is
// called when Blocked has become false. If the system refuses to receive, for
// lack of memory or because of a sandbox that was set up after the socket,
// nothing arrives until it stops refusing.
func (s *Socket) Start(p *Poller, receive func([]Datagram), refused func(to netip.Addr, data []byte), resume func()) {
	s.receive, s.refused, s.resume, s.poller = receive, refused, resume, p
	p.add(s)
}

// take passes on the datagrams and the refusals that have arrived.
func (s *Socket) take() syscall.Errno {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	e := s.pass()
	s.passErrors()
	return e
}

// Poll passes on the datagrams that have arrived, unless another thread does
// so. It reports whether there were any.
func (s *Socket) Poll() bool {
	if !s.receiving.TryLock() {
		return false
	}
	defer s.receiving.Unlock()
	return s.pass() == 0
}

// pass receives datagrams and passes them to s.receive. The caller holds
// s.receiving. s.receive is called only after use has returned: Close waits for
// use, and the caller of Close may hold a lock that s.receive takes.
func (s *Socket) pass() (e syscall.Errno) {
	var got []Datagram
	if err := s.use(func(fd uintptr) { got, e = s.in.receive(fd) }); err != nil {
		return syscall.EBADF
	}
	if e != 0 && e != syscall.EAGAIN && s.passErrors() { // the error was that of a sent datagram
		return s.pass()
	}
	if len(got) > 0 {
		s.receive(got)
	}
	return e
}

// passErrors passes on which datagrams were refused. It reports whether there
// were errors of sent datagrams.
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

// use calls f, which must not wait, with the descriptor.
func (s *Socket) use(f func(fd uintptr)) error {
	s.using.RLock()
	defer s.using.RUnlock()
	return s.raw.Control(f)
}

// Close closes the socket. The functions of Start may still be called for what
// has just arrived. The address is free when Close returns, since Close waits
// for the calls that use the descriptor to receive, send, or sleep in the
// poller.
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

// Send sends a datagram of size bytes, which fill writes. If fill returns
// false, nothing is sent. fill gets the identification that IPv4's header will
// have. Send may leave the sending to Flush. It does not block: datagrams for
// which the system has no room are lost, as on a network.
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

// Flush sends the datagrams that Send has kept.
func (s *Socket) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.len() > 0 && !s.blocked.Load() {
		s.flush()
	}
}

// Blocked reports whether the system takes no more datagrams for now.
func (s *Socket) Blocked() bool { return s.blocked.Load() }

// Idle reports whether the system has taken all datagrams.
func (s *Socket) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.len() == 0
}

// Mark returns a number for the datagrams sent so far, or 0 if the system has
// taken all of them.
func (s *Socket) Mark() (mark uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out.len() == 0 {
		return 0
	}
	return s.out.begun()
}

// Left reports whether the system has taken the datagrams that had been sent
// when Mark returned mark. It also returns true for a socket that is closed or
// was given up.
func (s *Socket) Left(mark uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || s.stuck || s.out.gone() >= mark
}

// GiveUp gives up a socket with waiting datagrams until the system takes some.
func (s *Socket) GiveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = s.out.len() > 0
}

// flush passes waiting datagrams to the system. The caller holds s.mu.
func (s *Socket) flush() {
	sent, gone := true, s.out.gone()
	if s.use(func(fd uintptr) { sent = s.out.send(fd) }) != nil {
		return
	}
	s.stuck = s.stuck && s.out.gone() == gone
	if before := s.blocked.Swap(!sent); !sent && !before && s.poller != nil {
		s.poller.wake() // the sleeping thread may not wait for room yet
	}
}

// Proceed continues sending after Blocked, as there may be room again.
func (s *Socket) Proceed() {
	s.mu.Lock()
	s.flush()
	s.mu.Unlock()
	if !s.blocked.Load() {
		s.resume()
	}
}
