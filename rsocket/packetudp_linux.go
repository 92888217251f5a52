// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// sendUDP sends a UDP packet to an address, or drops it if the socket's send
// buffer is full. It never waits: packets to hosts that do not answer fill the
// buffer for seconds, and anything that greets can cause such packets.
func (c *PacketConn) sendUDP(b []byte, to netip.AddrPort) error {
	ip := to.Addr()
	if c.local.Addr().Is4() {
		if !ip.Is4() {
			return cerr.InvalidAs(syscall.EAFNOSUPPORT, "%v is not an IPv4 address", ip)
		}
		return sendNow(c.udp, b, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: ip.As4()})
	}
	sa := syscall.SockaddrInet6{Port: int(to.Port()), Addr: ip.As16()}
	if zone := ip.Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return err
		}
		sa.ZoneId = uint32(i.Index)
	}
	return sendNow(c.udp, b, &sa)
}

// sendNow sends b on a socket, or drops it if the socket's buffer is full.
func sendNow(socket syscall.Conn, b []byte, to syscall.Sockaddr) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		failed = syscall.Sendto(int(fd), b, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, to)
		return true
	})
	if err != nil || errors.Is(failed, syscall.EAGAIN) {
		return err
	}
	return os.NewSyscallError("sendto", failed)
}
