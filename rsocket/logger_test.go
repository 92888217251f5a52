// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// uses is a handler that uses the connection whose end it is told, as one may that sends the log there.
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
	_, _ = conn.Write([]byte("the end")) // whether it works depends on who is faster
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
