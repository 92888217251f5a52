// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// own4 returns an address that no other test binary of the machine uses, for
// each i another.
func own4(i byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 64 + byte(pid>>14&63), byte(pid >> 6), byte(pid<<2) | i&3})
}

// inbox keeps what a socket receives.
type inbox struct {
	sync.Mutex
	got []Datagram
}

func (b *inbox) receive(batch []Datagram) {
	b.Lock()
	defer b.Unlock()
	for _, d := range batch {
		d.Data = append([]byte(nil), d.Data...)
		b.got = append(b.got, d)
	}
}

func (b *inbox) len() int {
	b.Lock()
	defer b.Unlock()
	return len(b.got)
}

func openUDP(t *testing.T, a netip.Addr) (*Socket, *inbox) {
	t.Helper()
	return openTrains(t, a, nil)
}

func openTrains(t *testing.T, a netip.Addr, renumber func(b []byte, id uint16)) (*Socket, *inbox) {
	t.Helper()
	var s *Socket
	until(t, "the port is free", func() (ok bool) { // another test binary may have ::1
		var err error
		s, err = OpenUDP(a, renumber)
		if !errors.Is(err, syscall.EADDRINUSE) {
			require.NoError(t, err)
		}
		return err == nil
	})
	box := &inbox{}
	p := poll(t)
	s.Start(p, box.receive, nil, func() {})
	t.Cleanup(func() { _ = s.Close() })
	return s, box
}

// poll returns a poller in which a goroutine sleeps, and takes, until the test
// ends.
func poll(t *testing.T) *Poller {
	t.Helper()
	bell := NewBell(new(uint32))
	p, err := NewPoller(bell)
	require.NoError(t, err)
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !ended.Load() {
			bell.Hear()
			bell.Sleep(func() time.Duration { return time.Hour })
			p.Take()
		}
	}()
	t.Cleanup(func() {
		ended.Store(true)
		bell.Ring()
		<-done
	})
	return p
}

// A host on which no process has the port refuses datagrams. Its answer quotes
// them, and costs no other datagram.
func TestRefused(t *testing.T) {
	for name, addrs := range map[string][3]netip.Addr{
		"IPv4": {own4(0), own4(1), own4(2)},
	} {
		t.Run(name, func(t *testing.T) {
			type refusedDatagram struct {
				to   netip.Addr
				data string
			}
			heard := make(chan refusedDatagram, 100)
			s, err := OpenUDP(addrs[0], nil)
			require.NoError(t, err)
			box := &inbox{}
			s.Start(poll(t), box.receive, func(to netip.Addr, data []byte) { heard <- refusedDatagram{to, string(data)} }, func() {})
			t.Cleanup(func() { _ = s.Close() })
			other, got := openUDP(t, addrs[1])
			send := func(to netip.Addr, text string) {
				s.Send(to, 0, 64, len(text), func(b []byte, _ uint16) bool {
					copy(b, text)
					return true
				})
			}
			const rounds = 50
			for i := range rounds {
				send(addrs[2], fmt.Sprint("to a closed port ", i))
				send(addrs[1], fmt.Sprint("to an open one ", i))
				s.Flush()
				r := take(t, heard, "the host's refusal")
				require.Equal(t, refusedDatagram{addrs[2], fmt.Sprint("to a closed port ", i)}, r)
			}
			other.Send(addrs[0], 0, 64, 4, func(b []byte, _ uint16) bool { return true })
			other.Flush()
			until(t, "the datagrams to open ports arrive", func() bool { return got.len() == rounds && box.len() == 1 })
		})
	}
}

// TestDatagrams sends datagrams of many sizes between two sockets. They arrive
// as they are, with what is in their IP headers.
func TestDatagrams(t *testing.T) {
	for name, addrs := range map[string][2]netip.Addr{
		"IPv4":          {own4(0), own4(1)},
		"IPv4, to self": {own4(0), own4(0)},
		"IPv6":          {netip.IPv6Loopback(), netip.IPv6Loopback()},
	} {
		t.Run(name, func(t *testing.T) {
			from, box := openUDP(t, addrs[0])
			to := from
			if addrs[1] != addrs[0] {
				to, box = openUDP(t, addrs[1])
			}
			require.Equal(t, addrs[1], to.Addr())
			n := 0
			for range 5 {
				for i := range 2 * batch { // fewer than a socket's buffer has room for
					size := 20 + (n*977)%(maxDatagram-20+1)
					if i%8 != 0 {
						size = 20
					}
					from.Send(addrs[1], uint8(n%7), uint8(60+n%5), size, func(b []byte, _ uint16) bool {
						require.Len(t, b, size)
						clear(b)
						binary.BigEndian.PutUint32(b, uint32(n))
						return true
					})
					n++
				}
				from.Send(addrs[1], 0, 64, 20, func([]byte, uint16) bool { return false })
				from.Send(addrs[1], 0, 64, maxDatagram+1, func([]byte, uint16) bool { panic("there is no room for it") })
				from.Flush()
				until(t, "the datagrams arrive", func() bool { return box.len() == n })
			}
			for i, d := range box.got {
				require.Equal(t, uint32(i), binary.BigEndian.Uint32(d.Data))
				require.Equal(t, netip.AddrPortFrom(addrs[0], UDPPort), d.From)
				require.Equal(t, uint8(i%7), d.TrafficClass)
				require.Equal(t, uint8(60+i%5), d.HopLimit)
			}
			require.False(t, from.Blocked())
		})
	}
}

