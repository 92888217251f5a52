// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Numbers of the system calls sendmmsg and recvmmsg, which package syscall does
// not define for all architectures.
var (
	sendmmsg = map[string]uintptr{
		"amd64": 307, "arm64": 269, "loong64": 269, "ppc64le": 349, "riscv64": 269, "s390x": 358,
	}[runtime.GOARCH]
	recvmmsg = map[string]uintptr{
		"amd64": 299, "arm64": 243, "loong64": 243, "ppc64le": 343, "riscv64": 243, "s390x": 357,
	}[runtime.GOARCH]
)

// message is struct mmsghdr.
type message struct {
	header syscall.Msghdr
	size   uint32
}

// name is a socket address: it has room for a struct sockaddr of IPv4 or IPv6.
type name syscall.RawSockaddrInet6

// controlLen is the room in bytes for three control messages, each of which
// holds an int.
const controlLen = 3 * 24

// receiver has the buffers to receive a batch of datagrams.
type receiver struct {
	messages [batch]message
	names    [batch]name
	vectors  [batch]syscall.Iovec
	controls [batch][controlLen]byte
	data     [batch][]byte
	got      []Datagram
}

// receive takes datagrams that have arrived. They are valid until the next
// call.
func (r *receiver) receive(fd uintptr) ([]Datagram, syscall.Errno) {
	for i := range r.messages {
		m := &r.messages[i]
		if r.data[i] == nil {
			r.data[i] = make([]byte, maxTrain)
			m.header.Name = (*byte)(unsafe.Pointer(&r.names[i]))
			m.header.Iov = &r.vectors[i]
			m.header.Iovlen = 1
			r.vectors[i].Base = &r.data[i][0]
			r.vectors[i].SetLen(maxTrain)
		}
		m.header.Control = &r.controls[i][0]
		m.header.SetControllen(controlLen)
		m.header.Namelen = uint32(unsafe.Sizeof(r.names[i]))
	}
	n, e := multiple(recvmmsg, fd, r.messages[:])
	if e != 0 {
		return nil, e
	}
	r.got = r.got[:0]
	for i := range n {
		m := &r.messages[i]
		d := Datagram{From: r.names[i].address(), HopLimit: usualHops}
		all := r.data[i][:m.size]
		each := d.readControl(r.controls[i][:m.header.Controllen])
		if each <= 0 {
			each = len(all)
		}
		for {
			d.Data = all[:min(each, len(all))]
			if len(d.Data) <= maxDatagram { // a longer datagram is no valid packet
				r.got = append(r.got, d)
			}
			if all = all[len(d.Data):]; len(all) == 0 {
				break
			}
		}
	}
	return r.got, 0
}

// tryCalls returns an error if the system does not permit sendmmsg or recvmmsg.
func tryCalls(fd uintptr) error {
	if _, e := multiple(sendmmsg, fd, nil); e != 0 {
		return os.NewSyscallError("sendmmsg", e)
	}
	if _, e := multiple(recvmmsg, fd, nil); e != 0 && e != syscall.EAGAIN {
		return os.NewSyscallError("recvmmsg", e)
	}
	return nil
}

// multiple calls sendmmsg or recvmmsg without blocking. call is the number of
// the system call. multiple returns the number of messages that were sent or
// received.
func multiple(call, fd uintptr, messages []message) (int, syscall.Errno) {
	if call == 0 {
		return 0, syscall.ENOSYS
	}
	for {
		n, _, e := syscall.Syscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

// readControl sets the fields of d that control messages carry. If the received
// message has several datagrams (UDP_GRO), each is the size of each of them.
// Otherwise, each is 0.
func (d *Datagram) readControl(b []byte) (each int) {
	for len(b) >= syscall.SizeofCmsghdr {
		h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[0]))
		size := int(h.Len)
		if size < syscall.SizeofCmsghdr || size > len(b) {
			break
		}
		value := 0
		switch data := b[syscall.SizeofCmsghdr:size]; {
		case len(data) >= 4:
			value = int(binary.NativeEndian.Uint32(data))
		case len(data) > 0:
			value = int(data[0])
		}
		switch [2]int32{h.Level, h.Type} {
		case [2]int32{syscall.IPPROTO_IP, syscall.IP_TOS}, [2]int32{syscall.IPPROTO_IPV6, ipv6TClass}:
			d.TrafficClass = uint8(value)
		case [2]int32{syscall.IPPROTO_IP, syscall.IP_TTL}, [2]int32{syscall.IPPROTO_IPV6, ipv6HopLimit}:
			d.HopLimit = uint8(value)
		case [2]int32{syscall.IPPROTO_UDP, udpGRO}:
			each = value
		}
		b = b[min(len(b), syscall.CmsgSpace(size-syscall.SizeofCmsghdr)):]
	}
	return each
}

