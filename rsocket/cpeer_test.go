// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// The C peer is a process of librdmacm's rsockets. Each line of its input is
// "listen" or "dial", an address, and then steps: "send:N", "recv:N", "eof",
// "echo", "shut:HOW", "wait" for another line, and "die". It closes the socket
// in the end, and says "done".

// pattern is the byte at a place of a stream that the C peer sends or expects.
func pattern(i int) byte { return byte(i*7>>3 ^ i) }

func patternOf(from, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = pattern(from + i)
	}
	return b
}

// cSocket is a C socket and how far its streams are.
type cSocket struct {
	fd             int32
	sent, received int
}

func runC([]string) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		s, err := openC(words[0], netip.MustParseAddrPort(words[1]))
		if err != nil {
			return err
		}
		for _, step := range words[2:] {
			if err := s.take(step, lines); err != nil {
				return fmt.Errorf("%s: %w", step, err)
			}
		}
		if err := librdmacm.Rclose(s.fd); err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

func (s *cSocket) take(step string, lines *bufio.Scanner) error {
	what, number, _ := strings.Cut(step, ":")
	n, _ := strconv.Atoi(number)
	switch what {
	case "send":
		return s.send(n)
	case "recv":
		return s.recv(n)
	case "eof":
		return s.eof()
	case "echo":
		return s.echo()
	case "shut":
		return librdmacm.Rshutdown(s.fd, int32(n))
	case "wait":
		lines.Scan()
		return nil
	case "die":
		self, err := os.FindProcess(os.Getpid())
		return errors.Join(err, self.Kill())
	}
	return errors.New("unknown")
}

// openC connects to an address, or prints the one it listens at and accepts.
func openC(how string, addr netip.AddrPort) (*cSocket, error) {
	sa := librdmacm.SockaddrIn{SinFamily: syscall.AF_INET, SinPort: libibverbs.NewBe16(addr.Port())}
	*(*[4]byte)(unsafe.Pointer(&sa.SinAddr)) = addr.Addr().As4()
	ptr, size := (*librdmacm.Sockaddr)(unsafe.Pointer(&sa)), uint32(unsafe.Sizeof(sa))
	n, err := librdmacm.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	fd := int32(n)
	if how == "dial" {
		return &cSocket{fd: fd}, librdmacm.Rconnect(fd, ptr, size)
	}
	if err := librdmacm.Rbind(fd, ptr, size); err != nil {
		return nil, err
	}
	if err := librdmacm.Rlisten(fd, 8); err != nil {
		return nil, err
	}
	if err := librdmacm.Rgetsockname(fd, ptr, &size); err != nil {
		return nil, err
	}
	fmt.Println(netip.AddrPortFrom(addr.Addr(), sa.SinPort.Host()))
	accepted, err := librdmacm.Raccept(fd, nil, nil)
	return &cSocket{fd: int32(accepted)}, errors.Join(err, librdmacm.Rclose(fd))
}

