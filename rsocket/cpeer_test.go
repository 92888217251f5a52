package rsocket_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// The C peer is a process of librdmacm's rsockets. Its arguments are "listen" or "dial", an address, and then steps: "send:N", "recv:N",
// "eof", "echo", "shut:HOW", "wait" for a line, "close" and "die".

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

func runC(args []string) error {
	s, err := openC(args[0], netip.MustParseAddrPort(args[1]))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for _, step := range args[2:] {
		what, number, _ := strings.Cut(step, ":")
		n, _ := strconv.Atoi(number)
		var err error
		switch what {
		case "send":
			err = s.send(n)
		case "recv":
			err = s.recv(n)
		case "eof":
			err = s.eof()
		case "echo":
			err = s.echo()
		case "shut":
			err = librdmacm.Rshutdown(s.fd, int32(n))
		case "wait":
			lines.Scan()
		case "close":
			err = librdmacm.Rclose(s.fd)
		case "die":
			err = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
		fmt.Println("done", step)
	}
	return nil
}

// openC connects to an address, or prints the one it listens at and accepts.
func openC(how string, addr netip.AddrPort) (cSocket, error) {
	sa := librdmacm.SockaddrIn{SinFamily: syscall.AF_INET, SinPort: libibverbs.NewBe16(addr.Port())}
	*(*[4]byte)(unsafe.Pointer(&sa.SinAddr)) = addr.Addr().As4()
	ptr, size := (*librdmacm.Sockaddr)(unsafe.Pointer(&sa)), uint32(unsafe.Sizeof(sa))
	fd, err := librdmacm.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return cSocket{}, err
	}
	if how == "dial" {
		return cSocket{fd: int32(fd)}, librdmacm.Rconnect(int32(fd), ptr, size)
	}
	if err := librdmacm.Rbind(int32(fd), ptr, size); err != nil {
		return cSocket{}, err
	}
	if err := librdmacm.Rlisten(int32(fd), 8); err != nil {
		return cSocket{}, err
	}
	if err := librdmacm.Rgetsockname(int32(fd), ptr, &size); err != nil {
		return cSocket{}, err
	}
	fmt.Println(netip.AddrPortFrom(addr.Addr(), sa.SinPort.Host()))
	accepted, err := librdmacm.Raccept(int32(fd), nil, nil)
	return cSocket{fd: int32(accepted)}, err
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

// withC runs f with a connection to a C peer that takes these steps, once dialed from here and once from there.
func withC(t *testing.T, config rsocket.Config, steps []string, f func(t *testing.T, conn *rsocket.Conn, peer *process.Process)) {
	d := testdevice.Needs(t, testdevice.CLibrary)
	t.Run("dialed", func(t *testing.T) {
		needDevice(t)
		peer := process.Start(t, process.Command(t, "c", append([]string{"listen", netip.AddrPortFrom(d.IPv4, 0).String()}, steps...)...))
		dialer := rsocket.Dialer{Config: config}
		conn, err := dialer.DialContext(bounded(t), "rdma", peer.Line())
		require.NoError(t, err)
		f(t, closedWith(t, conn), peer)
	})
	t.Run("accepted", func(t *testing.T) {
		ln := listen(t, config)
		peer := process.Start(t, process.Command(t, "c", append([]string{"dial", ln.Addr().String()}, steps...)...))
		f(t, acceptOne(t, ln), peer)
	})
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
	for name, config := range sizesOf {
		t.Run(name, func(t *testing.T) {
			withC(t, config, []string{"echo", "close"}, func(t *testing.T, conn *rsocket.Conn, peer *process.Process) {
				const total = 200_000
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
				require.Zero(t, peer.Wait())
			})
		})
	}
}

// Half closes in each direction, and shutdowns of both.
func TestCShutdown(t *testing.T) {
	const rd, wr, both = "shut:0", "shut:1", "shut:2"
	for name, c := range map[string]struct {
		steps []string
		f     func(t *testing.T, conn *rsocket.Conn)
	}{
		"it ends first": {[]string{"send:100", wr, "recv:200000", "eof", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 100)
			atEOF(t, conn)
			_, err := conn.Write(patternOf(0, 200_000))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
		}},
		"this ends first": {[]string{"recv:100", "eof", "send:200000", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, 100))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
			readPattern(t, conn, 200_000)
			atEOF(t, conn)
		}},
		"it ends both": {[]string{"send:5", both, "wait", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 5)
			atEOF(t, conn)
			_, err := conn.Write([]byte{1})
			isOpError(t, err, "write", syscall.ECONNRESET)
		}},
		"it does not read": {[]string{rd, "send:5", wr, "wait", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			readPattern(t, conn, 5)
			atEOF(t, conn)
			_, err := conn.Write([]byte{1})
			isOpError(t, err, "write", syscall.ECONNRESET)
		}},
		"it closes": {[]string{"recv:3", "send:100000", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, 3))
			require.NoError(t, err)
			readPattern(t, conn, 100_000)
			atEOF(t, conn)
		}},
		"this closes": {[]string{"recv:100000", "eof", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			_, err := conn.Write(patternOf(0, 100_000))
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}},
		"this does not read": {[]string{"send:5", "wait", "recv:7", "eof", "close"}, func(t *testing.T, conn *rsocket.Conn) {
			require.NoError(t, conn.CloseRead())
			_, err := conn.Write(patternOf(0, 7))
			require.NoError(t, err)
			require.NoError(t, conn.CloseWrite())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withC(t, rsocket.Config{}, c.steps, func(t *testing.T, conn *rsocket.Conn, peer *process.Process) {
				c.f(t, conn)
				_, _ = fmt.Fprintln(peer.Stdin) // it may have ended
				require.Zero(t, peer.Wait())
			})
		})
	}
}

// A C peer that is killed has not ended its data: a Read that waits fails, and so does a Write.
func TestCKilled(t *testing.T) {
	withC(t, rsocket.Config{}, []string{"send:1000", "wait", "die"}, func(t *testing.T, conn *rsocket.Conn, peer *process.Process) {
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
		_, err := fmt.Fprintln(peer.Stdin)
		require.NoError(t, err)
		isOpError(t, <-reading, "read", syscall.ECONNRESET)
		isOpError(t, <-writing, "write", syscall.ECONNRESET)
		require.Equal(t, -1, peer.Wait())
	})
}