// sender keeps datagrams until the system takes them.
//
// If the system supports UDP_SEGMENT, datagrams of the same size to the same
// address are combined in one message, here called a train, which the system or
// the network card cuts. The last datagram of a train may be shorter. With
// IPv4, the system numbers the identifications of a train's datagrams from 0
// on.
type sender struct {
	// renumber changes the checksum of a datagram from the one for the
	// identification id to the one for 0. If renumber is nil, there are no
	// trains.
	renumber func(b []byte, id uint16)
	trains   bool              // whether the system supports UDP_SEGMENT
	messages [outgoing]message // the messages with the indexes from first to n-1 wait
	controls [outgoing][controlLen]byte
	names    [outgoing]name
	first, n int
	before   uint64 // number of messages that came before messages[0]

	data    [outgoing][]byte // contents of the waiting datagrams
	vectors [outgoing]syscall.Iovec
	filled  int // number of elements of data that are in use

	last train // describes the newest message, to which datagrams may still be added
}

// train describes a message of one or more datagrams with the same destination.
type train struct {
	to          netip.Addr
	class, hops uint8
	size        int // size in bytes of each datagram; the last may be shorter
	count       int // number of datagrams
	total       int // number of bytes in all datagrams
}

// len returns the number of waiting messages.
func (s *sender) len() int { return s.n - s.first }

// full reports whether no further datagram can wait.
func (s *sender) full() bool { return s.filled == outgoing }

// begun returns the number of all messages so far, sent or waiting.
func (s *sender) begun() uint64 { return s.before + uint64(s.n) }

// gone returns the number of messages that have been sent or lost.
func (s *sender) gone() uint64 { return s.before + uint64(s.first) }

// joins reports whether the datagram can be added to the newest message.
func (s *sender) joins(to netip.Addr, class, hops uint8, size int) bool {
	l := &s.last
	return s.trains && l.count > 0 && l.count < maxSegments && 0 < size && size <= l.size && l.total+size <= maxTrain && l.to == to && l.class == class && l.hops == hops
}

// add adds a datagram of size bytes, which fill writes. id is the IPv4
// identification that the datagram will have. If fill returns false, no
// datagram is added.
func (s *sender) add(to netip.Addr, class, hops uint8, size int, fill func(b []byte, id uint16) bool) {
	i := s.filled
	if cap(s.data[i]) < size {
		s.data[i] = make([]byte, size, max(size, 512))
	}
	b := s.data[i][:size]
	joins := s.joins(to, class, hops, size)
	id := 0
	if joins && to.Is4() {
		id = s.last.count
	}
	if !fill(b, uint16(id)) {
		return
	}
	s.filled++
	s.vectors[i].Base = unsafe.SliceData(b)
	s.vectors[i].SetLen(size)
	if !joins {
		s.last = train{to, class, hops, size, 1, size}
		s.begin(&s.vectors[i])
		return
	}
	l, m := &s.last, &s.messages[s.n-1]
	if l.count == 1 {
		s.control(s.n-1, true)
	}
	l.count++
	m.header.Iovlen++
	if l.total += size; size < l.size {
		l.count = maxSegments // a shorter datagram must be the last
	}
}

// begin begins a message. v points to its first datagram.
func (s *sender) begin(v *syscall.Iovec) {
	m := &s.messages[s.n]
	m.header.Iov = v
	m.header.Iovlen = 1
	m.header.Name = (*byte)(unsafe.Pointer(&s.names[s.n]))
	m.header.Namelen = s.names[s.n].set(s.last.to)
	s.control(s.n, false)
	s.n++
}

