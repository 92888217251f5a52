// SPDX-License-Identifier: Apache-2.0

//go:build unix

package ibverbs

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

// A goroutine that waits on the descriptor gets an event that another one has
// read, although the descriptor no longer reports it.
func TestKeptEventWakes(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { require.NoError(t, errors.Join(r.Close(), w.Close())) }()
	fd, err := netpoll.New(int(r.Fd()), "events")
	require.NoError(t, err)
	defer func() { require.NoError(t, fd.Close()) }()
	q := new(eventQueue)
	q.join(fd)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tries, done := make(chan bool, 10), make(chan error, 1)
	go func() {
		done <- fd.Wait(ctx, nil, func() (bool, error) {
			q.mu.Lock()
			defer q.mu.Unlock()
			tries <- true
			return len(q.events) > 0, nil
		})
	}()
	<-tries // and now it waits, or is about to
	q.mu.Lock()
	q.add(Event{Type: EventSQDrained})
	q.mu.Unlock()
	require.NoError(t, <-done)
	q.leave(fd)
	require.Empty(t, q.waiters)
}
