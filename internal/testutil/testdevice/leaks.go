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

// extraThreads is the number of threads that the runtime may start during a
// test. On a busy machine, it may start one for each call of C. Threads are
// never ended.
const extraThreads = 100

// patience limits the time for which NoLeaks waits until goroutines have ended
// and files are closed. It is as long as that of package cmtest.
var patience = 3 * time.Minute

// NoLeaks makes the test fail if at its end more objects, goroutines or files
// are open than now, or many more threads. It must be called before other
// cleanups are registered, since these run earlier. Files that a C library
// opens only once must be open already; Require makes sure of that for
// libibverbs.
//
// Goroutines and files belong to the whole process, so the test must not run in
// parallel with others.
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

// Threads returns the number of threads of this process, or 0 if the system
// does not have /proc.
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

// eventually waits until ok returns true. It returns false if that takes longer
// than patience.
func eventually(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// goroutines returns the stack of each goroutine by the beginning of its
// description, such as "goroutine 12", which is unique.
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

// begun returns the stacks of the goroutines that are not in before.
func begun(before map[string]string) []string {
	after := goroutines()
	maps.DeleteFunc(after, func(id, _ string) bool { _, ok := before[id]; return ok })
	return slices.Sorted(maps.Values(after))
}

// openFiles describes the open descriptors of this process, without those that
// Go's runtime opens for itself.
func openFiles() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var files []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		switch {
		case err != nil: // descriptor with which ReadDir reads the directory
		case target == "anon_inode:[eventpoll]", target == "anon_inode:[eventfd]":
		default:
			files = append(files, e.Name()+" -> "+target)
		}
	}
	return files
}

// added returns the elements of after that are not in before, or not as often.
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
