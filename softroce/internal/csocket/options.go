// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
	"math"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// options are what a program has set, as far as the configuration of the
// connection does not have it.
type options struct {
	reuse, only6, noDelay, oobInline bool
	lingers                          bool
	linger                           int32 // seconds
	keepAlive                        bool
	keepIdle                         time.Duration
	keepCount, keepInterval          int32
	tos                              int32
	ioMaps                           int32
}

// Options of rsockets, and Linux's numbers of options that package syscall
// lacks.
const (
	solRDMA = 0x10000

	rdmaSQSize    = 0
	rdmaRQSize    = 1
	rdmaInline    = 2
	rdmaIOMapSize = 3
	rdmaRoute     = 4 // path records, of which RoCE makes no use

	soProtocol    = 38
	soDomain      = 39
	tcpCongestion = 13
	tcpInfo       = 11
	tcpInfoLen    = 104 // of struct tcp_info in libc

	tcpEstablished = 1
	tcpClose       = 7
)

// option names an option.
type option struct{ level, name int32 }

// setOption is rsetsockopt.
func (s *socket) setOption(o option, value unsafe.Pointer, length uint32) syscall.Errno {
	if value == nil {
		return syscall.EFAULT
	}
	if o == (option{syscall.IPPROTO_TCP, tcpCongestion}) { // a name; nothing to choose
		return 0
	}
	b := unsafe.Slice((*byte)(value), length)
	if len(b) < 4 {
		return syscall.EINVAL
	}
	n := int32(binary.NativeEndian.Uint32(b))
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conn.Load()
	isNew := (s.state == idle || s.state == failed || s.state == listening) && s.packets.Load() == nil
	switch o {
	case option{syscall.SOL_SOCKET, syscall.SO_REUSEADDR}:
		s.options.reuse = n != 0
	case option{syscall.SOL_SOCKET, syscall.SO_RCVBUF}:
		if conn == nil {
			s.config.ReadBuffer = doubled(n)
		}
	case option{syscall.SOL_SOCKET, syscall.SO_SNDBUF}:
		if conn == nil {
			s.config.WriteBuffer = doubled(n)
		}
	case option{syscall.SOL_SOCKET, syscall.SO_LINGER}:
		if len(b) < 8 {
			return syscall.EINVAL
		}
		s.options.lingers, s.options.linger = n != 0, int32(binary.NativeEndian.Uint32(b[4:]))
	case option{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}:
		s.options.keepAlive = n != 0
		s.keepAlive(conn)
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}:
		if n <= 0 {
			return syscall.EINVAL
		}
		s.options.keepIdle = time.Duration(n) * time.Second
		s.keepAlive(conn)
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT}:
		s.options.keepCount = n
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}:
		s.options.keepInterval = n
	case option{syscall.SOL_SOCKET, syscall.SO_OOBINLINE}:
		s.options.oobInline = n != 0
	case option{syscall.SOL_SOCKET, syscall.SO_RCVTIMEO}, option{syscall.SOL_SOCKET, syscall.SO_SNDTIMEO}:
		if len(b) < 16 {
			return syscall.EINVAL
		}
		seconds, micros := int64(binary.NativeEndian.Uint64(b)), int64(binary.NativeEndian.Uint64(b[8:]))
		if micros < 0 || micros >= 1e6 {
			return syscall.EDOM
		}
		s.timeouts[direction(o.name)].Store(max(seconds, 0)*1e9 + micros*1e3)
	case option{syscall.IPPROTO_IP, syscall.IP_TOS}:
		s.options.tos = n
	case option{syscall.IPPROTO_TCP, syscall.TCP_NODELAY}:
		s.options.noDelay = n != 0
	case option{syscall.IPPROTO_TCP, syscall.TCP_MAXSEG}:
	case option{syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY}:
		if s.local.IsValid() {
			return syscall.EINVAL
		}
		s.options.only6 = n != 0
	case option{solRDMA, rdmaSQSize}, option{solRDMA, rdmaRQSize}, option{solRDMA, rdmaInline}, option{solRDMA, rdmaIOMapSize},
		option{solRDMA, rdmaRoute}:
		if !isNew {
			return syscall.EINVAL
		}
		size := int(min(uint32(n), math.MaxUint16-1))
		switch o.name {
		case rdmaSQSize:
			s.config.SendQueue = size
		case rdmaRQSize:
			s.config.RecvQueue = size
		case rdmaInline:
			if s.config.MaxInline = size; size == 0 {
				s.config.MaxInline = -1
			}
		case rdmaIOMapSize:
			var maps int
			s.config, maps = sealed.Open(s.config.Internals()).WithIOMaps(int(n))
			s.options.ioMaps = int32(maps)
		}
	default:
		return syscall.ENOTSUP
	}
	if s.state == listening { // connections that come later have the options
		sealed.Open(s.listener.Internals()).SetConfig(s.config)
	}
	return 0
}

// doubled returns twice the number that a program sets as a buffer's size, as
// Linux and C do.
func doubled(n int32) int { return 2 * int(min(uint32(n), 1<<29)) }

// direction returns which timeout an option is.
func direction(name int32) int {
	if name == syscall.SO_RCVTIMEO {
		return 0
	}
	return 1
}

// keepAlive makes the connection, if there is one, check the peer as the
// options say. The caller holds s.mu.
func (s *socket) keepAlive(c *rsocket.Conn) {
	s.config.KeepAlive = -1
	if s.options.keepAlive {
		s.config.KeepAlive = s.options.keepIdle
	}
	if c != nil { // errors mean that it is closed
		_ = c.SetKeepAlivePeriod(s.options.keepIdle)
		_ = c.SetKeepAlive(s.options.keepAlive)
	}
}

