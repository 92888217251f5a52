// SPDX-License-Identifier: Apache-2.0

// Package backlog has what package rdmacm and package rsocket do where the
// backlog of a listener is full.
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

// somaxconn is what package net takes where the system does not say.
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

// ErrFull is the error of a request for which a listener has had no room.
var ErrFull = errors.New("the listener's backlog is full")

// shortest and longest bound the pause before another attempt. The first
// pauses are short, since a listener mostly has room again at once.
const shortest, longest = 20 * time.Millisecond, 5 * time.Second

// limit is how long Retry goes on without a limit of its caller's. Linux repeats
// a request for a connection for about as long.
const limit = time.Minute

type retries struct{}

// Retry calls dial again, after pauses that grow, while its error matches
// ErrFull. It gives up when ctx ends, or when patience is over, if that is
// positive, or else limit; what names the patience in the error. Within the ctx
// that it passes to dial, another Retry calls its function once.
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
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := dial(inner)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrFull) {
			if pause > shortest && ctx.Err() != nil { // why there are several attempts
				err = fmt.Errorf("%w: %w", ErrFull, err)
			}
			return err
		}
		// Peers that were refused together come back apart.
		next := pause/2 + rand.N(pause)
		if time.Since(began)+next > given {
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
			return fmt.Errorf("%w: %w", ErrFull, netpoll.ContextError(ctx))
		}
	}
}
