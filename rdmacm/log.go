// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// logFailure logs that a connection has not come up.
func (c *Config) logFailure(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	if c.Logger != nil {
		c.Logger.LogAttrs(ctx, slog.LevelDebug, message, append(attrs, slog.Any("error", err))...)
	}
}

// logUp logs that the connection is up.
func (c *Conn) logUp(ctx context.Context, message string, began time.Time) {
	if c.config.Logger != nil {
		c.config.Logger.LogAttrs(ctx, slog.LevelDebug, message, append(c.logged(), slog.Duration("took", time.Since(began)))...)
	}
}

// logs calls handlers where they hold up no events. They may close the connection.
var logs queue

// logEnd logs why the connection has ended, if it was up, or lets logs do that.
func (c *Conn) logEnd(cause error) {
	c.mu.Lock()
	wasUp := c.local.IsValid()
	c.mu.Unlock()
	if !wasUp { // Dial or Accept returns the error
		return
	}
	attrs, level := c.logged(), slog.LevelDebug
	if !errors.Is(cause, os.ErrClosed) {
		attrs = append(attrs, slog.Any("error", cause))
		if !isGoodbye(cause) {
			level = slog.LevelWarn
		}
	}
	log := func() { c.config.Logger.LogAttrs(context.Background(), level, "rdma connection ended", attrs...) }
	if errors.Is(cause, os.ErrClosed) { // who calls Close expects the record when it returns
		log()
	} else {
		logs.add(log)
	}
}

// logged returns which connection it is.
func (c *Conn) logged() []slog.Attr {
	return []slog.Attr{
		slog.String("local", c.LocalAddr().String()), slog.String("peer", c.RemoteAddr().String()),
		slog.String("device", c.pd.Device().Name()), slog.Uint64("qp", uint64(c.qp.Num())),
	}
}

// isGoodbye reports whether the peer has ended the connection in the usual way.
func isGoodbye(cause error) bool {
	ended, ok := errors.AsType[*EventError](cause)
	return ok && ended.Type == EventDisconnected && ended.Status == 0
}
