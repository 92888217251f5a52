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

// ErrBacklogFull says that a listener has had no room for a request. A dial
// tries again then, as TCP repeats a SYN that was lost; its error matches
// ErrBacklogFull if there was no room until the end. A *RejectedError matches it
// too, and that of a peer's program does not.
var ErrBacklogFull = backlog.ErrFull

// fullMark is the private data of the rejection of a request for which a
// listener has no room. The reason is that of any program's rejection, since
// rdma_reject(3) has no other, so it is what C's programs see.
var fullMark = []byte("\x00verbena: backlog full\x00")

// isFull reports whether a rejection has the mark.
func (e *RejectedError) isFull() bool {
	return e.Reason == ReasonConsumer && bytes.HasPrefix(e.PrivateData, fullMark)
}

// Is reports whether the error is the target, which may be ErrBacklogFull.
func (e *RejectedError) Is(target error) bool { return target == ErrBacklogFull && e.isFull() }

// isShed reports whether ctx has ended with the cause ErrBacklogFull, with which
// a caller of Request.Accept makes room.
func isShed(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrBacklogFull)
}

// noticePatience is how long the peer's reason for a handshake that has failed
// may take to arrive. It mostly has arrived before.
const noticePatience = time.Second

// orFull returns the peer's reason for a dialer's handshake that has failed, if
// that is a full backlog: the listener may withdraw its acceptance.
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
