// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func run(t *testing.T, kind Kind, f func(t *T)) Result {
	t.Helper()
	results := Runner{Target: Target{Kind: kind}}.Run(t.Context(), []Check{{Name: "one", Run: f}})
	require.Len(t, results, 1)
	require.Equal(t, "one", results[0].Check)
	results[0].Milliseconds = 0
	return results[0]
}

func TestOutcomes(t *testing.T) {
	spec := Verdict{Specification: []string{"good"}, SoftRoCE: []string{"bad", "worse"}}
	for name, tt := range map[string]struct {
		kind    Kind
		run     func(t *T)
		outcome Outcome
		found   string
	}{
		"ok":          {run: func(*T) {}, outcome: OK},
		"failed":      {run: func(t *T) { t.Failf("%d", 1); panic("goes on") }, outcome: Failed, found: "1"},
		"differs":     {run: func(t *T) { t.Differf("a bit") }, outcome: Differs, found: "a bit"},
		"not offered": {run: func(t *T) { t.Lacks("windows") }, outcome: NotOffered, found: "windows"},
		"not run":     {run: func(t *T) { t.Skipf("no file") }, outcome: NotRun, found: "no file"},
		"panic":       {run: func(*T) { panic("oh") }, outcome: Failed, found: "panic: oh"},
		"good case":   {run: func(t *T) { t.Case("x", spec, "good") }, outcome: OK},
		"other case":  {run: func(t *T) { t.Case("x", spec, "bad") }, outcome: Differs, found: "1 of 1 cases end otherwise"},
		"known case": {
			kind: SoftRoCE, run: func(t *T) { t.Case("x", spec, "worse"); t.Case("y", spec, "good") },
			outcome: Differs, found: "1 of 2 cases end otherwise",
		},
		"not refused": {run: func(t *T) { t.Case("x", spec, Succeeds) }, outcome: Differs, found: "1 of 1 cases end otherwise"},
		"does not close": {
			run:     func(t *T) { t.Close(Closer(func() error { return errors.New("busy") })) },
			outcome: Failed, found: "closing: busy",
		},
		"too much memory": {run: func(t *T) { t.Reserve(MaxMemory); t.Reserve(1) }, outcome: NotRun, found: "it would need more than 4 MiB of memory"},
		"memory again":    {run: func(t *T) { t.Scope(func() { t.Reserve(MaxMemory) }); t.Reserve(MaxMemory) }, outcome: OK},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, tt.kind, tt.run)
			require.Equal(t, tt.outcome, got.Outcome)
			require.Equal(t, tt.found, got.Found)
		})
	}
	unguarded := Check{Features: []Feature{Protection}, Run: func(t *T) { t.Case("x", spec, Succeeds) }}
	result := Runner{}.Run(t.Context(), []Check{unguarded})[0]
	require.Equal(t, Failed, result.Outcome)
	require.Equal(t, "not refused: x", result.Found)
	known := run(t, SoftRoCE, func(t *T) { t.Case("x", spec, "bad") }).Cases
	require.Equal(t, []Case{{Case: "x", Specification: "good", SoftRoCE: "bad or worse", UserSpace: "good", Yours: "bad", Known: true}}, known)
	require.False(t, run(t, Card, func(t *T) { t.Case("x", spec, "bad") }).Cases[0].Known)
}

// Everything is closed, latest first, however a check ends.
func TestCloses(t *testing.T) {
	for _, end := range []func(t *T){func(*T) {}, func(t *T) { t.Failf("no") }, func(*T) { panic(1) }} {
		var closed []int
		add := func(t *T, n int) { t.Close(Closer(func() error { closed = append(closed, n); return nil })) }
		run(t, Card, func(t *T) {
			add(t, 1)
			t.Scope(func() { add(t, 2); add(t, 3) })
			add(t, 4)
			t.Scope(func() { add(t, 5); end(t) })
		})
		require.Equal(t, []int{3, 2, 5, 4, 1}, closed)
	}
}

// A check that waits ends with its time, those after it are made; one that
// hangs ends everything.
func TestTimes(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	waits := Check{Name: "waits", Run: func(t *T) { <-t.Context().Done(); t.Failf("nothing came") }}
	hangs := Check{Name: "hangs", Run: func(*T) { <-release }}
	fine := Check{Name: "fine", Run: func(*T) {}}
	var started []string
	r := Runner{Limit: time.Millisecond, Linger: time.Millisecond, Progress: func(_, _ int, c Check) { started = append(started, c.Name) }}
	r.Linger = time.Minute
	results := r.Run(t.Context(), []Check{waits, fine})
	require.Equal(t, []Outcome{Failed, OK}, outcomes(results))
	r.Linger = time.Millisecond
	results = r.Run(t.Context(), []Check{hangs, fine})
	require.Equal(t, []Outcome{Failed, NotRun}, outcomes(results))
	require.Equal(t, "hangs hangs", results[1].Found)
	require.Equal(t, []string{"waits", "fine", "hangs"}, started)
}

// An interruption is no failure of the check that it ends.
func TestInterrupted(t *testing.T) {
	for cause, found := range map[error]string{ErrTime: "the time of all checks was over", context.Canceled: "interrupted"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		closed := false
		results := Runner{}.Run(ctx, []Check{
			{Name: "waits", Run: func(t *T) {
				t.Close(Closer(func() error { closed = true; return nil }))
				cancel(cause)
				<-t.Context().Done()
				t.Failf("nothing came")
			}},
			{Name: "next", Run: func(*T) { panic("is not run") }},
		})
		require.Equal(t, []Outcome{NotRun, NotRun}, outcomes(results))
		require.Equal(t, found, results[0].Found)
		require.Equal(t, found, results[1].Found)
		require.True(t, closed)
	}
}

func outcomes(results []Result) (all []Outcome) {
	for _, r := range results {
		all = append(all, r.Outcome)
	}
	return all
}
