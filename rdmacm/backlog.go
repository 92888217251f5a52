// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-go/verbena/internal/backlog"
)

// ErrBacklogFull reports that a listener had no room for a request. A dial then
// tries again, as TCP repeats a lost SYN. If the listener never has room, the
// dial's error matches ErrBacklogFull. The *RejectedError for such a request
// matches it too; the one for a rejection by the peer's program does not.
var ErrBacklogFull = backlog.ErrFull

// fullMark is the private data that rejects a request for which a listener has
// no room. rdma_reject(3) has only one reason, ReasonConsumer, so C programs
// take the rejection for one by the peer's program.
var fullMark = []byte("\x00verbena: backlog full\x00")

// isFull reports whether a rejection has the mark.
func (e *RejectedError) isFull() bool {
	return e.Reason == ReasonConsumer && bytes.HasPrefix(e.PrivateData, fullMark)
}

// Is reports whether the error is the target, which may be ErrBacklogFull.
func (e *RejectedError) Is(target error) bool { return target == ErrBacklogFull && e.isFull() }

// isShed reports whether ctx has ended with the cause ErrBacklogFull. A caller
// of Request.Accept uses that cause to make room for other requests.
func isShed(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrBacklogFull)
}

// noticePatience is how long to wait for the peer's reason after a handshake
// has failed. Usually the reason has arrived by then.
const noticePatience = time.Second

// orFull returns an error with the peer's reason for the failure of a dialer's
// handshake if that reason is a full backlog, because a listener may withdraw
// its acceptance. Otherwise, it returns err.
func (c *Conn) orFull(ctx context.Context, err error) error {
	if !errors.Is(err, backlog.ErrGone) {
		return err
	}
	timer := time.NewTimer(noticePatience)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-ctx.Done():
	case <-timer.C:
	}
	if cause := c.Err(); errors.Is(cause, ErrBacklogFull) {
		return fmt.Errorf("%w: %w", backlog.ErrGone, cause)
	}
	return err
}
