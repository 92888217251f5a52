// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/dl"
	"github.com/verbena-go/verbena/softroce/internal/capi"
)

// useDevice makes package rsocket use the device of this library.
var useDevice = sync.OnceValue(func() syscall.Errno {
	dl.Provide("soft", dl.Device{Find: capi.Lookup})
	return errnoOf(dl.Use("soft"))
})

func init() { capi.SetRsockets(provide) }

// provide sets the functions of C's rsocket(7).
func provide(f *capi.CM) {
	f.Rsocket = open
	f.Rclose = closeSocket
	f.Rbind = func(fd int32, addr *librdmacm.Sockaddr, length uint32) syscall.Errno {
		return withAddr(fd, addr, length, (*socket).bind)
	}
	f.Rconnect = func(fd int32, addr *librdmacm.Sockaddr, length uint32) syscall.Errno {
		return withAddr(fd, addr, length, (*socket).connect)
	}
	f.Rlisten = func(fd, backlog int32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno { return s.listen(int(backlog)) })
	}
	f.Raccept = func(fd int32, addr *librdmacm.Sockaddr, length *uint32) (int, syscall.Errno) {
		return count(fd, func(s *socket) (int, syscall.Errno) {
			if addr != nil && length == nil {
				return 0, syscall.EFAULT
			}
			child, err := s.accept()
			if err != 0 {
				return 0, err
			}
			peer, _ := child.peerName()
			putAddr(peer, child.family, addr, length)
			return child.fd, 0
		})
	}
	f.Rshutdown = func(fd, how int32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno { return s.shutdown(how) })
	}
	f.Rgetpeername = func(fd int32, addr *librdmacm.Sockaddr, length *uint32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno {
			peer, err := s.peerName()
			if err != 0 {
				return err
			}
			return putAddr(peer, s.family, addr, length)
		})
	}
	f.Rgetsockname = func(fd int32, addr *librdmacm.Sockaddr, length *uint32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno { return putAddr(s.name(), s.family, addr, length) })
	}
	f.Rsetsockopt = func(fd, level, name int32, value unsafe.Pointer, length uint32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno { return s.setOption(option{level, name}, value, length) })
	}
	f.Rgetsockopt = func(fd, level, name int32, value unsafe.Pointer, length *uint32) syscall.Errno {
		return with(fd, func(s *socket) syscall.Errno { return s.option(option{level, name}, value, length) })
	}
	f.Rfcntl = func(fd, cmd, arg int32) (int, syscall.Errno) {
		return count(fd, func(s *socket) (int, syscall.Errno) { return s.control(cmd, arg) })
	}
	provideTransfers(f)
	f.Riomap, f.Riounmap, f.Riowrite = ioMap, ioUnmap, ioWrite
	providePolls(f)
}

// provideTransfers sets the functions that transfer data.
func provideTransfers(f *capi.CM) {
	recv := func(fd int32, all []iovec, flags int32) (received, *socket, syscall.Errno) {
		s := find(fd)
		if s == nil {
			return received{}, nil, syscall.EBADF
		}
		if s.isDatagram {
			r, err := s.recvDatagram(all, flags)
			return r, s, err
		}
		n, err := s.recv(all, flags)
		return received{n: n, size: n}, s, err
	}
	read := func(fd int32, all []iovec, flags int32) (int, syscall.Errno) {
		r, s, err := recv(fd, all, flags)
		return r.result(s, flags), err
	}
	send := func(fd int32, all []iovec, flags int32, to netip.AddrPort) (int, syscall.Errno) {
		return count(fd, func(s *socket) (int, syscall.Errno) {
			if s.isDatagram {
				return s.sendDatagram(all, flags, to)
			}
			return s.send(all, flags) // the address does not matter to a connection
		})
	}
	// sendTo is send to an address in C's memory, or to the peer if that is nil.
	sendTo := func(fd int32, all []iovec, flags int32, addr *librdmacm.Sockaddr, length uint32) (int, syscall.Errno) {
		var to netip.AddrPort
		if s := find(fd); s != nil && s.isDatagram && addr != nil {
			var err syscall.Errno
			if to, err = addrOf(addr, length, s.family); err != 0 {
				return 0, err
			}
		}
		return send(fd, all, flags, to)
	}
	f.Rrecv = func(fd int32, buf unsafe.Pointer, n uint64, flags int32) (int, syscall.Errno) {
		return read(fd, []iovec{{buf, n}}, flags)
	}
	f.Rread = func(fd int32, buf unsafe.Pointer, n uint64) (int, syscall.Errno) {
		return read(fd, []iovec{{buf, n}}, 0)
	}
	f.Rrecvfrom = func(fd int32, buf unsafe.Pointer, n uint64, flags int32, addr *librdmacm.Sockaddr, length *uint32) (int, syscall.Errno) {
		if addr != nil && length == nil {
			return 0, syscall.EFAULT
		}
		r, s, err := recv(fd, []iovec{{buf, n}}, flags)
		if err == 0 && addr != nil {
			err = putAddr(s.sender(r), s.family, addr, length)
		}
		return r.result(s, flags), err
	}
	f.Rsend = func(fd int32, buf unsafe.Pointer, n uint64, flags int32) (int, syscall.Errno) {
		return send(fd, []iovec{{buf, n}}, flags, netip.AddrPort{})
	}
	f.Rwrite = func(fd int32, buf unsafe.Pointer, n uint64) (int, syscall.Errno) {
		return send(fd, []iovec{{buf, n}}, 0, netip.AddrPort{})
	}
	f.Rsendto = func(fd int32, buf unsafe.Pointer, n uint64, flags int32, addr *librdmacm.Sockaddr, length uint32) (int, syscall.Errno) {
		return sendTo(fd, []iovec{{buf, n}}, flags, addr, length)
	}
	vector := func(transfer func(int32, []iovec, int32) (int, syscall.Errno)) func(int32, unsafe.Pointer, int32) (int, syscall.Errno) {
		return func(fd int32, iov unsafe.Pointer, n int32) (int, syscall.Errno) {
			if n < 0 {
				return 0, syscall.EINVAL
			}
			all, err := vectors(iov, uint64(n))
			if err != 0 {
				return 0, err
			}
			return transfer(fd, all, 0)
		}
	}
	write := func(fd int32, all []iovec, flags int32) (int, syscall.Errno) {
		return send(fd, all, flags, netip.AddrPort{})
	}
	f.Rreadv, f.Rwritev = vector(read), vector(write)
	message := func(m unsafe.Pointer) (*msghdr, []iovec, syscall.Errno) {
		if m == nil {
			return nil, nil, syscall.EFAULT
		}
		h := (*msghdr)(m)
		all, err := vectors(h.iov, h.iovlen)
		return h, all, err
	}
	f.Rrecvmsg = func(fd int32, m unsafe.Pointer, flags int32) (int, syscall.Errno) {
		h, all, err := message(m)
		if err != 0 {
			return 0, err
		}
		r, s, err := recv(fd, all, flags)
		if err != 0 {
			return 0, err
		}
		h.controllen, h.flags = 0, 0
		if r.size > r.n {
			h.flags = syscall.MSG_TRUNC
		}
		if !s.isDatagram || h.name == nil {
			h.namelen = 0
		} else {
			putAddr(r.from, s.family, (*librdmacm.Sockaddr)(h.name), &h.namelen)
		}
		return r.result(s, flags), 0
	}
	f.Rsendmsg = func(fd int32, m unsafe.Pointer, flags int32) (int, syscall.Errno) {
		h, all, err := message(m)
		if err != 0 {
			return 0, err
		}
		return sendTo(fd, all, flags, (*librdmacm.Sockaddr)(h.name), h.namelen)
	}
}

