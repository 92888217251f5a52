// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"
)

// logFailure logs that a connection could not be set up.
func (c *Config) logFailure(ctx context.Context, message string, err error, attrs ...slog.Attr) {
	if c.Logger != nil {
		c.Logger.LogAttrs(ctx, slog.LevelDebug, message, append(attrs, slog.Any("error", err))...)
	}
}

// connLog orders the records of a connection. The record of the end is written
// after the record of the start, and only if there is one.
type connLog struct {
	mu    sync.Mutex // guards the fields below
	began bool       // whether the record of the start is written
	cause error      // reason why the connection ended before its start was recorded, or nil
}

// logUp logs that the connection is up. The connection may have ended already.
func (c *Conn) logUp(ctx context.Context, message string, began time.Time) {
	if c.config.Logger == nil {
		return
	}
	c.config.Logger.LogAttrs(ctx, slog.LevelDebug, message, append(c.logged(), slog.Duration("took", time.Since(began)))...)
	c.log.mu.Lock()
	c.log.began = true
	cause := c.log.cause
	c.log.mu.Unlock()
	if cause != nil {
		c.logEnd(cause)
	}
}

// logQueue calls log handlers in goroutines of its own, so that they delay no
// events. A handler may close the connection.
var logQueue queue

// logEnd logs why the connection has ended. It uses logQueue, unless Close
// ended the connection. If logUp has not logged the start yet, logEnd does
// nothing, and logUp logs the end, too.
func (c *Conn) logEnd(cause error) {
	c.log.mu.Lock()
	began := c.log.began
	c.log.cause = cause
	c.log.mu.Unlock()
	if !began {
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
	if errors.Is(cause, os.ErrClosed) { // the caller of Close expects the record when it returns
		log()
	} else {
		logQueue.add(log)
	}
}

// logged returns the attributes that identify the connection.
func (c *Conn) logged() []slog.Attr {
	return []slog.Attr{
		slog.String("local", c.LocalAddr().String()), slog.String("peer", c.RemoteAddr().String()),
		slog.String("device", c.pd.Device().Name()), slog.Uint64("qp", uint64(c.qp.Num())),
	}
}

// isGoodbye reports whether the peer ended the connection in the usual way.
func isGoodbye(cause error) bool {
	ended, ok := errors.AsType[*EventError](cause)
	return ok && ended.Type == EventDisconnected && ended.Status == 0
}
