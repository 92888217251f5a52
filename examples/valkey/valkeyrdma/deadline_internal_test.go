// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The context has ended if the time has passed that was set last.
func TestDeadline(t *testing.T) {
	past, soon, later := -time.Second, time.Second, time.Hour
	const never = 0 // the zero time
	for name, tt := range map[string]struct {
		set    []time.Duration // from now
		passed bool            // two seconds after the last
	}{
		"none":                {nil, false},
		"past":                {[]time.Duration{past}, true},
		"past, never":         {[]time.Duration{past, never}, false},
		"past, later":         {[]time.Duration{past, later}, false},
		"past, soon":          {[]time.Duration{past, soon}, true},
		"soon":                {[]time.Duration{soon}, true},
		"soon, never":         {[]time.Duration{soon, never}, false},
		"soon, later":         {[]time.Duration{soon, later}, false},
		"later, soon":         {[]time.Duration{later, soon}, true},
		"later, past":         {[]time.Duration{later, past}, true},
		"later, past, later":  {[]time.Duration{later, past, later}, false},
		"never, soon":         {[]time.Duration{never, soon}, true},
		"soon, never, soon":   {[]time.Duration{soon, never, soon}, true},
		"later, never, never": {[]time.Duration{later, never, never}, false},
	} {
		for between, pause := range map[string]time.Duration{"": 0, ", with pauses": 2 * time.Second} {
			t.Run(name+between, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					parent, cancel := context.WithCancelCause(t.Context())
					var d deadline
					d.init(parent)
					for _, wait := range tt.set {
						time.Sleep(pause)
						if wait == never {
							d.set(time.Time{})
						} else {
							d.set(time.Now().Add(wait))
						}
					}
					time.Sleep(2 * time.Second)
					if tt.passed {
						require.Equal(t, os.ErrDeadlineExceeded, context.Cause(d.context()))
					} else {
						require.NoError(t, d.context().Err())
					}
					cancel(os.ErrClosed)
					require.Error(t, d.context().Err())
					d.set(time.Time{})
					require.Equal(t, os.ErrClosed, context.Cause(d.context()))
				})
			})
		}
	}
}

// Calls that wait when a deadline is set end at it, whichever was set before.
func TestDeadlineWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadline
		d.init(t.Context())
		d.set(time.Now().Add(time.Hour))
		ctx := d.context()
		d.set(time.Now().Add(time.Minute))
		start := time.Now()
		<-ctx.Done()
		require.Equal(t, time.Minute, time.Since(start))
		d.set(time.Now().Add(time.Second))
		<-d.context().Done()
		require.Equal(t, time.Minute+time.Second, time.Since(start))
	})
}
