// SPDX-License-Identifier: Apache-2.0

// Package backlog decides how packages rdmacm and rsocket listen with a
// backlog, and how they dial again when a listener's backlog is full.
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

// somaxconn is the backlog if the system has no net.core.somaxconn, as in
// package net.
const somaxconn = 128

// Default returns the backlog of a listener whose program does not choose one:
// the system's net.core.somaxconn, as in package net.
var Default = sync.OnceValue(func() int { return defaultIn("/proc/sys/net/core/somaxconn") })

// defaultIn returns the number in a file, or somaxconn if there is none.
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

// ErrFull is the error of a connection request that a listener refused because
// its backlog was full.
var ErrFull = errors.New("the listener's backlog is full")

// ErrGone is the error of a dial whose peer gave up before the handshake was
// complete. The reason is often that the listener's backlog is full: a listener
// with a full backlog destroys an unfinished handshake, and drivers in the
// kernel do not tell the dialer why.
var ErrGone = fmt.Errorf("the peer has given up: %w", syscall.ECONNRESET)

// maxGone is the number of errors matching ErrGone at which Retry gives up.
const maxGone = 8

// shortest and longest limit the pause before another attempt. The first pauses
// are short, since a listener usually has room again at once.
const shortest, longest = 20 * time.Millisecond, 5 * time.Second

// limit is the time after which Retry gives up if its caller sets no limit.
// Linux repeats a connection request for about as long.
const limit = time.Minute

// retries is the key of a context that Retry passes to its function.
type retries struct{}

// Retry calls dial until it succeeds, with pauses that grow between the calls.
// It calls dial again if the error matches ErrFull, or if it matches ErrGone
// and fewer than maxGone errors have done so. It returns other errors at once.
// It gives up when ctx ends, or when patience is over. A patience that is not
// positive stands for limit. what, for the error's text, names the setting from
// which patience comes. If dial calls Retry with the context that it was given,
// the inner Retry calls its function only once.
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
	var why error // reason of the last failed attempt, if another may succeed
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
			if why != nil && ctx.Err() != nil { // why says that earlier attempts failed
				err = fmt.Errorf("%w: %w", why, err)
			}
			return err
		}
		// The random part makes peers that were refused together try
		// again at different times.
		next := pause/2 + rand.N(pause)
		if time.Since(began)+next > given {
			if why == ErrGone {
				return err
			}
			if patience > 0 {
				return fmt.Errorf("%w, and has been for %v (%s): %w", ErrFull, given, what, syscall.ETIMEDOUT)
			}
			return fmt.Errorf("%w, and has been for %v: %w", ErrFull, given, syscall.ETIMEDOUT)
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
