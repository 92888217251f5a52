// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// pooled returns the config of connections that share a pool.
func pooled(p *rsocket.Pool) rsocket.Config {
	c := many
	c.Pool = p
	return c
}

// opened counts the open objects of some kinds.
func opened() map[string]int {
	counts := map[string]int{}
	for _, o := range ibverbs.OpenObjects() {
		kind, _, _ := strings.Cut(o, " ")
		counts[kind]++
	}
	return counts
}

// Memory to send from is used while there is something to send, and by other
// connections then.
func TestPoolMemory(t *testing.T) {
	needPool(t)
	pool := new(rsocket.Pool)
	ln := listen(t, many) // so that only one end has the pool
	var conns []*rsocket.Conn
	for range 6 {
		a, b := pairOn(t, ln, pooled(pool))
		conns = append(conns, a)
		_, err := a.Write([]byte("hello"))
		require.NoError(t, err)
		_, err = a.ReadFrom(strings.NewReader(", world"))
		require.NoError(t, err)
		_, err = io.ReadFull(b, make([]byte, len("hello, world")))
		require.NoError(t, err)
		cmtest.Soon(t, "all was sent", func() bool {
			used, _ := rsocket.SlabsInUse(pool)
			return a.Buffered() == 0 && used == 0
		})
	}
	_, all := rsocket.SlabsInUse(pool)
	require.Equal(t, 2, all, "one for Write, one for ReadFrom")

	require.NoError(t, conns[0].SetWriteDeadline(time.Now().Add(time.Millisecond)))
	_, err := conns[0].Write(make([]byte, 1<<20)) // to a peer that does not read
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	cmtest.Soon(t, "what fits was sent", func() bool {
		used, _ := rsocket.SlabsInUse(pool)
		return conns[0].Buffered() == 0 && used == 0
	})
}