// maxPoll limits the descriptors of one call.
const maxPoll = 1 << 20

// providePolls sets the functions that wait for several sockets.
func providePolls(f *capi.CM) {
	f.Rpoll = func(fds unsafe.Pointer, n uint64, timeout int32) (int, syscall.Errno) {
		switch {
		case n > maxPoll:
			return 0, syscall.EINVAL
		case n > 0 && fds == nil:
			return 0, syscall.EFAULT
		}
		return poll(unsafe.Slice((*pollFD)(fds), n), millis(timeout))
	}
	f.Rselect = func(n int32, read, write, except, timeout unsafe.Pointer) (int, syscall.Errno) {
		if n < 0 || n > maxPoll {
			return 0, syscall.EINVAL
		}
		wait := time.Duration(-1)
		if timeout != nil {
			t := (*syscall.Timeval)(timeout)
			if t.Sec < 0 || t.Usec < 0 {
				return 0, syscall.EINVAL
			}
			wait = time.Duration(min(t.Sec, 1<<31))*time.Second + time.Duration(min(t.Usec, 1e9))*time.Microsecond
		}
		const bits = 8 * int32(unsafe.Sizeof(uintptr(0)))
		set := func(p unsafe.Pointer) []uintptr { return unsafe.Slice((*uintptr)(p), words(p, (n+bits-1)/bits)) }
		return selectSets(int(n), set(read), set(write), set(except), wait)
	}
	f.RepollCreate = newSet
	f.RepollCtl = func(epfd, op, fd int32, e unsafe.Pointer) syscall.Errno {
		set := findSet(epfd)
		switch {
		case fd < 0:
			return syscall.EBADF
		case set == nil || epfd == fd:
			return syscall.EINVAL
		}
		return set.control(op, fd, (*event)(e))
	}
	f.RepollWait = func(epfd int32, events unsafe.Pointer, most, timeout int32) (int, syscall.Errno) {
		set := findSet(epfd)
		switch {
		case set == nil || most <= 0 || most > maxPoll:
			return 0, syscall.EINVAL
		case events == nil:
			return 0, syscall.EFAULT
		}
		return set.wait(unsafe.Slice((*event)(events), most), millis(timeout))
	}
}

// words returns n, or 0 if there is no memory.
func words(p unsafe.Pointer, n int32) int32 {
	if p == nil {
		return 0
	}
	return n
}

// millis returns a timeout of poll(2).
func millis(timeout int32) time.Duration {
	if timeout < 0 {
		return -1
	}
	return time.Duration(timeout) * time.Millisecond
}

// with calls f with the socket of a descriptor.
func with(fd int32, f func(*socket) syscall.Errno) syscall.Errno {
	s := find(fd)
	if s == nil {
		return syscall.EBADF
	}
	return f(s)
}

// count is with for functions that return a number.
func count(fd int32, f func(*socket) (int, syscall.Errno)) (int, syscall.Errno) {
	s := find(fd)
	if s == nil {
		return 0, syscall.EBADF
	}
	return f(s)
}

// withAddr is with for functions that take an address.
func withAddr(fd int32, addr *librdmacm.Sockaddr, length uint32, f func(*socket, netip.AddrPort) syscall.Errno) syscall.Errno {
	return with(fd, func(s *socket) syscall.Errno {
		a, err := addrOf(addr, length, s.family)
		if err != 0 {
			return err
		}
		return f(s, a)
	})
}

// zoneNumber returns the number of an interface that a zone names by its name
// or number.
func zoneNumber(zone string) string {
	if i, err := net.InterfaceByName(zone); err == nil {
		return strconv.Itoa(i.Index)
	}
	return zone
}
