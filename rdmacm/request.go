// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A Request is a connection request from a peer.
type Request struct {
	dispatcher  *dispatcher
	event       *Event
	config      *Config // ListenConfig.Config of the listener
	answered    atomic.Bool
	local, peer netip.AddrPort // addresses of the two ends, which remain known after the request is over
}

// answer marks the request as answered. It fails if the request was answered
// before. op is the operation in the error.
func (r *Request) answer(op string) error {
	if r == nil || r.event == nil {
		return cerr.Argument(op, "", cerr.InvalidAs(os.ErrInvalid, "the request is nil, or did not come from Accept"))
	}
	if r.answered.Swap(true) {
		return cerr.Argument(op, r.peer.String(), cerr.InvalidAs(os.ErrClosed, "the request has already been accepted or rejected"))
	}
	return nil
}

// PrivateData returns the private data of the request, padded with zeros to the
// transport's maximum.
func (r *Request) PrivateData() []byte {
	if r == nil || r.event == nil {
		return nil
	}
	return r.event.PrivateData
}

// RemoteAddr returns the peer's address.
func (r *Request) RemoteAddr() netip.AddrPort { return r.peer }

// LocalAddr returns the local address that the peer connects to.
func (r *Request) LocalAddr() netip.AddrPort { return r.local }

// Event returns the event that delivered the request.
func (r *Request) Event() *Event { return r.event }

// Accept accepts the request and blocks until the connection is up. After an
// error, the request is over and the peer has been told. If the config is nil,
// Accept uses ListenConfig.Config of the listener.
//
// On old iWARP cards, the Conn must receive before it sends; see
// docs/guide/connections.md.
//
// If the peer gives up, before or during Accept, the error matches
// syscall.ECONNRESET. If the peer does not continue the handshake, Accept fails
// after Config.HandshakeTimeout, whose default is 10 s for Accept, with an
// error matching syscall.ETIMEDOUT.
//
// A peer may leave handshakes unfinished. Therefore, accept each request in its
// own goroutine, and limit the number of these goroutines. To give up one
// request in favor of another, end ctx with the cause ErrBacklogFull; see
// context.WithCancelCause. After that, Dial at the peer tries again. But if the
// handshake has begun on a device of the kernel, Dial fails with a
// *RejectedError.
func (r *Request) Accept(ctx context.Context, config *Config) (*Conn, error) {
	if err := r.answer("Request.Accept"); err != nil {
		return nil, err
	}
	if config == nil {
		config = r.config
	}
	complete, began := config.withDefaults(), time.Now()
	if config.HandshakeTimeout == 0 {
		complete.HandshakeTimeout = defaultAcceptHandshake
	}
	conn, err := r.accept(ctx, complete)
	if err != nil {
		complete.logFailure(ctx, "rdma accept failed", err, slog.String("peer", r.peer.String()))
		return nil, fmt.Errorf("accept: %w", err)
	}
	conn.logUp(ctx, "rdma accepted", began)
	return conn, nil
}

func (r *Request) accept(ctx context.Context, config Config) (*Conn, error) {
	if err := ended("accept", ctx); err != nil {
		if ctx != nil && isShed(ctx) {
			_ = r.event.ID.Reject(fullMark)
		}
		return nil, errors.Join(err, r.drop())
	}
	if err := r.leaveListener(); err != nil {
		return nil, errors.Join(err, r.drop())
	}
	conn, err := newConn(r.dispatcher, r.event.ID, config)
	if err != nil {
		return nil, err
	}
	// Closing an ID with a pending request rejects the request.
	if err := conn.accept(ctx, r.event); err != nil {
		if isShed(ctx) {
			conn.shed() // fails if the peer was already told
		}
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// leaveListener moves the request's ID from the listener's dispatcher to the
// shared one.
func (r *Request) leaveListener() error {
	d, err := r.dispatcher.move(r.event.ID, useDispatcher, nil)
	if d != nil {
		r.dispatcher = d
	}
	return err
}

// accept accepts the request and waits until the peer has received the answer.
func (c *Conn) accept(ctx context.Context, request *Event) error {
	if err := ctx.Err(); err != nil {
		return contextError(ctx)
	}
	if c.config.AckTimeout != 0 {
		if err := c.id.SetAckTimeout(c.config.AckTimeout); err != nil {
			return fmt.Errorf("Config.AckTimeout: %w", err)
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

// Reject refuses the connection and sends the peer at most 148 bytes of private
// data. After an error, the peer has been told as well, but without the data.
// If the peer has given up, Reject returns nil.
func (r *Request) Reject(privateData []byte) error {
	if err := r.answer("Request.Reject"); err != nil {
		return err
	}
	return r.reject(privateData)
}

func (r *Request) reject(privateData []byte) error {
	err := r.event.ID.Reject(privateData)
	if errors.Is(err, backlog.ErrGone) {
		err = nil
	}
	return errors.Join(err, r.drop())
}

// drop closes the request's ID, which rejects an unanswered request. After an
// error, it can be called again.
func (r *Request) drop() error {
	if err := r.event.ID.Close(); err != nil {
		return err
	}
	return r.dispatcher.release()
}

// A RejectedError reports that the peer or its system refused a connection. It
// matches syscall.ECONNREFUSED.
type RejectedError struct {
	// Reason says why the request was rejected. Datagram rejections, which the
	// specification numbers differently, use the reasons of connections too.
	Reason Reason
	// PrivateData is the data that the peer's program sent with the rejection,
	// padded with zeros to the transport's maximum.
	PrivateData []byte
}

// Reason says why a connection was rejected. The numbers are those of the
// InfiniBand specification. On iWARP it is a negative errno.
type Reason int

// The most common reasons.
const (
	ReasonNoQP         Reason = 1
	ReasonNoResources  Reason = 3
	ReasonNoListener   Reason = 8  // no program listens on the port
	ReasonStale        Reason = 10 // the peer still has an older connection of this host
	ReasonConsumer     Reason = 28 // the peer's program refused
	ReasonVendorOption Reason = 35 // the peer refused the requested enhancements; see ID.RejectECE
)

// String returns the meaning of the reason, or its number.
func (r Reason) String() string {
	if r < 0 {
		return syscall.Errno(-r).Error()
	}
	if text, ok := reasons[r]; ok {
		return text
	}
	return fmt.Sprintf("reason %d", int(r))
}

// Error returns the meaning of the reason.
func (e *RejectedError) Error() string {
	if e.isFull() {
		return "connection rejected: " + ErrBacklogFull.Error()
	}
	return "connection rejected: " + e.Reason.String()
}

// Unwrap returns syscall.ECONNREFUSED, and on iWARP also the errno in Reason.
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
	ReasonNoListener:   "no program listens on the port",
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