// Connections of a pool have no queues of their own, and the last one takes the
// pool's along.
func TestPool(t *testing.T) {
	needPool(t)
	before := opened()
	pool := &rsocket.Pool{Conns: 8}
	ln := listen(t, pooled(pool))
	var conns [][2]*rsocket.Conn
	for range 12 {
		a, b := pairOn(t, ln, pooled(pool))
		conns = append(conns, [2]*rsocket.Conn{a, b})
		echo(t, a, b)
	}
	added := opened()
	for kind := range added {
		added[kind] -= before[kind]
	}
	require.Equal(t, 24, added["QP"], "%v", added)
	for _, kind := range []string{"CQ", "SRQ", "PD"} {
		require.Equal(t, 3, added[kind], "%s: %v", kind, added)
	}
	slabs := 2 * 3
	if os.Getenv("VERBENA_HOSTILE") != "" {
		slabs = 24 // in use until the acknowledgements arrive, which are late
	}
	if !testdevice.Require(t).Has(t, testdevice.InfiniBand) {
		slabs += 3 // the memory of the receives
	}
	require.LessOrEqual(t, added["MR"], 24+slabs, "one for each connection, and the slabs that were in use at a time")
	var closing sync.WaitGroup
	for _, c := range conns {
		for _, end := range c {
			closing.Go(func() {
				if err := end.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	closing.Wait()
	require.Equal(t, before["CQ"], opened()["CQ"])
	require.Equal(t, before["SRQ"], opened()["SRQ"])
	a, b := pairOn(t, ln, pooled(pool)) // anew
	echo(t, a, b)
}

func TestPoolLimits(t *testing.T) {
	d := needDevice(t)
	if d.Has(t, testdevice.SRQs) {
		return // TestPool tests what a pool does
	}
	ln := listen(t, rsocket.Config{})
	_, err := (&rsocket.Dialer{Config: pooled(&rsocket.Pool{})}).DialContext(bounded(t), "rdma", ln.Addr().String())
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, " has no shared receive queues, which a Pool needs")
}

// A connection that is not read, and one that is closed in the middle, do not
// hold up others, however few receives there are.
func TestPoolSlowReader(t *testing.T) {
	needPool(t)
	for name, receives := range map[string]int{"enough receives": 0, "few receives": 20} {
		t.Run(name, func(t *testing.T) {
			pool := &rsocket.Pool{Receives: receives}
			ln := listen(t, pooled(pool))
			var slow [][2]*rsocket.Conn
			for range 4 {
				a, b := pairOn(t, ln, many)
				slow = append(slow, [2]*rsocket.Conn{a, b})
				_, err := a.Write([]byte("never read: ")) // also if the deadline comes at once
				require.NoError(t, err)
				require.NoError(t, a.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
				for err == nil {
					_, err = a.Write([]byte("never read: "))
				}
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
			good, other := pairOn(t, ln, many)
			data := bytesOf(200_000, 5)
			for i, c := range slow {
				wrote := inBackground(func() error {
					_, err := good.Write(data)
					return err
				})
				got := make([]byte, len(data))
				_, err := io.ReadFull(other, got)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
				require.NoError(t, <-wrote)
				if i%2 == 0 {
					require.NoError(t, c[1].SetLinger(0))
					require.NoError(t, c[1].Close())
				}
			}
			a, b := slow[1][0], slow[1][1] // nothing is lost
			require.NoError(t, a.SetWriteDeadline(time.Now().Add(patience)))
			wrote := inBackground(a.CloseWrite)
			all, err := io.ReadAll(b)
			require.NoError(t, err)
			require.NoError(t, <-wrote)
			require.Equal(t, strings.Repeat("never read: ", 1+len(all)/12)[:len(all)], string(all))
			require.NotEmpty(t, all)
		})
	}
}

// Deadlines, half closes and the ends of connections reach waiting calls,
// although another goroutine takes the completions.
func TestPoolEndsWaits(t *testing.T) {
	needPool(t)
	config := pooled(new(rsocket.Pool))
	ln := listen(t, config)
	leader, quiet := pairOn(t, ln, config)
	leading := inBackground(func() error { // waits first, and for all
		_, err := leader.Read(make([]byte, 1))
		return err
	})
	read := func(c *rsocket.Conn) <-chan error {
		return inBackground(func() error {
			_, err := c.Read(make([]byte, 1))
			return err
		})
	}
	for name, f := range map[string]func(a, b *rsocket.Conn) error{
		"the peer's end":       func(_, b *rsocket.Conn) error { return b.CloseWrite() },
		"the peer's close":     func(_, b *rsocket.Conn) error { return b.Close() },
		"the peer's abort":     func(_, b *rsocket.Conn) error { return errors.Join(b.SetLinger(0), b.Close()) },
		"a deadline":           func(a, _ *rsocket.Conn) error { return a.SetReadDeadline(time.Unix(1, 0)) },
		"a deadline that ends": func(a, _ *rsocket.Conn) error { return a.SetReadDeadline(time.Now().Add(time.Millisecond)) },
		"closing":              func(a, _ *rsocket.Conn) error { return a.Close() },
		"closing to read":      func(a, _ *rsocket.Conn) error { return a.CloseRead() },
	} {
		a, b := pairOn(t, ln, config)
		reading := read(a)
		require.NoError(t, f(a, b), name)
		require.Error(t, <-reading, name)
		require.NoError(t, b.Close(), name)
		require.NoError(t, a.Close(), name)
	}
	require.Empty(t, leading)
	_, err := quiet.Write([]byte{1})
	require.NoError(t, err)
	require.NoError(t, <-leading)
}

// A ReadFrom may return long after Close. Until then no other connection gets
// its memory.
func TestPoolMemoryAfterClose(t *testing.T) {
	needPool(t)
	pool := new(rsocket.Pool)
	ln := listen(t, pooled(pool))
	c, d := pairOn(t, ln, pooled(pool))
	a, _ := pairOn(t, ln, pooled(pool))
	began, ends := make(chan struct{}), make(chan struct{})
	copying := inBackground(func() error {
		_, err := a.ReadFrom(reader(func(b []byte) (int, error) {
			close(began)
			<-ends
			for i := range b {
				b[i] = 'x'
			}
			return len(b), nil
		}))
		return err
	})
	<-began
	require.NoError(t, a.Close())
	data := bytesOf(100_000, 9)
	wrote := inBackground(func() error {
		_, err := c.ReadFrom(struct{ io.Reader }{bytes.NewReader(data)})
		return err
	})
	got := make([]byte, 1000)
	_, err := io.ReadFull(d, got)
	require.NoError(t, err)
	close(ends)
	isOpError(t, <-copying, "write", net.ErrClosed)
	rest := make([]byte, len(data)-len(got))
	_, err = io.ReadFull(d, rest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, append(got, rest...)))
	require.NoError(t, <-wrote)
}

// Many connections of a pool talk at once, and come and go meanwhile.
func TestPoolCrowd(t *testing.T) {
	needPool(t)
	pool := &rsocket.Pool{Conns: 5}
	ln := listen(t, pooled(pool))
	require.NoError(t, ln.SetDeadline(time.Time{}))
	var serving sync.WaitGroup
	accepting := inBackground(func() error {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return err
			}
			serving.Go(func() {
				if _, err := io.Copy(conn, conn); err != nil {
					t.Error(err)
				}
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
	var dialing sync.WaitGroup
	for n := range 8 {
		dialing.Go(func() {
			for i := range 8 {
				if err := ask(t, ln.Addr().String(), pooled(pool), bytesOf(1+n*i*3000, uint64(n*i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	dialing.Wait()
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-accepting, net.ErrClosed)
	serving.Wait()
}

// ask sends data to a server that sends it back.
func ask(t *testing.T, address string, config rsocket.Config, data []byte) error {
	d := rsocket.Dialer{Config: config}
	conn, err := d.DialContext(bounded(t), "rdma", address)
	if err != nil {
		return err
	}
	c := conn.(*rsocket.Conn)
	wrote := inBackground(func() error {
		_, err := c.Write(data)
		return errors.Join(err, c.CloseWrite())
	})
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(data, got) {
		err = errors.New("other bytes came back")
	}
	return errors.Join(err, <-wrote, c.Close())
}