// TestTrains sends datagrams that the system takes together, and the same when
// it turns out that it does not. They arrive one by one.
func TestTrains(t *testing.T) {
	sizes := []int{1056, 1040, 1040, 1040, 20, 20, 16, 20, 4116, 4116, 100, 0, 0, 100}
	for range 300 {
		sizes = append(sizes, 1040)
	}
	for name, addrs := range map[string][2]netip.Addr{
		"IPv4": {own4(0), own4(1)},
		"IPv6": {netip.IPv6Loopback(), netip.IPv6Loopback()},
	} {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", refused), func(t *testing.T) {
				renumbered := 0
				from, box := openTrains(t, addrs[0], func(b []byte, id uint16) {
					renumbered++
					binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])-id)
				})
				if addrs[1] != addrs[0] {
					_, box = openUDP(t, addrs[1])
				}
				require.True(t, from.out.trains)
				if refused { // Linux takes no trains without checksums
					require.NoError(t, from.raw.Control(func(fd uintptr) {
						if addrs[0].Is4() {
							require.NoError(t, syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_NO_CHECK, 1))
						} else {
							const udpNoCheck6TX = 101
							require.NoError(t, syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpNoCheck6TX, 1))
						}
					}))
				}
				numbered := 0
				for i, size := range sizes {
					from.Send(addrs[1], usualClass, 64, size, func(b []byte, id uint16) bool {
						require.LessOrEqual(t, id, uint16(maxSegments))
						if id > 0 {
							numbered++
						}
						clear(b)
						if len(b) >= 6 {
							binary.BigEndian.PutUint32(b, uint32(i))
							binary.BigEndian.PutUint16(b[4:], id)
						}
						return true
					})
					if i%100 == 99 {
						from.Flush()
						until(t, "the datagrams of the batch arrive", func() bool { return box.len() == i+1 })
					}
				}
				if !refused {
					require.Less(t, from.out.n, 3)
				}
				from.Flush()
				until(t, "all datagrams arrive", func() bool { return box.len() == len(sizes) })
				together := 0
				for i, d := range box.got {
					require.Len(t, d.Data, sizes[i], i)
					if len(d.Data) < 6 {
						continue
					}
					require.Equal(t, uint32(i), binary.BigEndian.Uint32(d.Data))
					if binary.BigEndian.Uint16(d.Data[4:]) > 0 {
						together++
					}
				}
				require.Equal(t, addrs[0].Is4(), numbered > 0)
				require.Equal(t, !refused, from.out.trains)
				switch {
				case !refused:
					require.Equal(t, numbered, together)
				case addrs[0].Is4():
					require.Equal(t, numbered, renumbered)
					require.Zero(t, together)
				default:
					require.Zero(t, renumbered)
				}
			})
		}
	}
}

// TestLongDatagram sends more than a packet can be, which is dropped, and then
// one that can.
func TestLongDatagram(t *testing.T) {
	to, box := openUDP(t, own4(0))
	c, err := net.Dial("udp4", netip.AddrPortFrom(to.Addr(), UDPPort).String())
	require.NoError(t, err)
	defer c.Close()
	for _, size := range []int{maxDatagram + 1, 60000, 0, 1, maxDatagram} {
		_, err := c.Write(make([]byte, size))
		require.NoError(t, err)
	}
	until(t, "the datagrams that fit arrive", func() bool { return box.len() == 3 })
	for i, size := range []int{0, 1, maxDatagram} {
		require.Len(t, box.got[i].Data, size)
	}
}

// TestUnreachable sends to where nothing can be sent to, and then where
// something can.
func TestUnreachable(t *testing.T) {
	from, box := openUDP(t, own4(0))
	send := func(to netip.Addr) {
		from.Send(to, 0, 64, 20, func([]byte, uint16) bool { return true })
	}
	send(netip.IPv6Loopback())
	send(netip.MustParseAddr("255.255.255.255"))
	send(own4(0))
	send(netip.MustParseAddr("0.0.0.1"))
	from.Flush()
	until(t, "the datagram to an address of this host arrives", func() bool { return box.len() == 1 })
	require.NoError(t, from.Close())
	send(own4(0))
	from.Flush() // does nothing
	require.False(t, from.Poll())
	require.ErrorIs(t, from.Close(), os.ErrClosed)
}

