package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Request is a connection that a peer asks for.
type Request struct {
	dispatcher  *dispatcher
	event       *Event
	answered    atomic.Bool
	local, peer netip.AddrPort // known after the request is over, too
}

// answer claims the request for the one answer that it can be given.
func (r *Request) answer(op string) error {
	if r == nil || r.event == nil {
		return cerr.Argument(op, "", cerr.InvalidAs(os.ErrInvalid, "the request is nil, or did not come from Accept"))
	}
	if r.answered.Swap(true) {
		return cerr.Argument(op, r.peer.String(), cerr.InvalidAs(os.ErrClosed, "the request was accepted or rejected before"))
	}
	return nil
}

// PrivateData returns what the peer sent with the request, and zeros up to the
// transport's maximum.
func (r *Request) PrivateData() []byte { return r.event.PrivateData }

// RemoteAddr returns the peer's address.
func (r *Request) RemoteAddr() netip.AddrPort { return r.peer }

// LocalAddr returns the address that the peer connects to.
func (r *Request) LocalAddr() netip.AddrPort { return r.local }

// Event returns the event that brought the request.
func (r *Request) Event() *Event { return r.event }

// Accept makes the connection and returns when it is up. After an error the
// request is over; the peer was told. The config may be nil.
//
// A peer that has given up, before or meanwhile, makes Accept fail with an error
// that is syscall.ECONNRESET, and one that does not go on with the handshake with
// one that is syscall.ETIMEDOUT, after Config.HandshakeTimeout. So accept each
// request in a goroutine of its own.
func (r *Request) Accept(ctx context.Context, config *Config) (*Conn, error) {
	if err := r.answer("Request.Accept"); err != nil {
		return nil, err
	}
	conn, err := r.accept(ctx, config.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	return conn, nil
}

func (r *Request) accept(ctx context.Context, config Config) (*Conn, error) {
	if err := ended("accept", ctx); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	if err := r.leaveListener(); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	conn, err := newConn(r.dispatcher, r.event.ID, config)
	if err != nil {
		return nil, err
	}
	// Closing an id with a request on it rejects that.
	if err := conn.accept(ctx, r.event); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// leaveListener moves the request's id from its listener's dispatcher to that of
// all connections.
func (r *Request) leaveListener() error {
	d, err := r.dispatcher.move(r.event.ID, useDispatcher, nil)
	if d != nil {
		r.dispatcher = d
	}
	return err
}

// accept answers the request and waits until the peer has heard it.
func (c *Conn) accept(ctx context.Context, request *Event) error {
	if err := ctx.Err(); err != nil {
		return contextError(ctx)
	}
	if c.config.AckTimeout != 0 {
		if err := c.id.SetAckTimeout(c.config.AckTimeout); err != nil {
			return err
		}
	}
	p, err := c.param(request)
	if err != nil {
		return err
	}
	if c.movesQP {
		if err := c.moveQP(&p, statesToRTS...); err != nil {
			return c.orGone(err)
		}
	}
	return c.orGone(c.handshake(ctx, func() error { return c.id.accept(p, c.movesQP) }))
}

// Reject refuses the connection. The peer gets the private data, of up to 148
// bytes. After an error the peer was told too, but without the data.
func (r *Request) Reject(privateData []byte) error {
	if err := r.answer("Request.Reject"); err != nil {
		return err
	}
	err := r.event.ID.Reject(privateData)
	return errors.Join(err, r.drop())
}

// drop gives up the request's id, which rejects it if nobody has answered. After
// an error it can be called again.
func (r *Request) drop() error {
	if err := r.event.ID.Close(); err != nil {
		return err
	}
	return r.dispatcher.release()
}

// RejectedError is a connection that the peer, or its system, refused. It is
// syscall.ECONNREFUSED.
type RejectedError struct {
	// Reason is that of connections for datagrams, too, for which the
	// specification has other numbers.
	Reason Reason
	// PrivateData is what the peer's program gave as explanation, then zeros
	// up to the transport's maximum.
	PrivateData []byte
}

// Reason says why a connection was rejected, by the InfiniBand specification's
// number. On iWARP it is a negative errno.
type Reason int

// The reasons that programs meet.
const (
	ReasonNoQP         Reason = 1
	ReasonNoResources  Reason = 3
	ReasonNoListener   Reason = 8  // nobody listens on the port
	ReasonStale        Reason = 10 // the peer still has an older connection of ours
	ReasonConsumer     Reason = 28 // the peer's program refused
	ReasonVendorOption Reason = 35 // the enhancements asked for are refused; see ID.RejectECE
)

// String returns what the reason means, or its number.
func (r Reason) String() string {
	if r < 0 {
		return syscall.Errno(-r).Error()
	}
	if text, ok := reasons[r]; ok {
		return text
	}
	return fmt.Sprintf("reason %d", int(r))
}

func (e *RejectedError) Error() string {
	return "connection rejected: " + e.Reason.String()
}

// Unwrap makes errors.Is work with syscall.ECONNREFUSED, and with the errno
// that is the reason on iWARP.
func (e *RejectedError) Unwrap() []error {
	if e.Reason < 0 {
		return []error{syscall.ECONNREFUSED, syscall.Errno(-e.Reason)}
	}
	return []error{syscall.ECONNREFUSED}
}

var reasons = map[Reason]string{
	ReasonNoQP:         "no queue pair available",
	ReasonNoResources:  "no resources",
	4:                  "timeout",
	5:                  "unsupported request",
	6:                  "invalid communication ID",
	7:                  "invalid communication instance",
	ReasonNoListener:   "nobody listens on the port",
	9:                  "invalid transport service type",
	ReasonStale:        "stale connection",
	12:                 "invalid GID",
	13:                 "invalid LID",
	14:                 "invalid service level",
	15:                 "invalid traffic class",
	16:                 "invalid hop limit",
	17:                 "invalid packet rate",
	24:                 "redirected to another CM",
	25:                 "redirected to another port",
	26:                 "path MTU not supported",
	27:                 "not enough responder resources",
	ReasonConsumer:     "refused by the peer's program",
	29:                 "RNR retry count not supported",
	30:                 "duplicate local communication ID",
	31:                 "unsupported class version",
	32:                 "invalid flow label",
	ReasonVendorOption: "vendor option not supported",
}
