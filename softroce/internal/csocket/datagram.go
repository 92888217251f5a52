// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// bindDatagrams is rbind of a socket for datagrams.
func (s *socket) bindDatagrams(addr netip.AddrPort) syscall.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.packets.Load() != nil {
		return syscall.EINVAL
	}
	_, err := s.openDatagrams(addr)
	return err
}

// openDatagrams begins to receive datagrams at an address. The caller holds
// s.mu.
func (s *socket) openDatagrams(addr netip.AddrPort) (*rsocket.PacketConn, syscall.Errno) {
	if s.closed {
		return nil, syscall.EBADF
	}
	network := "rdma"
	if s.family == syscall.AF_INET {
		network = "rdma4"
	} else if s.options.only6 {
		network = "rdma6"
	}
	host := addr.Addr().String()
	if network == "rdma" && addr.Addr().IsUnspecified() {
		host = "" // both families
	}
	lc := rsocket.ListenConfig{Config: s.config}
	p, err := lc.ListenPacket(s.ctx, network, net.JoinHostPort(host, strconv.Itoa(int(addr.Port()))))
	if err != nil {
		return nil, errnoOf(err)
	}
	local := p.LocalAddr().(rsocket.Addr)
	s.local = netip.AddrPortFrom(addr.Addr(), local.Port())
	sealed.Open(p.Internals()).NotifyOf(s.watchers.notify)
	s.packets.Store(p)
	s.watchers.notify()
	return p, 0
}

// datagrams returns the PacketConn of a socket, which it binds to any port if
// it is not bound.
func (s *socket) datagrams() (*rsocket.PacketConn, syscall.Errno) {
	if p := s.packets.Load(); p != nil {
		return p, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.packets.Load(); p != nil {
		return p, 0
	}
	return s.openDatagrams(netip.AddrPortFrom(s.unspecified(), 0))
}

// connectDatagrams is rconnect of a socket for datagrams: it sets the peer.
func (s *socket) connectDatagrams(peer netip.AddrPort) syscall.Errno {
	p, err := s.datagrams()
	if err != 0 {
		return err
	}
	local, failed := sealed.Open(p.Internals()).Connect(peer)
	if failed != nil {
		return errnoOf(failed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer, s.local = peer, netip.AddrPortFrom(local, s.local.Port())
	return 0
}

// received is a datagram as a program gets it.
type received struct {
	n, size int // bytes copied, and bytes of the datagram
	from    netip.AddrPort
}

// result returns the number that a call returns.
func (r received) result(s *socket, flags int32) int {
	if s != nil && s.isDatagram && flags&syscall.MSG_TRUNC != 0 {
		return r.size
	}
	return r.n
}

// sender returns from where the socket has received.
func (s *socket) sender(r received) netip.AddrPort {
	if s.isDatagram {
		return r.from
	}
	peer, _ := s.peerName()
	return peer
}

// recvDatagram receives a datagram. What has no room is lost.
func (s *socket) recvDatagram(all []iovec, flags int32) (r received, err syscall.Errno) {
	to, _, err := memory(all)
	if err != 0 {
		return r, err
	}
	p := s.packets.Load()
	switch {
	case flags&syscall.MSG_OOB != 0:
		return r, syscall.EOPNOTSUPP
	case s.isClosed():
		return r, syscall.EBADF
	case p == nil: // as in C
		return r, syscall.EINVAL
	}
	timeout := time.Duration(s.timeouts[0].Load())
	for {
		var failed error
		r.n, r.size, r.from, failed = sealed.Open(p.Internals()).TryRead(to, flags&syscall.MSG_PEEK != 0)
		switch {
		case failed == nil:
			return r, 0
		case !errors.Is(failed, syscall.EAGAIN):
			return r, errnoOf(failed)
		case s.mustNotWait(flags):
			return r, syscall.EAGAIN
		}
		if err := s.await(pollIn, timeout); err != 0 {
			return r, err
		}
	}
}

// sendDatagram sends a datagram to an address, or to the socket's peer if the
// address is not valid.
func (s *socket) sendDatagram(all []iovec, flags int32, to netip.AddrPort) (int, syscall.Errno) {
	from, total, err := memory(all)
	switch {
	case err != 0:
		return 0, err
	case flags&syscall.MSG_OOB != 0:
		return 0, syscall.EOPNOTSUPP
	case s.isClosed():
		return 0, syscall.EBADF
	}
	if !to.IsValid() {
		s.mu.Lock()
		to = s.peer
		s.mu.Unlock()
		if !to.IsValid() {
			return 0, syscall.EDESTADDRREQ
		}
	}
	p, err := s.datagrams()
	if err != 0 {
		return 0, err
	}
	timeout := time.Duration(s.timeouts[1].Load())
	for {
		failed := sealed.Open(p.Internals()).TryWrite(from, total, to)
		switch {
		case failed == nil:
			return total, 0
		case !errors.Is(failed, syscall.EAGAIN):
			return 0, errnoOf(failed)
		case s.mustNotWait(flags):
			return 0, syscall.EAGAIN
		}
		if err := s.await(pollOut, timeout); err != 0 {
			return 0, err
		}
	}
}

// datagramEvents returns the events of a socket for datagrams.
func (s *socket) datagramEvents(refresh bool) (got int16) {
	p := s.packets.Load()
	if p == nil {
		return pollOut
	}
	now := sealed.Open(p.Internals()).Readiness(refresh)
	if now.Readable {
		got |= pollIn
	}
	if now.Writable {
		got |= pollOut
	}
	if now.Err != nil {
		got |= pollErr
	}
	return got
}
