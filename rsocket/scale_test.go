// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// many is a config for many connections.
var many = rsocket.Config{ReadBuffer: 1 << 14, WriteBuffer: 1 << 14, SendQueue: 32, RecvQueue: 32}

const (
	// scaleEnv says how many connections TestScale makes.
	scaleEnv = "VERBENA_SCALE"
	// spareThreads is how many threads the runtime may start for reasons that
	// connections have no part in. On a busy machine, there may be one more for
	// each fourth connection: the system takes the processor from threads that
	// are in C.
	spareThreads = 8
	// closeThreads is how many threads may be in C while connections are
	// closed: 16 take turns at destroying, 4 answer the end of the peer, and 4
	// destroy IDs.
	closeThreads = 16 + 4 + 4
)

// usage is what a process takes from the system.
type usage struct{ Threads, Files, RSS int } // RSS in KiB

func measure() (u usage, err error) {
	runtime.GC()
	debug.FreeOSMemory() // also what cleanups of the first have freed
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		for name, n := range map[string]*int{"Threads": &u.Threads, "VmRSS": &u.RSS} {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				fmt.Sscan(rest, n)
			}
		}
	}
	files, err := os.ReadDir("/proc/self/fd")
	u.Files = len(files)
	return u, err
}

// crowd dials an address until there are as many connections as a line of
// standard input says, says what that takes, and waits for more, until it is
// killed. It neither reads nor writes. With another argument, the connections
// share a pool.
func crowd(args []string) error {
	d := rsocket.Dialer{Config: many}
	if len(args) > 1 {
		d.Config.Pool = new(rsocket.Pool)
	}
	return gather(func() error {
		_, err := d.Dial("rdma", args[0])
		return err
	})
}

// gather calls dial as often as the lines of standard input say.
func gather(dial func() error) error {
	conns := 0
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		want, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		for ; conns < want; conns++ {
			if err := dial(); err != nil {
				return fmt.Errorf("connection %d: %w", conns, err)
			}
		}
		u, err := measure()
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
			return err
		}
	}
	return nil
}

// cCrowd is crowd with C's rsockets.
func cCrowd(args []string) error {
	addr := netip.MustParseAddrPort(args[0])
	sa := librdmacm.SockaddrIn{SinFamily: syscall.AF_INET, SinPort: libibverbs.NewBe16(addr.Port())}
	*(*[4]byte)(unsafe.Pointer(&sa.SinAddr)) = addr.Addr().As4()
	return gather(func() error {
		n, err := librdmacm.Rsocket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		fd := int32(n)
		for _, o := range []struct{ level, name, value int32 }{
			{syscall.SOL_SOCKET, syscall.SO_RCVBUF, int32(many.ReadBuffer / 2)}, // of which C takes twice the value
			{syscall.SOL_SOCKET, syscall.SO_SNDBUF, int32(many.WriteBuffer / 2)},
			{librdmacm.SOL_RDMA, int32(librdmacm.RDMA_SQSIZE), int32(many.SendQueue)},
			{librdmacm.SOL_RDMA, int32(librdmacm.RDMA_RQSIZE), int32(many.RecvQueue)},
		} {
			if err := librdmacm.Rsetsockopt(fd, o.level, o.name, unsafe.Pointer(&o.value), 4); err != nil {
				return err
			}
		}
		return librdmacm.Rconnect(fd, (*librdmacm.Sockaddr)(unsafe.Pointer(&sa)), uint32(unsafe.Sizeof(sa)))
	})
}

// queuePairs returns how many queue pairs the kernel's devices have, of all
// processes.
func queuePairs(t *testing.T) int {
	t.Helper()
	if testdevice.Soft() {
		return 0
	}
	out, err := exec.Command("rdma", "resource", "show", "qp").Output()
	require.NoError(t, err)
	return bytes.Count(out, []byte("type RC"))
}

