// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rsocket"
)

// victim dials an address so many times, and writes and reads on each
// connection until it is killed.
func victim(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for range n {
		conn, err := rsocket.Dial("rdma", args[0])
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		go func() {
			for i := 0; ; i = (i + 1) % 97 {
				if _, err := conn.Write(make([]byte, i*i)); err != nil {
					return
				}
			}
		}()
	}
	fmt.Println("connected")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// When a peer is killed in the middle of transfers, each call ends with an
// error.
func TestPeerIsKilled(t *testing.T) {
	const conns = 4
	ln := listen(t, rsocket.Config{})
	peer := process.Start(t, process.Command(t, "victim", ln.Addr().String(), strconv.Itoa(conns)))
	var ends sync.WaitGroup
	errs := make(chan error, 2*conns)
	for range conns {
		conn := acceptOne(t, ln)
		require.NoError(t, conn.SetDeadline(time.Time{}))
		begun := make(chan struct{})
		ends.Go(func() {
			_, err := io.ReadFull(conn, make([]byte, 10_000))
			close(begun)
			if err == nil {
				_, err = io.Copy(io.Discard, conn)
			}
			errs <- err
		})
		ends.Go(func() {
			for {
				if _, err := conn.Write(make([]byte, 30_000)); err != nil {
					errs <- err
					return
				}
			}
		})
		<-begun
	}
	require.Equal(t, "connected", peer.Line())
	peer.Kill()
	ends.Wait()
	for range 2 * conns {
		err := <-errs
		if !errors.Is(err, syscall.ETIMEDOUT) { // while a busy system takes its time to end the process, the device may give up
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	}
}

// Many goroutines use one connection, while others set deadlines and look at
// it; and what one of them writes stays together.
func TestManyGoroutines(t *testing.T) {
	const writers, each, size = 8, 50, 1500
	a, b := pair(t, rsocket.Config{}, rsocket.Config{ReadBuffer: 1 << 14})
	var writing, looking sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			message := make([]byte, size)
			for i := range message {
				message[i] = byte(w)
			}
			for range each {
				if _, err := a.Write(message); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	for range 4 {
		looking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, c := range []*rsocket.Conn{a, b} {
					_ = c.SetDeadline(time.Now().Add(patience))
					_ = c.SetKeepAlivePeriod(time.Millisecond)
					_ = c.SetLinger(3)
					_ = c.Buffered()
					_ = c.LocalAddr().String() + c.RemoteAddr().String()
				}
			}
		})
	}
	counts := [writers]int{}
	message := make([]byte, size)
	for range writers * each {
		_, err := io.ReadFull(b, message)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat(message[:1], size), message)
		counts[message[0]]++
	}
	close(stop)
	looking.Wait()
	writing.Wait()
	for _, n := range counts {
		require.Equal(t, each, n)
	}
}
