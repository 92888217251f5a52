// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllocations(t *testing.T) {
	r, w := pipe(t)
	f := open(t, r)
	try := reader(r)
	token := []byte{1}
	ready := make(chan struct{}, 1)
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()

	// The writer waits until the poller is about to park, so that it parks.
	wake, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for range wake {
			write(w, token...)
		}
	}()
	defer func() { close(wake); <-stopped }()
	wakeOnce := false
	parking := func() (bool, error) {
		done, err := try()
		if !done && !wakeOnce {
			wakeOnce = true
			wake <- struct{}{}
		}
		return done, err
	}
	failed := error(nil)
	wait := func(ctx context.Context, try func() (bool, error)) func() {
		return func() {
			wakeOnce = false
			if err := f.Wait(ctx, ready, try); err != nil {
				failed = err
			}
		}
	}
	atOnce := func(ctx context.Context) func() {
		wait := wait(ctx, try)
		return func() { write(w, token...); wait() }
	}
	const runs = 500

	require.Zero(t, testing.AllocsPerRun(runs, atOnce(context.Background())), "event already there")
	require.Zero(t, testing.AllocsPerRun(runs, wait(context.Background(), parking)), "parking")
	require.Zero(t, testing.AllocsPerRun(runs, atOnce(cancellable)), "cancellable, event already there")
	kicked := atOnce(context.Background())
	require.Zero(t, testing.AllocsPerRun(runs, func() { f.Kick(); kicked() }), "after a Kick")

	bare := testing.AllocsPerRun(runs, func() { context.AfterFunc(cancellable, cancel)() })
	require.LessOrEqual(t, testing.AllocsPerRun(runs, wait(cancellable, parking)), bare, "cancellable, parking")
	require.NoError(t, failed)
}
