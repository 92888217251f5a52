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

// ErrBacklogFull reports that a listener had no room for a request. The dial
// tries again, as TCP repeats a lost SYN. If the listener never has room, the
// dial's error matches ErrBacklogFull. The *RejectedError for such a request
// matches it too; the one for a rejection by the peer's program does not.
var ErrBacklogFull = backlog.ErrFull

// fullMark is the private data that rejects a request for which a listener has
// no room. rdma_reject(3) has only one reason, ReasonConsumer, so C programs
// take the rejection for one by the peer's program.
var fullMark = []byte("\x00verbena: backlog full\x00")

// isFull reports whether the rejection carries fullMark.
func (e *RejectedError) isFull() bool {
	return e.Reason == ReasonConsumer && bytes.HasPrefix(e.PrivateData, fullMark)
}

// Is reports whether target is ErrBacklogFull and the request was rejected for
// that reason.
func (e *RejectedError) Is(target error) bool { return target == ErrBacklogFull && e.isFull() }

// isShed reports whether ctx has ended with the cause ErrBacklogFull. The
// caller of Request.Accept ends its context with that cause to make room for
// other requests.
func isShed(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrBacklogFull)
}

// noticePatience is how long to wait for the peer's reason after a handshake
// has failed. Usually the reason arrives before the handshake fails.
const noticePatience = time.Second

// orFull adds ErrBacklogFull to err, the error of a dialer's handshake, if the
// peer sends that reason within noticePatience. A listener with a full backlog
// can withdraw its acceptance. If it does, the handshake fails before the
// reason arrives.
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