// control sets the control messages of the message with the index i, which is
// the newest. If segments is true, they make the system cut the message into
// datagrams.
func (s *sender) control(i int, segments bool) {
	l, m := &s.last, &s.messages[i]
	b := s.controls[i][:0]
	level, classType, hopsType := int32(syscall.IPPROTO_IP), int32(syscall.IP_TOS), int32(syscall.IP_TTL)
	if l.to.Is6() {
		level, classType, hopsType = syscall.IPPROTO_IPV6, ipv6TClass, ipv6HopLimit
	}
	if l.class != usualClass {
		b = appendControl(b, level, classType, int(l.class), 4)
	}
	if l.hops != usualHops && l.hops != 0 {
		b = appendControl(b, level, hopsType, int(l.hops), 4)
	}
	if segments {
		b = appendControl(b, syscall.IPPROTO_UDP, udpSegment, l.size, 2)
	}
	m.header.Control = nil
	m.header.SetControllen(len(b))
	if len(b) > 0 {
		m.header.Control = &b[0]
	}
}

// appendControl appends a control message that holds the number value. size is
// the size of the number in bytes, 2 or 4.
func appendControl(b []byte, level, kind int32, value, size int) []byte {
	start := len(b)
	b = b[:start+syscall.CmsgSpace(size)]
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[start]))
	h.Level, h.Type = level, kind
	h.SetLen(syscall.CmsgLen(size))
	if data := b[start+syscall.SizeofCmsghdr:]; size == 2 {
		binary.NativeEndian.PutUint16(data, uint16(value))
	} else {
		binary.NativeEndian.PutUint32(data, uint32(value))
	}
	return b
}

// send passes the waiting datagrams to the system. It returns false if the
// system has no room for some of them now. Datagrams that the system refuses
// for another reason, such as an unreachable network, are lost.
func (s *sender) send(fd uintptr) bool {
	s.last = train{}
	again := false // whether this message was tried before: the first error may be about an earlier datagram
	for s.first < s.n {
		sent, e := multiple(sendmmsg, fd, s.messages[s.first:s.n])
		switch e {
		case 0:
			s.first += sent
			again = false
		case syscall.EAGAIN:
			return false
		case syscall.EIO, syscall.EINVAL: // before Linux 6.11, if the network device computes no checksums
			if m := &s.messages[s.first]; m.header.Iovlen > 1 {
				s.trains = false
				s.split(fd, m)
			}
			s.first++
		default:
			if again {
				s.first++
			}
			again = !again
		}
	}
	s.before += uint64(s.n)
	s.first, s.n, s.filled = 0, 0, 0
	return true
}

// split sends the datagrams of a train one by one. A datagram for which the
// system has no room is lost.
func (s *sender) split(fd uintptr, m *message) {
	var one [1]message
	for k, v := range unsafe.Slice(m.header.Iov, m.header.Iovlen) {
		if k > 0 && m.header.Namelen == syscall.SizeofSockaddrInet4 {
			s.renumber(unsafe.Slice(v.Base, v.Len), uint16(k))
		}
		one[0] = *m
		h := &one[0].header
		h.Iov, h.Iovlen = &v, 1
		if h.SetControllen(int(h.Controllen) - syscall.CmsgSpace(2)); h.Controllen == 0 { // without the control message for UDP_SEGMENT
			h.Control = nil
		}
		_, _ = multiple(sendmmsg, fd, one[:])
	}
}

// set sets the name to address a and RoCE's port, and returns its size.
func (n *name) set(a netip.Addr) (size uint32) {
	port := (*[2]byte)(unsafe.Pointer(&n.Port))
	binary.BigEndian.PutUint16(port[:], UDPPort)
	if a.Is4() {
		in := (*syscall.RawSockaddrInet4)(unsafe.Pointer(n))
		in.Family, in.Addr = syscall.AF_INET, a.As4()
		return syscall.SizeofSockaddrInet4
	}
	n.Family, n.Addr, n.Flowinfo, n.Scope_id = syscall.AF_INET6, a.As16(), 0, 0
	return syscall.SizeofSockaddrInet6
}

// address returns the address and port in the name, without a zone.
func (n *name) address() netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&n.Port))[:])
	if n.Family == syscall.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*syscall.RawSockaddrInet4)(unsafe.Pointer(n)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(n.Addr), port)
}
