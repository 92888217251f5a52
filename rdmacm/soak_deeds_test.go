package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// maxMessage is the longest message of a soak: a packet where more crash the
// kernel.
var maxMessage = func() int {
	if testdevice.RepeatsPackets() {
		return 1 << 10
	}
	return 8 << 10
}()

var deeds = []deed{
	{"exchange messages", 20, (*soak).exchange},
	{"write and read the server's memory", 10, (*soak).writeAndRead},
	{"be hung up on", 10, (*soak).beHungUpOn},
	{"be refused", 10, (*soak).beRefused},
	{"find nobody", 5, (*soak).findNobody},
	{"cancel dialing", 20, (*soak).cancelDialing},
	{"be given up", 10, (*soak).beGivenUp},
	{"close while busy", 10, (*soak).closeWhileBusy},
	{"crowd a connection", 10, (*soak).crowd},
	{"attack", 10, (*soak).attack},
	{"close the listener", 5, (*soak).closeListener},
	{"kill a server", 1, (*soak).killServer},
	{"kill a client", 1, (*soak).killClient},
}

// dial connects to the server with an order.
func (s *soak) dial(ctx context.Context, w *worker, do verb, number uint32) (*rdmacm.Conn, *ibverbs.MR, error) {
	var mr *ibverbs.MR
	o := order{do, uint8(w.n), number}
	conn, err := rdmacm.Dial(ctx, s.address, &rdmacm.Config{PrivateData: o.bytes(), Setup: func(c *rdmacm.Conn) (err error) {
		mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite)
		return err
	}})
	return conn, mr, err
}

// exchange sends random messages, and compares what comes back.
func (s *soak) exchange(w *worker) error {
	messages := w.IntN(20)
	conn, mr, err := s.dial(w.ctx, w, echo, 0)
	if err != nil {
		return err
	}
	for range messages {
		if err := w.message(conn, mr); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	return conn.Close()
}

// message sends one and waits for its echo.
func (w *worker) message(conn *rdmacm.Conn, mr *ibverbs.MR) error {
	n := w.IntN(maxMessage + 1)
	w.fill(mr.Bytes()[:n])
	pending, err := conn.PostRecv(mr.Sub(maxMessage, maxMessage))
	if err != nil {
		return err
	}
	if err := conn.Send(w.ctx, mr.Sub(0, n)); err != nil {
		return err
	}
	got, err := pending.Wait(w.ctx)
	if err != nil {
		return err
	}
	if !bytes.Equal(mr.Bytes()[:n], mr.Bytes()[maxMessage:maxMessage+got]) {
		return fmt.Errorf("sent %d bytes, and got other %d back", n, got)
	}
	return nil
}

func (w *worker) fill(b []byte) {
	x := w.Uint64()
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
}

// writeAndRead writes to the worker's slot, reads it, and compares.
func (s *soak) writeAndRead(w *worker) error {
	n, at := w.IntN(maxMessage)+1, w.IntN(slotSize-maxMessage)
	conn, mr, err := s.dial(w.ctx, w, echo, 0)
	if err != nil {
		return err
	}
	w.fill(mr.Bytes()[:n])
	remote := parseOffer(conn.PeerData())
	remote.Addr, remote.Len = remote.Addr+uint64(at), uint64(n)
	err = conn.Write(w.ctx, remote, mr.Sub(0, n))
	if err == nil {
		err = conn.Read(w.ctx, mr.Sub(maxMessage, n), remote)
	}
	if err == nil && !bytes.Equal(mr.Bytes()[:n], mr.Bytes()[maxMessage:maxMessage+n]) {
		err = fmt.Errorf("%d bytes at %d are not what was written", n, at)
	}
	return errors.Join(err, conn.Close())
}

// beHungUpOn exchanges as many messages as the server wants to.
func (s *soak) beHungUpOn(w *worker) error {
	messages := w.IntN(5)
	conn, mr, err := s.dial(w.ctx, w, hangUp, uint32(messages))
	if err != nil {
		return err
	}
	for i := range messages {
		if err := w.message(conn, mr); err != nil && !(i == messages-1 && isGone(err)) {
			return errors.Join(err, conn.Close())
		}
	}
	select {
	case <-conn.Done():
	case <-w.ctx.Done():
		err = context.Cause(w.ctx)
	}
	return errors.Join(err, conn.Close())
}

func (s *soak) beRefused(w *worker) error {
	number := w.Uint32()
	conn, _, err := s.dial(w.ctx, w, turnAway, number)
	rejected, ok := errors.AsType[*rdmacm.RejectedError](err)
	if !ok {
		return fmt.Errorf("not refused, but %v, %w", conn, err)
	}
	want := padded(order{turnAway, uint8(w.n), number}.bytes(), maxRejectData)
	if rejected.Reason != rdmacm.ReasonConsumer || !bytes.Equal(want, rejected.PrivateData) {
		return fmt.Errorf("refused with %d and %q", rejected.Reason, rejected.PrivateData)
	}
	return nil
}

func (s *soak) findNobody(w *worker) error {
	_, err := rdmacm.Dial(w.ctx, s.nobody, nil)
	if rejected, ok := errors.AsType[*rdmacm.RejectedError](err); !ok || rejected.Reason != rdmacm.ReasonNoListener {
		return fmt.Errorf("not rejected, but: %w", err)
	}
	return nil
}

func (s *soak) cancelDialing(w *worker) error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.IntN(200000))*time.Microsecond)
	defer cancel()
	conn, _, err := s.dial(ctx, w, expectAny, 0)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.count("- dialing canceled")
		return nil
	}
	return err
}

