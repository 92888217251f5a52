// SPDX-License-Identifier: Apache-2.0

package testdevice

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// extraThreads is how many threads the runtime may start in a test for reasons
// of its own: on a busy machine, one for each call of C that begins while
// another has not got a processor. Threads that it has started stay.
const extraThreads = 100

// patience is how long what has been told to end may take.
var patience = 10 * time.Second

// NoLeaks fails the test if it ends with more open objects, goroutines, open
// files or, by far, threads than there are now. Call it first: cleanups that
// are registered later run earlier. What a C library opens once and for all
// must have been opened before; Require does so for libibverbs.
//
// Goroutines and files are the process's, so the test must not run in parallel
// with others.
func NoLeaks(t testing.TB) {
	t.Helper()
	ibverbs.TraceObjects(true)
	objects, files, before, threads := ibverbs.OpenObjects(), openFiles(), goroutines(), Threads(t)
	t.Cleanup(func() {
		t.Helper()
		if left := added(objects, ibverbs.OpenObjects()); len(left) > 0 {
			t.Errorf("%d objects were not closed:\n%s", len(left), strings.Join(left, "\n"))
		}
		var running []string
		if !eventually(func() bool { running = begun(before); return len(running) == 0 }) {
			t.Errorf("%d goroutines did not end:\n%s", len(running), strings.Join(running, "\n\n"))
		}
		if !eventually(func() bool { return len(openFiles()) <= len(files) }) {
			t.Errorf("files that were not closed: %s", strings.Join(added(files, openFiles()), ", "))
		}
		if n := Threads(t); n > threads+extraThreads {
			t.Errorf("threads: %d before, %d after", threads, n)
		}
	})
}

// Threads returns how many threads the process has, 0 if the system cannot
// tell.
func Threads(t testing.TB) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		var n int
		if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("no number of threads in /proc/self/status")
	return 0
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// goroutines returns the stack of each goroutine by its first words, such as
// "goroutine 12", which no later goroutine has.
func goroutines() map[string]string {
	dump := make([]byte, 4<<20)
	dump = dump[:runtime.Stack(dump, true)]
	stacks := map[string]string{}
	for stack := range strings.SplitSeq(string(dump), "\n\n") {
		id, _, _ := strings.Cut(stack, " [")
		stacks[id] = stack
	}
	return stacks
}

// begun returns the stacks of goroutines that are not among those before.
func begun(before map[string]string) []string {
	after := goroutines()
	maps.DeleteFunc(after, func(id, _ string) bool { _, ok := before[id]; return ok })
	return slices.Sorted(maps.Values(after))
}

// openFiles describes the process's descriptors, except for the runtime's own,
// which it opens when it first needs them.
func openFiles() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var files []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		switch {
		case err != nil: // that of ReadDir itself
		case target == "anon_inode:[eventpoll]", target == "anon_inode:[eventfd]":
		default:
			files = append(files, e.Name()+" -> "+target)
		}
	}
	return files
}

// added returns what after has more than before.
func added(before, after []string) []string {
	count := map[string]int{}
	for _, s := range after {
		count[s]++
	}
	for _, s := range before {
		count[s]--
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n <= 0 })
	return slices.Sorted(maps.Keys(count))
}
