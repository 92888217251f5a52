package rdmacm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// order is what a client wants of the server; the request's private data
// carries it. Only the client draws lots.
type order struct {
	Do     verb
	Worker uint8
	Number uint32 // what do needs to know
}

type verb uint8

const (
	echo      verb = iota // messages, until the client is gone
	hangUp                // after Number messages
	turnAway              // with the order as private data
	giveUp                // accepting, after Number microseconds
	expectAny             // the client may be gone at any time
)

func (o order) bytes() []byte {
	b, err := binary.Append(nil, binary.BigEndian, o)
	if err != nil {
		panic(err) // it has a size
	}
	return b
}

func parseOrder(b []byte) (o order, err error) {
	_, err = binary.Decode(b, binary.BigEndian, &o)
	return o, err
}

// serve takes requests until the listener is closed.
func (s *soak) serve() {
	for {
		req, err := s.ln.Accept(s.ctx)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				s.check("accept", err)
			}
			return
		}
		s.server.Go(func() {
			o, err := parseOrder(req.PrivateData())
			s.check("order", err)
			ctx, cancel := context.WithTimeout(s.ctx, 2*soakPatience)
			defer cancel()
			s.check(fmt.Sprintf("server, order %+v", o), s.obey(ctx, req, o))
		})
	}
}

// obey does what an order says, and returns an error if it could not.
func (s *soak) obey(ctx context.Context, req *rdmacm.Request, o order) error {
	switch o.Do {
	case turnAway:
		err := req.Reject(req.PrivateData()[:len(o.bytes())])
		return err
	case giveUp:
		short, cancel := context.WithTimeout(ctx, time.Duration(o.Number)*time.Microsecond)
		defer cancel()
		conn, err := req.Accept(short, nil)
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				s.count("- accepting given up")
				return nil
			}
			return err
		}
		return conn.Close()
	}
	var pending *rdmacm.Receive
	slot := s.memory.Sub(int(o.Worker)*slotSize, slotSize)
	offer := s.memory.Remote()
	offer.Addr += uint64(o.Worker) * slotSize
	var mr *ibverbs.MR
	conn, err := req.Accept(ctx, &rdmacm.Config{PD: s.pd, PrivateData: offerBytes(offer, slot.Len()), Setup: func(c *rdmacm.Conn) (err error) {
		if mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite); err != nil {
			return err
		}
		pending, err = c.PostRecv(mr.Sub(0, maxMessage))
		return err
	}})
	if err != nil {
		// A client that closes at once may be gone before its last message of
		// the handshake has been seen here.
		if o.Do == expectAny || o.Do == echo && errors.Is(err, syscall.ECONNRESET) {
			s.count("- dialer gone before the connection was up")
			return nil
		}
		return err
	}
	left := -1
	if o.Do == hangUp {
		left = int(o.Number)
	}
	err = echoMessages(ctx, conn, mr, pending, left)
	if o.Do == expectAny || isGone(err) {
		err = nil
	}
	return errors.Join(err, conn.Close())
}

// isGone reports whether an error is what becomes of transfers when the peer has
// closed. Soft-RoCE acknowledges a message after the program has seen it, so a
// peer that has closed may not have acknowledged the last one.
func isGone(err error) bool {
	_, failed := errors.AsType[*ibverbs.WCError](err)
	return failed || errors.Is(err, syscall.ECONNRESET)
}

// echoMessages sends back what it receives, until the peer is gone, or until it
// was done left times.
func echoMessages(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, pending *rdmacm.Receive, left int) error {
	for ; left != 0; left-- {
		n, err := pending.Wait(ctx)
		if err != nil {
			return err
		}
		copy(mr.Bytes()[maxMessage:], mr.Bytes()[:n])
		if pending, err = conn.PostRecv(mr.Sub(0, maxMessage)); err != nil {
			return err
		}
		if err := conn.Send(ctx, mr.Sub(maxMessage, n)); err != nil {
			return err
		}
	}
	return nil
}

func offerBytes(r ibverbs.RemoteBuffer, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint32(b, uint32(size))
}

func parseOffer(b []byte) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: uint64(binary.BigEndian.Uint32(b[12:])),
	}
}
