// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"os"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// open has every object that is not closed, with the stack that opened it, or
// nil without tracing. It also keeps the objects reachable: memory to which a
// device may write must not be freed when the program drops its last reference.
var open sync.Map // *Object -> stack; nil without tracing

// tracing is whether new objects record the stack that opens them.
var tracing atomic.Bool

func init() {
	tracing.Store(os.Getenv("VERBENA_TRACE_OPEN") != "")
}

// Trace says whether objects that are opened from now on record the stack that
// opens them.
func Trace(on bool) { tracing.Store(on) }

// register adds an object to open.
func register(o *Object) {
	var stack []uintptr
	if tracing.Load() {
		stack = make([]uintptr, 16)
		stack = stack[:runtime.Callers(3, stack)]
	}
	open.Store(o, stack)
}

// unregister removes an object from open.
func unregister(o *Object) { open.Delete(o) }

// Open returns a description of each open object, with the stack that opened it
// if Trace was on at that time.
func Open() []string {
	var out []string
	open.Range(func(key, value any) bool {
		out = append(out, describe(key.(*Object), value.([]uintptr)))
		return true
	})
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// Count returns the number of open objects for whose names match returns true.
func Count(match func(name string) bool) (n int) {
	open.Range(func(key, _ any) bool {
		if match(key.(*Object).name) {
			n++
		}
		return true
	})
	return n
}

// describe returns an object's name, with the stack that opened it if there is
// one.
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
