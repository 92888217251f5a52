// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// Each connection of the soak begins with a plan, from which both ends know
// what each of them does.
type plan struct {
	Seed         uint64
	There, Back  uint32 // bytes to the listener's end and from it
	Ending       ending
	DialedBegins bool // where one of them ends it early
}

type ending uint8

const (
	orderly ending = iota
	closes         // one end closes in the middle
	aborts         // one end closes in the middle, and does not linger
	endings
)

const planLen = 18

func (p plan) encode() []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, p) // of fixed size
	return b.Bytes()
}

// streamByte is a byte of a stream with a seed.
func streamByte(seed uint64, i int) byte { return byte(uint64(i)*(seed|1)>>3 ^ seed>>17) }

// stream makes the bytes of a stream.
type stream struct {
	seed uint64
	at   int
	end  int
}

func (s *stream) Read(b []byte) (int, error) {
	n := min(len(b), s.end-s.at)
	for i := range b[:n] {
		b[i] = streamByte(s.seed, s.at+i)
	}
	s.at += n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write checks the bytes of a stream.
func (s *stream) Write(b []byte) (int, error) {
	if s.at+len(b) > s.end {
		return 0, fmt.Errorf("%d bytes too many", s.at+len(b)-s.end)
	}
	for i := range b {
		if b[i] != streamByte(s.seed, s.at+i) {
			return i, fmt.Errorf("byte %d of %d is another one", s.at+i, s.end)
		}
	}
	s.at += len(b)
	return len(b), nil
}

// goOn returns what a call has failed with. If it has met a deadline, goOn sets
// the next one instead, which fails after Close.
func goOn(err error, r *rand.Rand, set func(time.Time) error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return set(nextDeadline(r))
	}
	return err
}

func nextDeadline(r *rand.Rand) time.Time {
	if r.IntN(4) > 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(r.IntN(3000)) * time.Microsecond)
}

// writeAll writes a stream in one way or another.
func writeAll(c *rsocket.Conn, r *rand.Rand, s *stream) error {
	if err := c.SetWriteDeadline(nextDeadline(r)); err != nil {
		return err
	}
	for s.at < s.end {
		var err error
		switch begin := s.at; r.IntN(3) {
		case 0:
			b := make([]byte, 1+r.IntN(20_000))
			k, _ := s.Read(b)
			var n int
			n, err = c.Write(b[:k])
			s.at = begin + n
		case 1:
			b := make([]byte, 1+r.IntN(5000))
			k, _ := s.Read(b)
			cut := r.IntN(k + 1)
			var n int64
			n, err = c.WriteBuffers(&net.Buffers{b[:cut], b[cut:k]})
			s.at = begin + int(n)
		default:
			var n int64
			n, err = c.ReadFrom(io.LimitReader(s, int64(1+r.IntN(30_000))))
			s.at = begin + int(n)
		}
		if err = goOn(err, r, c.SetWriteDeadline); err != nil {
			return err
		}
	}
	return c.CloseWrite()
}

// readAll reads a stream to its end in one way or another.
func readAll(c *rsocket.Conn, r *rand.Rand, s *stream) error {
	if err := c.SetReadDeadline(nextDeadline(r)); err != nil {
		return err
	}
	for {
		var err error
		switch r.IntN(4) {
		case 0, 1:
			b := make([]byte, 1+r.IntN(20_000))
			var n int
			n, err = c.Read(b)
			if _, wrong := s.Write(b[:n]); wrong != nil {
				return wrong
			}
		case 2:
			var b []byte
			b, err = c.Peek(1 + r.IntN(1000))
			if _, wrong := s.Write(b); wrong != nil {
				return wrong
			}
			if n, lost := c.Discard(len(b)); n != len(b) || lost != nil && len(b) > 0 {
				if !errors.Is(lost, os.ErrDeadlineExceeded) || n != 0 {
					return fmt.Errorf("discarded %d of %d: %w", n, len(b), lost)
				}
				s.at -= len(b)
				err = lost
			}
		default:
			if _, err = c.WriteTo(s); err == nil {
				err = io.EOF
			}
		}
		if err == io.EOF {
			return nil
		}
		if err = goOn(err, r, c.SetReadDeadline); err != nil {
			return err
		}
	}
}

