// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// open holds every object that is not closed. It also keeps them reachable:
// memory that a device may write must not be freed with the last reference to
// it.
var open sync.Map // *Object -> stack; nil without tracing

var tracing atomic.Bool

func init() {
	tracing.Store(os.Getenv("VERBENA_TRACE_OPEN") != "")
}

// Trace says whether objects record the stack that opens them, from now on.
func Trace(on bool) { tracing.Store(on) }

func register(o *Object) {
	var stack []uintptr
	if tracing.Load() {
		stack = make([]uintptr, 16)
		stack = stack[:runtime.Callers(3, stack)]
	}
	open.Store(o, stack)
}

func unregister(o *Object) { open.Delete(o) }

// Open describes every open object, with the stack that opened it if Trace was
// on.
func Open() []string {
	var out []string
	open.Range(func(key, value any) bool {
		out = append(out, describe(key.(*Object), value.([]uintptr)))
		return true
	})
	slices.Sort(out)
	return out
}

// Count returns how many open objects have a name of which match returns true.
func Count(match func(name string) bool) (n int) {
	open.Range(func(key, _ any) bool {
		if match(key.(*Object).name) {
			n++
		}
		return true
	})
	return n
}

func describe(o *Object, stack []uintptr) string {
	if len(stack) == 0 {
		return o.name
	}
	var b strings.Builder
	b.WriteString(o.name + ", opened at")
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		if frame.Function != "" {
			fmt.Fprintf(&b, "\n\t%s %s:%d", frame.Function, frame.File, frame.Line)
		}
		if !more {
			return b.String()
		}
	}
}
