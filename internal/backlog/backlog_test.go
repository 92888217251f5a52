// SPDX-License-Identifier: Apache-2.0

package backlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefault(t *testing.T) {
	for text, want := range map[string]int{"4096\n": 4096, "1\n": 1, "0\n": 128, "-1": 128, "many": 128, "": 128} {
		file := filepath.Join(t.TempDir(), "somaxconn")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Equal(t, want, defaultIn(file), text)
	}
	require.Equal(t, 128, defaultIn(filepath.Join(t.TempDir(), "absent")))
	require.Positive(t, Default())
}

var errFull = fmt.Errorf("rejected: %w", ErrFull)

// Pauses grow, and each attempt comes after one.
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		err := Retry(t.Context(), time.Minute, "Config.HandshakeTimeout", func(context.Context) error {
			if at = append(at, time.Now()); len(at) < 12 {
				return errFull
			}
			return nil
		})
		require.NoError(t, err)
		require.Len(t, at, 12)
		pause := shortest
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), pause/2)
			require.Less(t, at[i].Sub(at[i-1]), 3*pause/2)
			pause = min(2*pause, longest)
		}
	})
}

func TestRetryEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		patience, within time.Duration // 0 means without a limit
		want             error
		text             string
		least, most      time.Duration
	}{
		"patience":     {patience: 10 * time.Second, want: syscall.ETIMEDOUT, text: "the listener's backlog is full, and has been for 10s (its name): connection timed out", least: 2 * time.Second, most: 10 * time.Second},
		"no patience":  {want: syscall.ETIMEDOUT, text: "the listener's backlog is full, and has been for 1m0s: connection timed out", least: 50 * time.Second, most: time.Minute},
		"never":        {patience: -1, want: syscall.ETIMEDOUT, text: "the listener's backlog is full, and has been for 1m0s: connection timed out", least: 50 * time.Second, most: time.Minute},
		"context":      {patience: time.Minute, within: 3 * time.Second, want: context.DeadlineExceeded, text: "the listener's backlog is full: context deadline exceeded", least: 3 * time.Second, most: 3 * time.Second},
		"no room ever": {patience: time.Nanosecond, want: syscall.ETIMEDOUT, text: "the listener's backlog is full, and has been for 1ns (its name): connection timed out"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.within > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.within)
					defer cancel()
				}
				began := time.Now()
				err := Retry(ctx, tt.patience, "its name", func(context.Context) error { return errFull })
				require.ErrorIs(t, err, ErrFull)
				require.ErrorIs(t, err, tt.want)
				require.EqualError(t, err, tt.text)
				require.GreaterOrEqual(t, time.Since(began), tt.least)
				require.LessOrEqual(t, time.Since(began), tt.most)
			})
		})
	}
}

// Other errors end it at once. The end of the context in a later attempt comes
// with why there was one.
func TestRetryOtherErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, calls := errors.New("refused"), 0
		require.Equal(t, refused, Retry(t.Context(), time.Minute, "", func(context.Context) error { calls++; return refused }))
		require.Equal(t, 1, calls)

		ctx, cancel := context.WithCancel(t.Context())
		calls = 0
		err := Retry(ctx, time.Minute, "", func(context.Context) error {
			if calls++; calls == 1 {
				return errFull
			}
			cancel()
			return context.Canceled
		})
		require.ErrorIs(t, err, ErrFull)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, calls)
	})
}

// Of nested calls, the outermost tries again.
func TestRetryNested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, inner := 0, 0
		require.NoError(t, Retry(t.Context(), time.Minute, "", func(ctx context.Context) error {
			outer++
			return Retry(ctx, time.Minute, "", func(context.Context) error {
				if inner++; inner < 3 {
					return errFull
				}
				return nil
			})
		}))
		require.Equal(t, 3, outer)
		require.Equal(t, 3, inner)
	})
}

// A dial that the peer gave up comes again, some times.
func TestRetryGone(t *testing.T) {
	gone := fmt.Errorf("handshake: %w", ErrGone)
	for name, tt := range map[string]struct {
		times int
		then  error
		calls int
	}{
		"then room":    {2, nil, 3},
		"then refused": {2, syscall.ECONNREFUSED, 3},
		"for good":     {1000, nil, maxGone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				err := Retry(t.Context(), time.Minute, "its name", func(context.Context) error {
					if calls++; calls <= tt.times {
						return gone
					}
					return tt.then
				})
				require.Equal(t, tt.calls, calls)
				if tt.times >= maxGone {
					require.Equal(t, gone, err)
				} else {
					require.Equal(t, tt.then, err)
				}
			})
		})
	}
}

// The end of the context comes with the reason for another attempt.
func TestRetryGoneThenEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := Retry(ctx, time.Minute, "", func(context.Context) error {
			if calls++; calls == 1 {
				return ErrGone
			}
			cancel()
			return context.Canceled
		})
		require.ErrorIs(t, err, ErrGone)
		require.NotErrorIs(t, err, ErrFull)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, calls)
	})
}
