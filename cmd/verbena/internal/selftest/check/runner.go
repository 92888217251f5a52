// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Runner runs checks one after the other.
type Runner struct {
	Target   Target
	Limit    time.Duration // time of each check; 0 means 30 seconds
	Patience time.Duration // time of each wait in a check; 0 means 10 seconds

	// Linger is how long a check that was told to end may take for that; 0 means
	// 10 seconds.
	Linger time.Duration

	// Progress, if not nil, is called before each check.
	Progress func(number, of int, c Check)
}

// Run returns a result for each check. When ctx ends, the running check ends
// and closes what it has opened, and those after it are not run. If a check
// does not end although it should, which means that a call of the device's
// hangs, those after it are not run either.
func (r Runner) Run(ctx context.Context, checks []Check) []Result {
	r.Limit, r.Patience, r.Linger = either(r.Limit, 30*time.Second), either(r.Patience, 10*time.Second), either(r.Linger, 10*time.Second)
	results, hanging := make([]Result, 0, len(checks)), ""
	for i, c := range checks {
		switch {
		case hanging != "":
			results = append(results, Result{Check: c.Name, Outcome: NotRun, Found: hanging + " hangs"})
			continue
		case ctx.Err() != nil:
			results = append(results, Result{Check: c.Name, Outcome: NotRun, Found: why(ctx)})
			continue
		}
		if r.Progress != nil {
			r.Progress(i+1, len(checks), c)
		}
		result, ended := r.run(ctx, c)
		if !ended {
			hanging = c.Name
		}
		results = append(results, result)
	}
	return results
}

func either(d, initial time.Duration) time.Duration {
	if d == 0 {
		return initial
	}
	return d
}

// ErrTime is the cause of the end of a context that ends since the time of all
// checks is over.
var ErrTime = errors.New("the time of all checks was over")

func why(ctx context.Context) string {
	if errors.Is(context.Cause(ctx), ErrTime) {
		return ErrTime.Error()
	}
	return "interrupted"
}

// run makes a check, and reports whether it has ended.
func (r Runner) run(ctx context.Context, c Check) (Result, bool) {
	own, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	t := &T{ctx: own, target: r.Target, patience: r.Patience, result: Result{Check: c.Name, Outcome: OK}}
	t.guards = slices.Contains(c.Features, Protection)
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.close()
		defer t.recover()
		c.Run(t)
		t.conclude()
	}()
	select {
	case <-done:
	case <-own.Done():
		select {
		case <-done:
		case <-time.After(r.Linger):
			return Result{
				Check: c.Name, Outcome: Failed, Found: fmt.Sprintf("hangs: a call has not returned after %v", r.Linger),
				Milliseconds: time.Since(start).Milliseconds(),
			}, false
		}
	}
	if ctx.Err() != nil && t.result.Outcome == Failed {
		t.result.Outcome, t.result.Found = NotRun, why(ctx)
	}
	t.result.Milliseconds = time.Since(start).Milliseconds()
	return t.result, true
}

// recover makes a panic a failure.
func (t *T) recover() {
	if p := recover(); p != nil {
		t.result.Outcome, t.result.Found = Failed, fmt.Sprintf("panic: %v", p)
	}
}
