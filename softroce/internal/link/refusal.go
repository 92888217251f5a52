// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"
)

// A host without a process at the port reports that (ICMP), and quotes the
// beginning of the datagram. The system keeps the report for the socket.

// Constants of Linux's ip(7) that package syscall lacks.
const (
	originICMP  = 2 // SO_EE_ORIGIN_ICMP
	originICMP6 = 3

	// Offsets in struct sock_extended_err, and of the address that follows it,
	// which is that of the reporting host.
	errnoAt    = 0
	originAt   = 4
	offenderAt = 16
)

// maxQuote limits the quoted bytes, to the number that hosts quote.
const maxQuote = 576

// refusal is the system's record of a failed datagram.
type refusal struct {
	to     netip.Addr
	data   [maxQuote]byte
	size   int
	closed bool // whether the host at to reports that no process has the port
}

// receive takes the next record. It fails with EAGAIN if there is none.
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

// isClosed reports whether an error, struct sock_extended_err followed by an
// address, comes from the host and means that no process has the port.
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