// Many connections through one listener take no threads; when their peer is
// killed, each call that waits ends soon; and closing all at once takes few
// threads, and leaves nothing.
func TestScale(t *testing.T) {
	needDevice(t)
	most := 200
	if !testdevice.Soft() {
		most = 20 // make scale-rsocket has more
	}
	most = soakSetting(t, scaleEnv, most, strconv.Atoi)
	each := map[string]int{}
	for _, c := range []struct {
		name string
		pool *rsocket.Pool
		peer []string
	}{
		{"alone", nil, []string{"crowd"}},
		{"pool", &rsocket.Pool{Receives: 1000}, []string{"crowd", "pool"}},
		{"C", nil, []string{"ccrowd"}},
	} {
		if c.name == "C" && testdevice.Soft() {
			continue // it does not have C's library
		}
		t.Run(c.name, func(t *testing.T) { requireScale(t, c.name, c.pool, c.peer, most, each) })
	}
	for _, how := range []string{"accepted, alone", "accepted, pool", "dialed, alone", "dialed, pool"} {
		fmt.Printf("| connections of rsocket, %s: KiB of the process for each | %d | %d | %d | |\n", how, most, each["dialed, C"], each[how])
	}
}

// scaleServer accepts connections, and reads and writes on each.
type scaleServer struct {
	ln    *rsocket.Listener
	waits sync.WaitGroup
	ends  chan error // of each call that waits
	conns []net.Conn
}

// accept accepts one whose peer takes so many bytes although it does not look.
func (s *scaleServer) accept(t *testing.T, window int) {
	t.Helper()
	require.NoError(t, s.ln.SetDeadline(time.Now().Add(patience)))
	conn, err := s.ln.Accept()
	require.NoError(t, err)
	s.conns = append(s.conns, conn)
	require.NoError(t, conn.SetWriteDeadline(time.Now().Add(patience)))
	_, err = conn.Write(make([]byte, window))
	require.NoError(t, err)
	require.NoError(t, conn.SetWriteDeadline(time.Time{}))
	s.waits.Go(func() {
		_, err := conn.Read(make([]byte, 1))
		s.ends <- err
	})
	s.waits.Go(func() {
		_, err := conn.Write(make([]byte, 1)) // for which there is no room
		s.ends <- err
	})
}

func requireScale(t *testing.T, name string, pool *rsocket.Pool, program []string, most int, each map[string]int) {
	before := queuePairs(t)
	config := many
	config.Pool = pool
	s := &scaleServer{ln: listen(t, config), ends: make(chan error, 2*most)}
	peer := process.Start(t, process.Command(t, program[0], append([]string{s.ln.Addr().String()}, program[1:]...)...))
	few, window := most/10, many.ReadBuffer
	if name == "C" {
		window /= 2 // the rest comes with C's first call
	}
	ours, theirs := map[int]usage{}, map[int]usage{}
	start := time.Now()
	for _, n := range []int{few, most} {
		_, err := fmt.Fprintln(peer.Stdin, n)
		require.NoError(t, err)
		for len(s.conns) < n {
			s.accept(t, window)
		}
		var u usage
		require.NoError(t, json.Unmarshal([]byte(peer.Line()), &u))
		theirs[n] = u
		ours[n], err = measure()
		require.NoError(t, err)
	}
	for which, u := range map[string]map[int]usage{"accepted, " + name: ours, "dialed, " + name: theirs} {
		each[which] = (u[most].RSS - u[few].RSS) / (most - few)
		t.Logf("each of %d, %s: %d KiB, %.2f descriptors; threads %d, and %d for %d of them", most, which, each[which],
			float64(u[most].Files-u[few].Files)/float64(most-few), u[most].Threads, u[few].Threads, few)
	}
	spare := max(spareThreads, most/4)
	require.LessOrEqual(t, ours[most].Threads, ours[few].Threads+spare)
	if name != "C" {
		require.LessOrEqual(t, theirs[most].Threads, theirs[few].Threads+spare)
	}
	t.Logf("connected after %v", time.Since(start))

	require.Empty(t, s.ends, "all wait")
	start = time.Now()
	peer.Kill()
	s.waits.Wait()
	t.Logf("the peer was killed: %d calls ended within %v", 2*most, time.Since(start))
	for range 2 * most {
		require.ErrorIs(t, <-s.ends, syscall.ECONNRESET)
	}
	start = time.Now()
	for _, conn := range s.conns {
		s.waits.Go(func() {
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	s.waits.Wait()
	closed, err := measure()
	require.NoError(t, err)
	t.Logf("closed after %v, with %d threads", time.Since(start), closed.Threads)
	require.LessOrEqual(t, closed.Threads, ours[few].Threads+closeThreads+spare)
	cmtest.Soon(t, "the kernel has freed all queue pairs", func() bool { return queuePairs(t) <= before })
}
