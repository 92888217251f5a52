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

// Numbers of sendmmsg and recvmmsg, which package syscall does not have for all architectures.
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

// name has room for the address of either family.
type name syscall.RawSockaddrInet6

// controlLen is the room for two control messages with an int each.
const controlLen = 2 * 24

// part is what a message consists of.
type part struct {
	name    name
	vector  syscall.Iovec
	control [controlLen]byte
	data    []byte
}

// link makes a message refer to a part.
func (p *part) link(m *message) {
	m.header.Name = (*byte)(unsafe.Pointer(&p.name))
	m.header.Iov = &p.vector
	m.header.Iovlen = 1
}

// receiver receives datagrams.
type receiver struct {
	messages [batch]message
	parts    [batch]part
	got      []Datagram
}

// receive waits for datagrams, which stay until the next call. It may return none.
func (r *receiver) receive(raw syscall.RawConn) ([]Datagram, error) {
	for i := range r.messages {
		m, p := &r.messages[i], &r.parts[i]
		if p.data == nil {
			p.data = make([]byte, maxDatagram)
			p.vector.Base = &p.data[0]
			p.vector.SetLen(len(p.data))
			p.link(m)
		}
		m.header.Control = &p.control[0]
		m.header.SetControllen(controlLen)
		m.header.Namelen = uint32(unsafe.Sizeof(p.name))
	}
	n, e := 0, syscall.Errno(0)
	err := raw.Read(func(fd uintptr) bool {
		n, e = multiple(recvmmsg, fd, r.messages[:])
		return e != syscall.EAGAIN
	})
	if err != nil {
		return nil, err
	}
	if e != 0 {
		return nil, os.NewSyscallError("recvmmsg", e)
	}
	r.got = r.got[:0]
	for i := range n {
		m, p := &r.messages[i], &r.parts[i]
		if m.header.Flags&syscall.MSG_TRUNC != 0 {
			continue // longer than any packet
		}
		d := Datagram{Data: p.data[:m.size], From: p.name.address(), HopLimit: usualHops}
		d.readControl(p.control[:m.header.Controllen])
		r.got = append(r.got, d)
	}
	return r.got, nil
}

// tryCalls returns an error if the system refuses sendmmsg or recvmmsg, for a reason that does not go away.
func tryCalls(fd uintptr) error {
	if _, e := multiple(sendmmsg, fd, nil); e != 0 {
		return os.NewSyscallError("sendmmsg", e)
	}
	if _, e := multiple(recvmmsg, fd, nil); e != 0 && e != syscall.EAGAIN {
		return os.NewSyscallError("recvmmsg", e)
	}
	return nil
}

// multiple calls sendmmsg or recvmmsg without waiting.
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

// readControl takes what the control messages say.
func (d *Datagram) readControl(b []byte) {
	for len(b) >= syscall.SizeofCmsghdr {
		h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[0]))
		size := int(h.Len)
		if size < syscall.SizeofCmsghdr || size > len(b) {
			return
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
		}
		b = b[min(len(b), syscall.CmsgSpace(size-syscall.SizeofCmsghdr)):]
	}
}

// sender keeps datagrams until they are sent. Those from first on are still to be.
type sender struct {
	messages [outgoing]message
	parts    [outgoing]part
	first, n int
}

func (s *sender) len() int   { return s.n - s.first }
func (s *sender) full() bool { return s.n == outgoing }

// buffer returns the place for the next datagram.
func (s *sender) buffer(size int) []byte {
	p := &s.parts[s.n]
	if cap(p.data) < size {
		p.data = make([]byte, size, max(size, 512))
	}
	p.data = p.data[:size]
	return p.data
}

// add keeps the datagram in the buffer.
func (s *sender) add(to netip.Addr, class, hops uint8) {
	m, p := &s.messages[s.n], &s.parts[s.n]
	p.link(m)
	p.vector.Base = &p.data[0]
	p.vector.SetLen(len(p.data))
	m.header.Namelen = p.name.set(to)
	m.header.Control = nil
	m.header.SetControllen(0)
	control := p.control[:0]
	level, classType, hopsType := int32(syscall.IPPROTO_IP), int32(syscall.IP_TOS), int32(syscall.IP_TTL)
	if to.Is6() {
		level, classType, hopsType = syscall.IPPROTO_IPV6, ipv6TClass, ipv6HopLimit
	}
	if class != usualClass {
		control = appendControl(control, level, classType, class)
	}
	if hops != usualHops && hops != 0 {
		control = appendControl(control, level, hopsType, hops)
	}
	if len(control) > 0 {
		m.header.Control = &p.control[0]
		m.header.SetControllen(len(control))
	}
	s.n++
}

func appendControl(b []byte, level, kind int32, value uint8) []byte {
	start := len(b)
	b = b[:start+syscall.CmsgSpace(4)]
	h := (*syscall.Cmsghdr)(unsafe.Pointer(&b[start]))
	h.Level, h.Type = level, kind
	h.SetLen(syscall.CmsgLen(4))
	binary.NativeEndian.PutUint32(b[start+syscall.SizeofCmsghdr:], uint32(value))
	return b
}

// send sends what is kept. It returns false if the system has no room for all of it now. What it refuses for another reason, such
// as a network that cannot be reached, is lost.
func (s *sender) send(fd uintptr) bool {
	for s.first < s.n {
		sent, e := multiple(sendmmsg, fd, s.messages[s.first:s.n])
		switch e {
		case 0:
			s.first += sent
		case syscall.EAGAIN:
			return false
		default:
			s.first++
		}
	}
	s.first, s.n = 0, 0
	return true
}

// set makes the name that of RoCE's port at an address, and returns its length.
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

// address returns what the name stands for, without a zone.
func (n *name) address() netip.AddrPort {
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&n.Port))[:])
	if n.Family == syscall.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*syscall.RawSockaddrInet4)(unsafe.Pointer(n)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(n.Addr), port)
}