func TestTakenPort(t *testing.T) {
	openUDP(t, own4(0))
	_, err := OpenUDP(own4(0), nil)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = OpenUDP(netip.MustParseAddr("192.0.2.77"), nil)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

func TestIdentification(t *testing.T) {
	require.NoError(t, CheckIdentification(own4(2)))
	require.ErrorIs(t, CheckIdentification(netip.MustParseAddr("192.0.2.77")), syscall.EADDRNOTAVAIL)
}

// TestIdentificationIsSeen probes a socket that is connected: its packets have
// a counter.
func TestIdentificationIsSeen(t *testing.T) {
	other, err := net.ListenPacket("udp4", net.JoinHostPort(own4(3).String(), "0"))
	require.NoError(t, err)
	defer other.Close()
	c, err := listenUDP(own4(3), 0)
	require.NoError(t, err)
	defer c.Close()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		// With IP_PMTUDISC_DONT, packets may be fragmented.
		require.NoError(t, syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, 0))
		require.NoError(t, syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soTimestamping, txSched|software))
	}))
	different := 0
	for range 10 {
		id, err := probe(c, raw)
		require.NoError(t, err)
		if id != 0 {
			different++
		}
	}
	require.Positive(t, different)
}

// TestSlowNetwork sends more than the system takes. A connection of TCP stands
// for the socket: that ignores the address of what is sent, and takes nothing
// while its peer does not read.
func TestSlowNetwork(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	reader, err := l.Accept()
	require.NoError(t, err)
	defer reader.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var resumed atomic.Int32
	s := &Socket{conn: c, raw: raw}
	require.NoError(t, raw.Control(func(fd uintptr) { s.fd = int32(fd) }))
	s.Start(poll(t), func([]Datagram) {}, nil, func() { resumed.Add(1) })
	send := func() (filled bool) {
		s.Send(own4(0), 0, 64, maxDatagram, func([]byte, uint16) bool {
			filled = true
			return true
		})
		return filled
	}
	require.Zero(t, s.Mark())
	for send() { // until as many wait as may
	}
	require.True(t, s.Blocked())
	require.False(t, send())
	mark := s.Mark()
	require.False(t, s.Left(mark))
	s.GiveUp()
	require.True(t, s.Left(mark))
	s.Flush() // does not block
	require.Zero(t, resumed.Load())
	go func() { _, _ = io.Copy(io.Discard, reader) }()
	until(t, "the socket takes datagrams again", func() bool { return resumed.Load() == 1 })
	require.False(t, s.Blocked())
	require.True(t, s.Idle())
	require.True(t, s.Left(mark))
	require.True(t, send())
	require.False(t, s.Left(s.Mark()), "it has gone on since it was given up")
	s.Flush()
	require.True(t, s.Idle())
	require.True(t, send())
	mark = s.Mark()
	require.NoError(t, s.Close())
	require.True(t, s.Left(mark), "what a closed socket keeps is lost")
}

// TestSystemRefuses opens sockets on a thread for which a filter of the
// kernel's refuses what they need, as in a sandbox.
func TestSystemRefuses(t *testing.T) {
	for name, call := range map[string]uintptr{"sendmmsg": sendmmsg, "recvmmsg": recvmmsg} {
		for _, e := range []syscall.Errno{syscall.EPERM, syscall.ENOSYS} {
			t.Run(name+" "+e.Error(), func(t *testing.T) {
				opened := make(chan error)
				go func() {
					runtime.LockOSThread() // and the thread ends with the goroutine
					if err := refuse(call, e); err != nil {
						opened <- err
						return
					}
					s, err := OpenUDP(own4(0), nil)
					if err == nil {
						_ = s.Close()
					}
					opened <- err
				}()
				err := take(t, opened, "the result of OpenUDP")
				require.ErrorIs(t, err, e)
				require.EqualError(t, err, name+": "+e.Error())
			})
		}
	}
	s, err := OpenUDP(own4(0), nil) // no port is still taken
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

// refuse lets a system call of this thread fail.
func refuse(call uintptr, e syscall.Errno) error {
	const (
		setNoNewPrivs, setSeccomp, filterMode = 38, 22, 2
		load, equal, give                     = 0x20, 0x15, 0x06 // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		allow, fail                           = 0x7FFF0000, 0x00050000
	)
	filter := []syscall.SockFilter{
		{Code: load}, // the call's number
		{Code: equal, Jf: 1, K: uint32(call)},
		{Code: give, K: fail | uint32(e)},
		{Code: give, K: allow},
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return os.NewSyscallError("prctl", e)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, setSeccomp, filterMode, uintptr(unsafe.Pointer(&program))); e != 0 {
		return os.NewSyscallError("prctl", e)
	}
	return nil
}

// TestSystemRefusesLater has a socket fail to receive, time after time. It
// rests in between.
func TestSystemRefusesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r receivePause
		for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000} {
			r.after(syscall.EPERM)
			require.Equal(t, pause*time.Millisecond, time.Until(r.until), i)
			time.Sleep(time.Until(r.until))
		}
		r.after(syscall.EAGAIN)
		require.Zero(t, r)
	})
}

