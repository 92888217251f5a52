// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/watch/hotplug"
)

// watcher watches devices. Its own goroutines only wait: when something
// happens, they pass a function to the goroutine that runs the method events,
// which calls the function and prints the events that it returns.
type watcher struct {
	wanted   []string // names of the devices to print events of; nil means all
	stderr   io.Writer
	happened chan func() []event
	devices  map[string]*device
	waiters  sync.WaitGroup
}

// start begins to watch the existing devices.
func (w *watcher) start(ctx context.Context) error {
	kernel, err := hotplug.Listen()
	if err != nil {
		w.failed(fmt.Errorf("watch devices appear and disappear: %w", err))
	} else {
		w.waiters.Go(func() { w.watchKernel(ctx, kernel) })
	}
	if _, err := w.list(ctx); err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.devices)), func(name string) bool { return !w.wants(name) })
	fmt.Fprintf(w.stderr, "verbena watch: watching %s\n", cmp.Or(strings.Join(names, ", "), "for new devices"))
	return nil
}

func (w *watcher) failed(err error) {
	if err != nil {
		fmt.Fprintf(w.stderr, "verbena watch: %v\n", err)
	}
}

// wants reports whether events of a device are printed.
func (w *watcher) wants(name string) bool {
	return len(w.wanted) == 0 || slices.Contains(w.wanted, name)
}

// watchKernel waits for devices that appear and disappear.
func (w *watcher) watchKernel(ctx context.Context, kernel *hotplug.Listener) {
	for ev := range kernel.Events(ctx) {
		w.send(ctx, func() []event {
			if ev.Removed != "" {
				return []event{{Device: ev.Removed, Event: "device removed"}}
			}
			added, err := w.list(ctx)
			w.failed(err)
			return added
		})
	}
}

// send passes a function to the goroutine that runs the method events.
func (w *watcher) send(ctx context.Context, f func() []event) {
	select {
	case w.happened <- f:
	case <-ctx.Done():
	}
}

// events returns the events of the wanted devices until ctx ends.
func (w *watcher) events(ctx context.Context) iter.Seq[event] {
	return func(yield func(event) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case f := <-w.happened:
				for _, e := range f() {
					e.Time = time.Now()
					if w.wants(e.Device) && !yield(e) {
						return
					}
				}
			}
		}
	}
}
