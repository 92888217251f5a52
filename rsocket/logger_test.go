// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// uses is a handler that uses the connection whose end it is told, as one may
// that sends the log there.
type uses struct {
	slog.Handler
	conn chan *rsocket.Conn
	errs chan error
}

func (u *uses) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "rdma connection ended" {
		return nil
	}
	conn := <-u.conn
	_ = conn.LocalAddr().String() + conn.RemoteAddr().String()
	_, _ = conn.Write([]byte("the end")) // whether it works depends on which end is faster
	_ = conn.CloseWrite()
	u.errs <- conn.Close()
	return nil
}

// A handler of the log may use the connection that it is told of, and close it.
func TestLoggerUsesConn(t *testing.T) {
	ln := listen(t, rsocket.Config{})
	for name, end := range map[string]func(here, peer *rsocket.Conn) error{
		"here": func(here, _ *rsocket.Conn) error { return here.Close() },
		"peer": func(_, peer *rsocket.Conn) error { return peer.Close() },
		"both": func(here, peer *rsocket.Conn) error {
			other := inBackground(peer.Close)
			if err := here.Close(); err != nil {
				return err
			}
			return <-other
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := &uses{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), make(chan *rsocket.Conn, 1), make(chan error, 1)}
			here, peer := pairOn(t, ln, rsocket.Config{Logger: slog.New(u)})
			u.conn <- here
			closed := inBackground(func() error { return end(here, peer) })
			require.NoError(t, cmtest.Take(t, u.errs, "Close of the handler"))
			require.NoError(t, cmtest.Take(t, closed, "Close"))
		})
	}
}

// listenerCloser is a handler that closes the listener at the first record with
// the message.
type listenerCloser struct {
	slog.Handler
	message string
	done    atomic.Bool
	ln      chan *rsocket.Listener
	errs    chan error
}

func (c *listenerCloser) Handle(_ context.Context, r slog.Record) error {
	if r.Message == c.message && c.done.CompareAndSwap(false, true) {
		ln := <-c.ln
		c.errs <- ln.Close()
	}
	return nil
}

// A handler of the log may close the listener, whatever the record of its
// connection is, and while the listener is being closed.
func TestLoggerClosesListener(t *testing.T) {
	d := needDevice(t)
	for name, tt := range map[string]struct {
		message string
		config  rsocket.Config
		alsoUs  bool // the test closes the listener, too
	}{
		"accepted":                {message: "rdma accepted"},
		"accepted, while closing": {message: "rdma accepted", alsoUs: true},
		"not accepted":            {message: "rdma accept failed", config: rsocket.Config{HandshakeTimeout: 1}},
		"dropped by Close":        {message: "rdma connection ended", alsoUs: true},
	} {
		t.Run(name, func(t *testing.T) {
			open, accepted := len(ibverbs.OpenObjects()), make(chan struct{}, 1)
			c := &listenerCloser{
				slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}),
				tt.message,
				atomic.Bool{},
				make(chan *rsocket.Listener, 1), make(chan error, 1),
			}
			config := shared(tt.config)
			config.Logger = slog.New(tells{c, accepted})
			lc := rsocket.ListenConfig{Config: config}
			ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
			require.NoError(t, err)
			handled := make(chan struct{})
			dialed := inBackground(func() error {
				dialer := rsocket.Dialer{Config: shared(rsocket.Config{})}
				conn, err := dialer.DialContext(bounded(t), "rdma", ln.Addr().String())
				// A handshake whose events came first succeeds in spite of
				// its timeout.
				for err == nil && tt.config.HandshakeTimeout > 0 {
					if err = conn.Close(); err == nil {
						conn, err = dialer.DialContext(bounded(t), "rdma", ln.Addr().String())
					}
				}
				if err == nil { // it need not come so far
					<-handled // else the listener might not accept it
					err = conn.Close()
				}
				return err
			})
			if tt.alsoUs {
				cmtest.Take(t, accepted, "the record of a connection")
				closed := inBackground(ln.Close)
				c.ln <- ln
				require.NoError(t, cmtest.Take(t, closed, "Close beside the handler"))
			} else {
				c.ln <- ln
			}
			require.NoError(t, cmtest.Take(t, c.errs, "Close of the handler"))
			close(handled)
			_ = cmtest.Take(t, dialed, "Dial and Close")
			require.NoError(t, ln.Close())
			cmtest.Soon(t, "what the handler held up is not closed", func() bool { return len(ibverbs.OpenObjects()) == open })
		})
	}
}

// tells is a handler that tells of the first record, and then handles it.
type tells struct {
	slog.Handler
	first chan struct{}
}

func (h tells) Handle(ctx context.Context, r slog.Record) error {
	select {
	case h.first <- struct{}{}:
	default:
	}
	return h.Handler.Handle(ctx, r)
}