func (s *cSocket) send(n int) error {
	b := patternOf(s.sent, n)
	s.sent += n
	for len(b) > 0 {
		k, err := librdmacm.Rsend(s.fd, unsafe.Pointer(&b[0]), uint64(len(b)), 0)
		if err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

func (s *cSocket) recv(n int) error {
	b := make([]byte, n)
	for got := 0; got < n; {
		k, err := librdmacm.Rrecv(s.fd, unsafe.Pointer(&b[got]), uint64(n-got), 0)
		if err != nil {
			return err
		}
		if k == 0 {
			return io.ErrUnexpectedEOF
		}
		got += k
	}
	for i := range b {
		if b[i] != pattern(s.received+i) {
			return fmt.Errorf("byte %d is %#x", s.received+i, b[i])
		}
	}
	s.received += n
	return nil
}

func (s *cSocket) eof() error {
	var b [1]byte
	n, err := librdmacm.Rrecv(s.fd, unsafe.Pointer(&b[0]), 1, 0)
	if err == nil && n > 0 {
		err = errors.New("there is more")
	}
	return err
}

func (s *cSocket) echo() error {
	b := make([]byte, 10_000)
	for {
		n, err := librdmacm.Rrecv(s.fd, unsafe.Pointer(&b[0]), uint64(len(b)), 0)
		if err != nil || n == 0 {
			return err
		}
		for sent := 0; sent < n; {
			k, err := librdmacm.Rsend(s.fd, unsafe.Pointer(&b[sent]), uint64(n-sent), 0)
			if err != nil {
				return err
			}
			sent += k
		}
	}
}

// cPeer is the process, and what its connections have in common.
type cPeer struct {
	*process.Process
	ip netip.Addr
}

func newCPeer(t *testing.T) *cPeer {
	t.Helper()
	d := testdevice.Needs(t, testdevice.CLibrary)
	needDevice(t)
	p := &cPeer{process.Start(t, process.Command(t, "c")), d.IPv4}
	t.Cleanup(func() {
		_ = p.Stdin.Close() // it may have been killed
		if !t.Failed() {
			p.Wait()
		}
	})
	return p
}

func (p *cPeer) tell(t testing.TB, line ...string) {
	t.Helper()
	_, err := fmt.Fprintln(p.Stdin, strings.Join(line, " "))
	require.NoError(t, err)
}

// with runs f with a connection to the C peer, which takes these steps, once
// dialed from here and once from there.
func (p *cPeer) with(t *testing.T, config rsocket.Config, steps string, f func(t *testing.T, conn *rsocket.Conn)) {
	t.Run("dialed", func(t *testing.T) {
		needDevice(t)
		f(t, p.accepts(t, config, steps))
	})
	t.Run("accepted", func(t *testing.T) {
		needDevice(t)
		f(t, p.dials(t, config, steps))
	})
}

// accepts returns a connection that the peer accepts.
func (p *cPeer) accepts(t *testing.T, config rsocket.Config, steps string) *rsocket.Conn {
	t.Helper()
	p.tell(t, "listen", netip.AddrPortFrom(p.ip, 0).String(), steps)
	dialer := rsocket.Dialer{Config: shared(config)}
	conn, err := dialer.DialContext(bounded(t), "rdma", p.Line())
	require.NoError(t, err)
	return closedWith(t, conn)
}

// dials returns a connection that the peer dials.
func (p *cPeer) dials(t *testing.T, config rsocket.Config, steps string) *rsocket.Conn {
	t.Helper()
	ln := listen(t, config)
	p.tell(t, "dial", ln.Addr().String(), steps)
	return acceptOne(t, ln)
}

func readPattern(t testing.TB, conn net.Conn, n int) {
	t.Helper()
	got := make([]byte, n)
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err)
	require.Equal(t, patternOf(0, n), got)
}

func atEOF(t testing.TB, conn net.Conn) {
	t.Helper()
	n, err := conn.Read(make([]byte, 1))
	require.Zero(t, n)
	require.Equal(t, io.EOF, err)
}

// Bytes of both, in messages of all sizes, while both send.
func TestCEcho(t *testing.T) {
	peer := newCPeer(t)
	for name, config := range sizesOf {
		t.Run(name, func(t *testing.T) {
			peer.with(t, config, "echo", func(t *testing.T, conn *rsocket.Conn) {
				const total = 40_000
				data := patternOf(0, total)
				wrote := inBackground(func() error {
					for i, n := 0, 1; i < total; i, n = i+n, n*3/2+1 {
						if _, err := conn.Write(data[i:min(i+n, total)]); err != nil {
							return err
						}
					}
					return conn.CloseWrite()
				})
				readPattern(t, conn, total)
				require.NoError(t, <-wrote)
				atEOF(t, conn)
				require.Equal(t, "done", peer.Line())
			})
		})
	}
}

// Half closes in each direction, and shutdowns of both.
func TestCShutdown(t *testing.T) {
	peer := newCPeer(t)
	const long = 140_000 // more than the window
	for name, c := range map[string]struct {
		steps string
		f     func(t *testing.T, conn *rsocket.Conn)
	}{
		"it ends first": {"send:100 shut:1 recv:140000 eof", func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 100)
			atEOF(t, conn)
			_, err := conn.Write(patternOf(0, long))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
		}},
		"this ends first": {"recv:100 eof send:140000", func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, 100))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
			readPattern(t, conn, long)
			atEOF(t, conn)
		}},
		"it ends both": {"send:5 shut:2 wait", func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 5)
			atEOF(t, conn)
			_, err := conn.Write([]byte{1})
			isOpError(t, err, "write", syscall.ECONNRESET)
			peer.tell(t)
		}},
		"it does not read": {"shut:0 send:5 shut:1 wait", func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 5)
			atEOF(t, conn)
			_, err := conn.Write([]byte{1})
			isOpError(t, err, "write", syscall.ECONNRESET)
			peer.tell(t)
		}},
		"it closes": {"recv:3 send:140000", func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, 3))
			require.NoError(t, err)
			readPattern(t, conn, long)
			atEOF(t, conn)
		}},
		"this closes": {"recv:140000 eof", func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, long))
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}},
		"this does not read": {"send:5 wait recv:7 eof", func(t *testing.T, conn *rsocket.Conn) {
			require.NoError(t, conn.CloseRead())
			_, err := conn.Write(patternOf(0, 7))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
			peer.tell(t)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			peer.with(t, rsocket.Config{}, c.steps, func(t *testing.T, conn *rsocket.Conn) {
				c.f(t, conn)
				require.Equal(t, "done", peer.Line())
			})
		})
	}
}