// option is rgetsockopt.
func (s *socket) option(o option, value unsafe.Pointer, length *uint32) syscall.Errno {
	if value == nil || length == nil {
		return syscall.EFAULT
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := sealed.Open(s.config.Internals()).Complete()
	flag := func(on bool) int32 {
		if on {
			return 1
		}
		return 0
	}
	var n int32
	switch o {
	case option{syscall.SOL_SOCKET, syscall.SO_REUSEADDR}:
		n = flag(s.options.reuse)
	case option{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}:
		n = flag(s.options.keepAlive)
	case option{syscall.SOL_SOCKET, syscall.SO_OOBINLINE}:
		n = flag(s.options.oobInline)
	case option{syscall.SOL_SOCKET, syscall.SO_BROADCAST}:
	case option{syscall.SOL_SOCKET, syscall.SO_RCVBUF}:
		n = int32(d.ReadBuffer)
	case option{syscall.SOL_SOCKET, syscall.SO_SNDBUF}:
		n = int32(d.WriteBuffer)
	case option{syscall.SOL_SOCKET, syscall.SO_LINGER}:
		var b [8]byte
		binary.NativeEndian.PutUint32(b[:], uint32(flag(s.options.lingers)))
		binary.NativeEndian.PutUint32(b[4:], uint32(s.options.linger))
		return putOption(b[:], value, length)
	case option{syscall.SOL_SOCKET, syscall.SO_RCVTIMEO}, option{syscall.SOL_SOCKET, syscall.SO_SNDTIMEO}:
		t := time.Duration(s.timeouts[direction(o.name)].Load())
		var b [16]byte
		binary.NativeEndian.PutUint64(b[:], uint64(t/time.Second))
		binary.NativeEndian.PutUint64(b[8:], uint64(t%time.Second/time.Microsecond))
		return putOption(b[:], value, length)
	case option{syscall.SOL_SOCKET, syscall.SO_ERROR}:
		n = int32(s.takeError())
	case option{syscall.SOL_SOCKET, syscall.SO_TYPE}:
		if n = syscall.SOCK_STREAM; s.isDatagram {
			n = syscall.SOCK_DGRAM
		}
	case option{syscall.SOL_SOCKET, soDomain}:
		n = int32(s.family)
	case option{syscall.SOL_SOCKET, soProtocol}:
		if n = syscall.IPPROTO_TCP; s.isDatagram {
			n = syscall.IPPROTO_UDP
		}
	case option{syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN}:
		n = flag(s.state == listening)
	case option{syscall.IPPROTO_IP, syscall.IP_TOS}:
		n = s.options.tos
	case option{syscall.IPPROTO_TCP, tcpCongestion}: // C: 1, which is no name
		return putOption([]byte("rdma\x00"), value, length)
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT}:
		n = max(s.options.keepCount, 1)
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}:
		n = max(s.options.keepInterval, 1)
	case option{syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}:
		n = int32(s.options.keepIdle / time.Second)
	case option{syscall.IPPROTO_TCP, syscall.TCP_NODELAY}:
		n = flag(s.options.noDelay)
	case option{syscall.IPPROTO_TCP, syscall.TCP_MAXSEG}:
		n = 2048
	case option{syscall.IPPROTO_TCP, tcpInfo}:
		var b [tcpInfoLen]byte
		b[0] = tcpClose
		if s.state == connected {
			b[0] = tcpEstablished
		}
		const cwnd = 80 // tcpi_snd_cwnd
		binary.NativeEndian.PutUint32(b[cwnd:], uint32(d.SendQueue))
		return putOption(b[:], value, length)
	case option{syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY}:
		n = flag(s.options.only6)
	case option{solRDMA, rdmaSQSize}:
		n = int32(d.SendQueue)
	case option{solRDMA, rdmaRQSize}:
		n = int32(d.RecvQueue)
	case option{solRDMA, rdmaInline}:
		n = int32(max(d.MaxInline, 0))
	case option{solRDMA, rdmaIOMapSize}:
		n = s.options.ioMaps
	default:
		return syscall.ENOTSUP
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(n))
	return putOption(b[:], value, length)
}

// putOption copies a value to C's memory, as far as there is room.
func putOption(b []byte, value unsafe.Pointer, length *uint32) syscall.Errno {
	if int32(*length) < 0 {
		return syscall.EINVAL
	}
	*length = uint32(copy(unsafe.Slice((*byte)(value), *length), b))
	return 0
}

// takeError returns the error that SO_ERROR reports, once. The caller holds
// s.mu.
func (s *socket) takeError() syscall.Errno {
	err := s.err
	if p := s.packets.Load(); p != nil {
		err = errnoOf(sealed.Open(p.Internals()).Readiness(false).Err)
	}
	if s.state != listening {
		s.err = 0
	}
	return err
}

// control is rfcntl.
func (s *socket) control(cmd, arg int32) (int, syscall.Errno) {
	switch cmd {
	case syscall.F_GETFL:
		if s.nonblocking.Load() {
			return syscall.O_RDWR | syscall.O_NONBLOCK, 0
		}
		return syscall.O_RDWR, 0
	case syscall.F_SETFL:
		s.nonblocking.Store(arg&syscall.O_NONBLOCK != 0)
		return 0, 0
	case syscall.F_GETFD, syscall.F_SETFD:
		r, _, err := syscall.Syscall(syscall.SYS_FCNTL, uintptr(s.fd), uintptr(cmd), uintptr(arg))
		return int(r), err
	}
	return 0, syscall.ENOTSUP
}