// TestRest has the system refuse recvmmsg to a thread. Sleep does not end at
// once each time because of a datagram that is there, and the datagram arrives
// when the system does not refuse any more.
func TestRest(t *testing.T) {
	from, _ := openUDP(t, own4(0))
	s, err := OpenUDP(own4(1), nil)
	require.NoError(t, err)
	defer s.Close()
	p, err := NewPoller(NewBell(new(uint32)))
	require.NoError(t, err)
	box := &inbox{}
	s.Start(p, box.receive, nil, func() {})
	from.Send(own4(1), 0, 64, 20, func([]byte, uint16) bool { return true })
	from.Flush()
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := refuse(recvmmsg, syscall.EPERM)
		p.sleep(time.Hour)
		p.Take()
		refused <- err
	}()
	require.NoError(t, take(t, refused, "the end of the sleep"))
	require.Zero(t, box.len())
	require.Equal(t, minPause, s.pause.pause)
	s.pause.until = time.Now().Add(time.Hour)
	p.sleep(time.Millisecond) // for all of it
	require.Empty(t, p.polled)
	s.pause.until = time.Now()
	p.sleep(time.Hour)
	p.Take()
	require.Equal(t, 1, box.len())
	require.Zero(t, s.pause)
}

// TestNoPoll has the system refuse ppoll to a thread. What is there arrives
// nevertheless, and Sleep does not return at once.
func TestNoPoll(t *testing.T) {
	from, _ := openUDP(t, own4(0))
	s, err := OpenUDP(own4(1), nil)
	require.NoError(t, err)
	defer s.Close()
	p, err := NewPoller(NewBell(new(uint32)))
	require.NoError(t, err)
	box := &inbox{}
	s.Start(p, box.receive, nil, func() {})
	from.Send(own4(1), 0, 64, 20, func([]byte, uint16) bool { return true })
	from.Flush()
	refused := make(chan error)
	var slept time.Duration
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := refuse(syscall.SYS_PPOLL, syscall.EPERM)
		began := time.Now()
		p.sleep(time.Hour)
		slept = time.Since(began)
		p.Take()
		refused <- err
	}()
	require.NoError(t, take(t, refused, "the end of the sleep"))
	require.Equal(t, 1, box.len())
	require.GreaterOrEqual(t, slept, minPause)
}

// TestCloseWhileReceiving closes a socket while what has arrived is being
// passed on to a function that waits for a lock of the caller of Close, and
// while Poll would like to receive, too.
func TestCloseWhileReceiving(t *testing.T) {
	from, _ := openUDP(t, own4(0))
	s, err := OpenUDP(own4(1), nil)
	require.NoError(t, err)
	var mu sync.Mutex
	mu.Lock()
	receives := make(chan struct{}, 1)
	s.Start(poll(t), func([]Datagram) {
		receives <- struct{}{}
		mu.Lock()
		defer mu.Unlock()
	}, nil, func() {})
	from.Send(own4(1), 0, 64, 20, func([]byte, uint16) bool { return true })
	from.Flush()
	take(t, receives, "the datagram")
	polled := make(chan bool)
	go func() { polled <- s.Poll() }()
	require.NoError(t, s.Close())
	mu.Unlock()
	require.False(t, take(t, polled, "the end of Poll"))
}

// TestCloseFreesPort closes sockets in which one thread sleeps and from which
// another receives. Their address is free at once.
func TestCloseFreesPort(t *testing.T) {
	p := poll(t)
	s, err := OpenUDP(own4(0), nil)
	require.NoError(t, err)
	for range 100 {
		s.Start(p, func([]Datagram) {}, nil, func() {})
		p.bell.Wake()
		var ended atomic.Bool
		var users sync.WaitGroup
		users.Go(func() {
			for !ended.Load() {
				s.Poll()
				runtime.Gosched()
			}
		})
		until(t, "the poller sleeps on the socket", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.asleep && slices.Contains(p.polled, s)
		})
		require.NoError(t, s.Close())
		next, err := OpenUDP(own4(0), nil)
		ended.Store(true)
		users.Wait()
		require.NoError(t, err)
		s = next
	}
	require.NoError(t, s.Close())
}