// A C peer that is killed has not ended its data: a Read that waits fails, and
// so does a Write.
func TestCKilled(t *testing.T) {
	for _, connect := range []func(*cPeer, *testing.T, rsocket.Config, string) *rsocket.Conn{(*cPeer).accepts, (*cPeer).dials} {
		peer := newCPeer(t)
		conn := connect(peer, t, rsocket.Config{}, "send:1000 wait die")
		readPattern(t, conn, 1000)
		reading := inBackground(func() error {
			_, err := conn.Read(make([]byte, 1))
			return err
		})
		writing := inBackground(func() error {
			for {
				if _, err := conn.Write(make([]byte, 10_000)); err != nil {
					return err
				}
			}
		})
		peer.tell(t)
		isOpError(t, <-reading, "read", syscall.ECONNRESET)
		isOpError(t, <-writing, "write", syscall.ECONNRESET)
		require.Equal(t, -1, peer.Wait())
	}
}

// A C peer may be killed at any moment: while it connects, or in the middle of
// transfers in both directions.
func TestCKilledAnytime(t *testing.T) {
	for i := range 8 {
		peer := newCPeer(t)
		ln := listen(t, rsocket.Config{Pool: []*rsocket.Pool{nil, new(rsocket.Pool)}[i/2%2]})
		accepted := make(chan net.Conn, 1)
		accepting := inBackground(func() error {
			conn, err := ln.Accept()
			if err == nil {
				accepted <- conn
			}
			return err
		})
		peer.tell(t, "dial", ln.Addr().String(), "echo")
		if i%2 == 0 {
			require.NoError(t, <-accepting)
			conn := closedWith(t, <-accepted)
			begun := make(chan struct{})
			reading := inBackground(func() error {
				_, err := io.ReadFull(conn, make([]byte, 1))
				close(begun)
				if err == nil {
					_, err = io.Copy(io.Discard, conn)
				}
				return err
			})
			writing := inBackground(func() error {
				_, err := conn.ReadFrom(neverEnding{})
				return err
			})
			<-begun
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			peer.Kill()
			isOpError(t, <-reading, "read", syscall.ECONNRESET)
			isOpError(t, <-writing, "write", syscall.ECONNRESET)
			continue
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		peer.Kill()
		a, b := dialedPair(t, ln, accepted, accepting) // the listener goes on
		echo(t, a, b)
	}
}

// dialedPair connects to a listener at which a connection of a killed peer may
// come first. The first that is accepted goes to the channel.
func dialedPair(t *testing.T, ln *rsocket.Listener, accepted <-chan net.Conn, accepting <-chan error) (client, server *rsocket.Conn) {
	t.Helper()
	conn, err := rsocket.Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	client = closedWith(t, conn)
	require.NoError(t, <-accepting)
	server = closedWith(t, <-accepted)
	if server.RemoteAddr().String() != client.LocalAddr().String() { // the killed one's
		_, err := io.Copy(io.Discard, server)
		isOpError(t, err, "read", syscall.ECONNRESET)
		server = acceptOne(t, ln)
	}
	return client, server
}