// beGivenUp dials while the server gives up, which may be before, while or after
// the connection is up here.
func (s *soak) beGivenUp(w *worker) error {
	conn, _, err := s.dial(w.ctx, w, giveUp, uint32(w.IntN(100000)))
	var closed error
	if err == nil {
		err = conn.Wait(w.ctx)
		closed = conn.Close()
	}
	failed, ok := errors.AsType[*rdmacm.EventError](err)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || ok && failed.Type == rdmacm.EventConnectError {
		err = nil
	}
	return errors.Join(err, closed)
}

// closeWhileBusy closes a connection that others receive and send on.
func (s *soak) closeWhileBusy(w *worker) error {
	after := time.Duration(w.IntN(50000)) * time.Microsecond
	conn, mr, err := s.dial(w.ctx, w, expectAny, 0)
	if err != nil {
		return err
	}
	var busy sync.WaitGroup
	results := make(chan error, 4)
	for range cap(results) / 2 {
		busy.Go(func() { _, err := conn.Recv(w.ctx, mr.Sub(maxMessage, maxMessage)); results <- err })
		busy.Go(func() {
			var err error
			for err == nil {
				err = conn.Send(w.ctx, mr.Sub(0, 64))
			}
			results <- err
		})
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-conn.Done(): // the echo has met no receive, or has ended
	}
	cause := conn.Err()
	err = conn.Close()
	busy.Wait()
	close(results)
	for result := range results {
		if result != nil && cause == nil && !errors.Is(result, os.ErrClosed) {
			err = errors.Join(err, result)
		}
	}
	return err
}

// closeListener closes one that has requests, or is about to.
func (s *soak) closeListener(w *worker) error {
	waits := w.IntN(2) == 0
	ln, err := rdmacm.Listen(w.ctx, s.host+":0", nil)
	if err != nil {
		return err
	}
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(w.ctx, ln.Addr().String(), nil)
		dialed <- err
	}()
	for waits && rdmacm.Waiting(ln) == 0 && w.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	err = ln.Close()
	if result := <-dialed; !errors.Is(result, syscall.ECONNREFUSED) {
		err = errors.Join(err, fmt.Errorf("not refused: %w", result))
	}
	return err
}
