// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"
)

// A host where no process has the port open reports that by ICMP, and quotes
// the beginning of the datagram. The system keeps the report in the socket's
// error queue.

// Constants of ip(7) that package syscall does not define.
const (
	originICMP  = 2 // SO_EE_ORIGIN_ICMP
	originICMP6 = 3

	// Offsets of fields in struct sock_extended_err, and of the address
	// that follows the struct. That address is the one of the host that
	// reports the error.
	errnoAt    = 0
	originAt   = 4
	offenderAt = 16
)

// maxQuote is the largest number of bytes of a datagram that hosts quote.
const maxQuote = 576

// refusal is an error report about a sent datagram.
type refusal struct {
	to     netip.Addr     // destination of the datagram
	data   [maxQuote]byte // beginning of the datagram
	size   int            // number of bytes in data
	closed bool           // whether the report comes from the host to and says that no process has the port open
}

// receive takes the next report from the error queue. It fails with EAGAIN if
// there is none.
func (r *refusal) receive(fd uintptr) error {
	var control [256]byte
	n, left, _, to, err := syscall.Recvmsg(int(fd), r.data[:], control[:], msgErrQueue|syscall.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	switch to := to.(type) {
	case *syscall.SockaddrInet4:
		r.to = netip.AddrFrom4(to.Addr)
	case *syscall.SockaddrInet6:
		r.to = netip.AddrFrom16(to.Addr)
	}
	r.size = n
	messages, err := syscall.ParseSocketControlMessage(control[:left])
	if err != nil {
		return nil
	}
	for _, c := range messages {
		level, kind := c.Header.Level, c.Header.Type
		if level == syscall.IPPROTO_IP && kind == syscall.IP_RECVERR || level == syscall.IPPROTO_IPV6 && kind == syscall.IPV6_RECVERR {
			r.closed = isClosed(c.Data, r.to)
		}
	}
	return nil
}

// isClosed reports whether an error report comes from host and says that no
// process has the port open. b is a struct sock_extended_err, followed by an
// address.
func isClosed(b []byte, host netip.Addr) bool {
	if len(b) < offenderAt+syscall.SizeofSockaddrInet4 || syscall.Errno(binary.NativeEndian.Uint32(b[errnoAt:])) != syscall.ECONNREFUSED {
		return false
	}
	if origin := b[originAt]; origin != originICMP && origin != originICMP6 {
		return false
	}
	var from name
	copy((*[unsafe.Sizeof(from)]byte)(unsafe.Pointer(&from))[:], b[offenderAt:])
	return from.address().Addr() == host
}
