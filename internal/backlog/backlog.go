// SPDX-License-Identifier: Apache-2.0

// Package backlog handles full backlogs of listeners for packages rdmacm and
// rsocket.
package backlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/netpoll"
)

// somaxconn is the default of package net where the system has no value.
const somaxconn = 128

// Default returns the backlog of a listener whose program does not choose one:
// the system's net.core.somaxconn, as in package net.
var Default = sync.OnceValue(func() int { return defaultIn("/proc/sys/net/core/somaxconn") })

func defaultIn(file string) int {
	text, err := os.ReadFile(file)
	if err != nil {
		return somaxconn
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n <= 0 {
		return somaxconn
	}
	return n
}

// ErrFull is the error of a request for which a listener had no room.
var ErrFull = errors.New("the listener's backlog is full")

// ErrGone reports that the peer gave up before the handshake was finished. A
// listener that needs room destroys an unfinished handshake, and the kernel's
// devices do not tell the dialer the reason.
var ErrGone = fmt.Errorf("the peer has given up: %w", syscall.ECONNRESET)

// maxGone is how many errors matching ErrGone end a Retry.
const maxGone = 8

// shortest and longest bound the pause before another attempt. The first pauses
// are short, since a listener usually has room again at once.
const shortest, longest = 20 * time.Millisecond, 5 * time.Second

// limit is how long Retry continues if its caller has no limit. Linux repeats a
// request for a connection for about as long.
const limit = time.Minute

type retries struct{}

// Retry calls dial again, after growing pauses, while its error matches
// ErrFull, or ErrGone fewer than maxGone times. It gives up when ctx ends, or
// after patience, or after limit if patience is not positive. what names the
// patience in the error. A Retry nested in dial, with the context that Retry
// passes to dial, calls its function only once.
func Retry(ctx context.Context, patience time.Duration, what string, dial func(ctx context.Context) error) error {
	if ctx.Value(retries{}) != nil {
		return dial(ctx)
	}
	inner := context.WithValue(ctx, retries{}, true)
	began := time.Now()
	given := patience
	if given <= 0 {
		given = limit
	}
	gone := 0
	var why error // of the last attempt that failed and may succeed later
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := dial(inner)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrFull):
			why = ErrFull
		case errors.Is(err, ErrGone) && ctx.Err() == nil:
			if gone++; gone == maxGone {
				return err
			}
			why = ErrGone
		default:
			if why != nil && ctx.Err() != nil { // explains why there were several attempts
				err = fmt.Errorf("%w: %w", why, err)
			}
			return err
		}
		// The random part spreads peers that were refused together.
		next := pause/2 + rand.N(pause)
		if time.Since(began)+next > given {
			if why == ErrGone {
				return err
			}
			if patience > 0 {
				return fmt.Errorf("%w, and was for %v, which is %s: %w", ErrFull, given, what, syscall.ETIMEDOUT)
			}
			return fmt.Errorf("%w, and was for %v: %w", ErrFull, given, syscall.ETIMEDOUT)
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", why, netpoll.ContextError(ctx))
		}
	}
}