// play does what the plan says of one end, and returns what was not as planned.
func (p plan) play(c *rsocket.Conn, dialed bool) error {
	out, in := &stream{seed: p.Seed, end: int(p.There)}, &stream{seed: ^p.Seed, end: int(p.Back)}
	which := uint64(0)
	if !dialed {
		out, in = &stream{seed: ^p.Seed, end: int(p.Back)}, &stream{seed: p.Seed, end: int(p.There)}
		which = 2
	}
	mine := p.Ending != orderly && p.DialedBegins == dialed
	var wrote, read error
	var both sync.WaitGroup
	both.Go(func() { wrote = writeAll(c, rand.New(rand.NewPCG(p.Seed, which)), out) })
	both.Go(func() { read = readAll(c, rand.New(rand.NewPCG(p.Seed, which+1)), in) })
	if mine {
		time.Sleep(time.Duration(p.Seed>>40%5000) * time.Microsecond)
		if p.Ending == aborts {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
	both.Wait()
	err := c.Close()
	switch {
	case err != nil:
	case p.Ending == orderly:
		err = errors.Join(wrote, read)
		if err == nil && (out.at != out.end || in.at != in.end) {
			err = fmt.Errorf("%d of %d bytes went out, %d of %d came", out.at, out.end, in.at, in.end)
		}
	default: // the bytes that have arrived are right; and it may have been done before
		err = errors.Join(unexpected(wrote), unexpected(read))
		if mine || p.Ending == closes {
			break
		}
		if err == nil && read == nil && in.at != in.end {
			err = errors.New("an abort looks like the end")
		}
	}
	if err != nil {
		return fmt.Errorf("%+v, dialed %v: %w", p, dialed, err)
	}
	return nil
}

// unexpected returns an error that does not come of an early end.
func unexpected(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// answer reads the plan of an accepted connection, and plays its part.
func answer(c *rsocket.Conn) error {
	head := make([]byte, planLen)
	if _, err := io.ReadFull(c, head); err != nil {
		_ = c.Close()
		return nil // of one that was killed
	}
	var p plan
	if err := binary.Read(bytes.NewReader(head), binary.BigEndian, &p); err != nil {
		return err
	}
	if p.Ending == endings { // the peer will be killed
		_, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		// A killed process may end so late that its device does not answer before
		// the kernel tells the peer.
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) {
			return fmt.Errorf("the peer was killed: %w", err)
		}
		return c.Close()
	}
	return p.play(c, false)
}

// soakConfig is a config of a few sizes, in half of all cases with the pool.
func soakConfig(r *rand.Rand, pool *rsocket.Pool) rsocket.Config {
	if r.IntN(2) == 0 {
		pool = nil
	}
	return rsocket.Config{
		Pool:       pool,
		ReadBuffer: 2048 + r.IntN(1<<15), WriteBuffer: 4096 + r.IntN(1<<15), SendQueue: 16 + r.IntN(100), RecvQueue: 16 + r.IntN(100),
		MaxInline: r.IntN(65) - 1, KeepAlive: time.Duration(1+r.IntN(50)) * time.Millisecond,
	}
}

// doomed dials an address a few times, and sends until it is killed.
func doomed(args []string) error {
	for range 3 {
		conn, err := rsocket.Dial("rdma", args[0])
		if err != nil {
			return err
		}
		if _, err := conn.Write(plan{Ending: endings}.encode()); err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		go func() { _, _ = io.Copy(conn, neverEnding{}) }()
	}
	fmt.Println("going")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) { return len(b), nil }

// soakSetting returns what an environment variable says, or a default.
func soakSetting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := parse(text)
	require.NoError(t, err, name)
	return v
}

// Connections of all sizes are made, used in both directions at once with
// deadlines, half closed, closed, aborted and killed at random, for
// VERBENA_SOAK, with VERBENA_SOAK_SEED. Every byte is right, every error is as
// it should be, and nothing hangs or is left.
func TestSoak(t *testing.T) {
	long := soakSetting(t, "VERBENA_SOAK", 3*time.Second, time.ParseDuration)
	seed := soakSetting(t, "VERBENA_SOAK_SEED", uint64(time.Now().UnixNano()), func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
	t.Logf("VERBENA_SOAK=%v VERBENA_SOAK_SEED=%d", long, seed)
	pool := &rsocket.Pool{Conns: 3, Receives: int(seed % 2 * 100)}
	if !needDevice(t).Has(t, testdevice.SRQs) {
		pool = nil
	}
	ln := listen(t, soakConfig(rand.New(rand.NewPCG(seed, 0)), pool))
	require.NoError(t, ln.SetDeadline(time.Time{}))
	failures := make(chan error, 100)
	fail := func(err error) {
		if err == nil {
			return
		}
		select {
		case failures <- err:
		default:
		}
	}
	var serving, answering, working sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					fail(err)
				}
				return
			}
			answering.Go(func() { fail(answer(conn.(*rsocket.Conn))) })
		}
	})
	until := time.Now().Add(long)
	counts := [4]int{}
	for w := range counts {
		working.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)+1))
			for ; time.Now().Before(until) && len(failures) == 0; counts[w]++ {
				p := plan{
					Seed: r.Uint64(), There: uint32(r.IntN(1 << (1 + r.IntN(18)))), Back: uint32(r.IntN(1 << (1 + r.IntN(18)))),
					DialedBegins: r.IntN(2) == 0,
				}
				if r.IntN(3) == 0 {
					p.Ending = ending(1 + r.IntN(int(endings)-1))
				}
				d := rsocket.Dialer{Config: soakConfig(r, pool)}
				conn, err := d.DialContext(bounded(t), "rdma", ln.Addr().String())
				if err == nil {
					_, err = conn.Write(p.encode())
				}
				if err != nil {
					fail(fmt.Errorf("dial: %w", err))
					return
				}
				fail(p.play(conn.(*rsocket.Conn), true))
			}
		})
	}
	r := rand.New(rand.NewPCG(seed, 99))
	kills := 0
	for ; time.Now().Before(until) && len(failures) == 0; kills++ {
		peer := process.Start(t, process.Command(t, "doomed", ln.Addr().String()))
		if r.IntN(4) > 0 { // else at any moment of its start
			require.Equal(t, "going", peer.Line())
		}
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		peer.Kill()
	}
	working.Wait()
	require.NoError(t, ln.Close())
	serving.Wait()
	answering.Wait()
	t.Logf("%d connections and %d killed processes", counts[0]+counts[1]+counts[2]+counts[3], kills)
	close(failures)
	for err := range failures {
		t.Error(err)
	}
}
