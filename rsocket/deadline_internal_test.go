// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each time that passes, or has passed when it is set, closes the channel and
// wakes the goroutine that has the pump, once.
func TestDeadlinePasses(t *testing.T) {
	past, soon, later := -time.Second, time.Second, time.Hour
	const never = 0 // the zero time
	for name, tt := range map[string]struct {
		set    []time.Duration // from now
		passed bool            // a moment after the last
		woken  int
	}{
		"past":                   {[]time.Duration{past}, true, 1},
		"past again":             {[]time.Duration{past, past}, true, 1},
		"never":                  {[]time.Duration{never}, false, 0},
		"past, never":            {[]time.Duration{past, never}, false, 1},
		"past, never, past":      {[]time.Duration{past, never, past}, true, 2},
		"past, later":            {[]time.Duration{past, later}, false, 1},
		"past, soon":             {[]time.Duration{past, soon}, true, 2},
		"soon":                   {[]time.Duration{soon}, true, 1},
		"later":                  {[]time.Duration{later}, false, 0},
		"soon, never":            {[]time.Duration{soon, never}, false, 0},
		"soon, later":            {[]time.Duration{soon, later}, false, 0},
		"soon, past":             {[]time.Duration{soon, past}, true, 1},
		"later, soon":            {[]time.Duration{later, soon}, true, 1},
		"later, past, later":     {[]time.Duration{later, past, later}, false, 1},
		"later, never, past":     {[]time.Duration{later, never, past}, true, 1},
		"soon, past, soon, past": {[]time.Duration{soon, past, soon, past}, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				woken := 0
				var d deadline
				d.init(func() { woken++ })
				for _, from := range tt.set {
					var at time.Time
					if from != never {
						at = time.Now().Add(from)
					}
					d.set(at)
				}
				wait := d.wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, tt.passed, fired(wait), "the channel is closed")
				require.Equal(t, tt.passed, d.hasPassed())
				require.Equal(t, tt.woken, woken, "how often the goroutine with the pump was woken")
				d.set(time.Time{})
				require.False(t, d.hasPassed())
			})
		})
	}
}

// A time that is set after the last one has passed is not taken for passed, and
// the channel from before stays closed.
func TestDeadlineIsSetAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := 0
		var d deadline
		d.init(func() { woken++ })
		d.set(time.Now().Add(time.Second))
		first := d.wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, fired(first))
		d.set(time.Now().Add(time.Second))
		require.False(t, d.hasPassed())
		require.True(t, fired(first))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, d.hasPassed())
		require.Equal(t, 2, woken)
	})
}
