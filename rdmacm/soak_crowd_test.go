package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// crowdSize is how many goroutines share a connection.
const crowdSize = 12

// crowd lets goroutines share a connection whose send queue is too small for
// them. Each writes to a piece of memory of its own and reads it back, with
// requests in between that are refused.
func (s *soak) crowd(w *worker) error {
	queue, rounds, seed := w.IntN(4)+1, w.IntN(20)+1, w.Uint32()
	var mr *ibverbs.MR
	o := order{echo, uint8(w.n), 0}
	conn, err := rdmacm.Dial(w.ctx, s.address, &rdmacm.Config{
		SendQueue: queue, PrivateData: o.bytes(),
		Setup: func(c *rdmacm.Conn) (err error) {
			mr, err = c.Alloc(crowdSize*3*crowdPiece, ibverbs.AccessLocalWrite)
			return err
		},
	})
	if err != nil {
		return err
	}
	remote := parseOffer(conn.PeerData())
	errs := together(crowdSize, func(i int) error {
		mine := mr.Sub(i*3*crowdPiece, 3*crowdPiece)
		there := remote.Sub(uint64(i*crowdPiece), crowdPiece)
		for round := range rounds {
			if err := shareOf(w.ctx, conn, mine, there, uint32(i*rounds+round)^seed); err != nil {
				return fmt.Errorf("goroutine %d, queue of %d: %w", i, queue, err)
			}
		}
		return nil
	})
	return errors.Join(append(errs, conn.Close())...)
}

// crowdPiece is how many bytes a goroutine writes.
const crowdPiece = 256

// shareOf writes, is refused, and reads back.
func shareOf(ctx context.Context, conn *rdmacm.Conn, mine ibverbs.Segment, there ibverbs.RemoteBuffer, number uint32) error {
	out, back, result := mine.Sub(0, crowdPiece), mine.Sub(crowdPiece, crowdPiece), mine.Sub(2*crowdPiece, 8)
	for i := range out.Bytes() {
		out.Bytes()[i] = byte(number >> (i % 4 * 8))
	}
	if err := conn.Write(ctx, there, out); err != nil {
		return err
	}
	if err := refused(ctx, conn, result); !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("not refused: %w", err)
	}
	if err := conn.Read(ctx, back, there); err != nil {
		return err
	}
	if !bytes.Equal(out.Bytes(), back.Bytes()) {
		return errors.New("read other bytes than were written")
	}
	return nil
}

// attacks are what a hostile client does with a connection to an echo.
var attacks = []func(s *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error{
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // a wrong key
		there.RKey ^= 1 << w.IntN(32)
		return wantFailure(conn.Write(w.ctx, there, mr.Sub(0, 8)))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // a wrong address
		there.Addr += 1 << (40 + w.IntN(20))
		return wantFailure(conn.Read(w.ctx, mr.Sub(0, 8), there))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, _ ibverbs.RemoteBuffer) error { // longer than the receive
		return wantFailure(conn.Send(w.ctx, mr.Sub(0, maxMessage+1+w.IntN(maxMessage))))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, there ibverbs.RemoteBuffer) error { // longer than anybody expects
		n := w.IntN(2 * maxMessage)
		return conn.WriteImm(w.ctx, there, w.Uint32(), mr.Sub(0, n))
	},
	func(_ *soak, w *worker, conn *rdmacm.Conn, mr *ibverbs.MR, _ ibverbs.RemoteBuffer) error { // more messages than receives
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration(w.IntN(20000))*time.Microsecond)
		defer cancel()
		var all sync.WaitGroup
		for range w.IntN(30) {
			all.Go(func() { _ = conn.Send(ctx, mr.Sub(0, 64)) })
		}
		all.Wait()
		return nil
	},
}

// wantFailure returns nil if a transfer failed as one does that the peer does not
// allow: the peer, whose queue pair has failed, may have hung up first.
func wantFailure(err error) error {
	if isGone(err) {
		return nil
	}
	return fmt.Errorf("an attack has succeeded, or failed otherwise: %w", err)
}

// attack does what an honest client does not.
func (s *soak) attack(w *worker) error {
	conn, mr, err := s.dial(w.ctx, w, expectAny, 0)
	if err != nil {
		return err
	}
	err = attacks[w.IntN(len(attacks))](s, w, conn, mr, parseOffer(conn.PeerData()))
	return errors.Join(err, conn.Close())
}
