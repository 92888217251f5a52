// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/peer"
)

// MaxMemory is the most memory, in bytes, that a check may have registered at a
// time.
const MaxMemory = 4 << 20

// Target is what is checked.
type Target struct {
	Device string // name of the device
	Port   int    // number of its port
	Kind   Kind
	Peer   *peer.Session // with a selftest that serves; nil means that both ends are here
	Soak   time.Duration // how long connections are loaded
}

// T is a check that runs. It is for the check's goroutine alone. The methods
// that end the check do not return.
type T struct {
	ctx      context.Context
	target   Target
	patience time.Duration
	result   Result
	closers  []io.Closer
	memory   int
	guards   bool // whether what is not refused is a failure, as memory is not guarded
}

// Context returns a context that ends with the time of the check.
func (t *T) Context() context.Context { return t.ctx }

// Target returns what is checked.
func (t *T) Target() Target { return t.target }

// Patience returns how long anything that must happen may take.
func (t *T) Patience() time.Duration { return t.patience }

// Failf ends the check, since what it proves is not so.
func (t *T) Failf(format string, args ...any) { t.end(Failed, format, args...) }

// Differf ends the check, since the device differs in a way that programs can
// live with.
func (t *T) Differf(format string, args ...any) { t.end(Differs, format, args...) }

// Lacks ends the check, since the device does not offer what it is about.
func (t *T) Lacks(what string) { t.end(NotOffered, "%s", what) }

// Skipf ends the check, since something else than the device keeps it from
// being made.
func (t *T) Skipf(format string, args ...any) { t.end(NotRun, format, args...) }

func (t *T) end(outcome Outcome, format string, args ...any) {
	t.result.Outcome, t.result.Found = outcome, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// Failed reports whether the check was ended by Failf.
func (t *T) Failed() bool { return t.result.Outcome == Failed }

// Notef adds a fact to the result.
func (t *T) Notef(format string, args ...any) {
	t.result.Notes = append(t.result.Notes, fmt.Sprintf(format, args...))
}

// Case adds a case, which has ended as yours says.
func (t *T) Case(name string, v Verdict, yours string) {
	t.result.Cases = append(t.result.Cases, newCase(name, v, t.target.Kind, yours))
}

// Close closes an object when the check, or the Scope around, has ended, before
// those that were given earlier.
func (t *T) Close(c io.Closer) { t.closers = append(t.closers, c) }

// Closer is a function that closes something.
type Closer func() error

// Close calls the function.
func (f Closer) Close() error { return f() }

// Reserve counts memory that the check registers, until the end of the check or
// of the Scope around. It ends a check that wants more than MaxMemory.
func (t *T) Reserve(n int) {
	if t.memory+n > MaxMemory {
		t.Skipf("it would need more than %d MiB of memory", MaxMemory>>20)
	}
	t.memory += n
	t.Close(Closer(func() error { t.memory -= n; return nil }))
}

// Scope calls f, and closes what f has given to Close.
func (t *T) Scope(f func()) {
	outer := t.closers
	t.closers = nil
	defer func() {
		t.close()
		t.closers = outer
	}()
	f()
}

// close closes everything, latest first. What fails makes the check fail.
func (t *T) close() {
	var errs []error
	for len(t.closers) > 0 {
		last := len(t.closers) - 1
		c := t.closers[last]
		t.closers = t.closers[:last]
		errs = append(errs, c.Close())
	}
	if err := errors.Join(errs...); err != nil && t.result.Outcome != Failed {
		t.result.Outcome, t.result.Found = Failed, fmt.Sprintf("closing: %v", err)
	}
}

// conclude finds the outcome of the cases.
func (t *T) conclude() {
	if t.result.Outcome != OK {
		return
	}
	var differ, unguarded []string
	for _, c := range t.result.Cases {
		switch {
		case !c.Differs():
		case c.Yours == Succeeds && !c.Known && t.guards:
			unguarded = append(unguarded, c.Case)
		default:
			differ = append(differ, c.Case)
		}
	}
	switch {
	case len(unguarded) > 0:
		t.result.Outcome, t.result.Found = Failed, "not refused: "+strings.Join(unguarded, "; ")
	case len(differ) > 0:
		t.result.Outcome = Differs
		t.result.Found = fmt.Sprintf("%d of %d cases end otherwise", len(differ), len(t.result.Cases))
	}
}
