// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

func TestFailedDispatcherTellsEveryID(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want syscall.Errno
	}{
		{"errno", fmt.Errorf("read: %w", syscall.ENOMEM), syscall.ENOMEM},
		{"no errno", errors.New("read"), syscall.EIO},
		{"of C", &ibverbs.Error{Op: "rdma_get_cm_event", Object: "event channel 7", Errno: syscall.EBADF}, syscall.EBADF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &dispatcher{handlers: map[*ID]func(*Event){}}
			var got []*Event
			keep := func(ev *Event) { got = append(got, ev) }
			before, after, gone := new(ID), new(ID), new(ID)
			d.handle(before, keep)
			d.handle(gone, keep)
			d.forget(gone)
			d.failAll(tt.err)
			d.handle(after, keep) // is told too: it would wait for ever
			require.Len(t, got, 2)
			require.Same(t, before, got[0].ID)
			require.Same(t, after, got[1].ID)
			for _, ev := range got {
				require.Equal(t, EventConnectError, ev.Type)
				require.ErrorIs(t, ev.Err(), tt.want)
				require.ErrorContains(t, ev.Err(), "connection failed: rdma_get_cm_event")
			}
		})
	}
}

func TestFailedDispatcherEndsListener(t *testing.T) {
	ln := &Listener{requests: make(chan *Request, 1), closed: make(chan struct{})}
	ln.handle(&Event{Type: EventConnectError, Status: -int(syscall.EIO)})
	ln.handle(&Event{Type: EventDeviceRemoval}) // the first cause stays
	_, err := ln.Accept(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "connection failed")
}

func TestQueueKeepsOrder(t *testing.T) {
	var q queue
	q.wait() // with nothing in it
	var got []int
	var group sync.WaitGroup
	var inside, total atomic.Int32
	for range 4 {
		group.Go(func() {
			for range 500 {
				q.add(func() {
					if inside.Add(1) != 1 {
						t.Error("two at a time")
					}
					total.Add(1)
					inside.Add(-1)
				})
			}
		})
	}
	for i := range 500 {
		q.add(func() { got = append(got, i) })
	}
	group.Wait()
	q.wait()
	require.EqualValues(t, 2000, total.Load())
	for i, n := range got {
		require.Equal(t, i, n)
	}
	q.mu.Lock() // what works it off ends when it has nothing to do
	defer q.mu.Unlock()
	require.Empty(t, q.waiting)
}

// A queue runs atOnce functions at a time, and the others wait. A function that
// takes long occupies one worker only.
func TestQueueAtOnce(t *testing.T) {
	const atOnce = 3
	q := queue{atOnce: atOnce}
	begun, leave := make(chan struct{}, 2*atOnce), make(chan struct{})
	for range 2 * atOnce {
		q.add(func() { begun <- struct{}{}; <-leave })
	}
	for range atOnce {
		<-begun
	}
	q.mu.Lock()
	require.Equal(t, atOnce, q.workers)
	require.Len(t, q.waiting, atOnce)
	q.mu.Unlock()
	close(leave)
	q.wait()
	require.Len(t, begun, atOnce, "the rest has been done, too")
	require.Zero(t, q.workers)
}
