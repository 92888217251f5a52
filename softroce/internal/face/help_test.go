// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Who has polled a queue in vain many times does the work of a node whose worker does not, and only when there is some.
func TestHelp(t *testing.T) {
	r := newRig(t)
	cq := r.cq(4)
	wc := alloc[libibverbs.Wc]()
	defer free(wc)
	vain := func(times int) {
		for range times {
			n, err := libibverbs.PollCq(cq, 1, wc)
			require.NoError(t, err)
			require.Zero(t, n)
		}
	}
	n := newWired(t).node
	work := func() (done bool) {
		n.bell.Ring()
		n.help(unsafe.Pointer(cq))
		return !n.bell.IsRung()
	}
	vain(spins - 1)
	require.False(t, work())
	require.Zero(t, n.helps.Load())
	vain(1)
	require.True(t, work())
	require.EqualValues(t, 1, n.helps.Load())
	require.Equal(t, never, time.Duration(n.looks.Load()))

	n.mu.Lock() // somebody else does the work
	require.False(t, work())
	n.mu.Unlock()
	require.True(t, work())

	for _, seen := range []func(){
		func() { n.faults = func(*wire.Packet) Fault { return Fault{} } },
		func() { n.captures = []*capture{{}} },
	} {
		seen() // by a function of the program's
		n.watch()
		require.False(t, work())
		n.faults, n.captures = nil, nil
		n.watch()
		require.True(t, work())
	}

	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	helped := n.helps.Load()
	require.False(t, work())
	require.Equal(t, helped, n.helps.Load())

	// What is due earlier than the worker knows makes it look again.
	vain(spins)
	n.mu.Lock()
	n.delayed = queue{{at: n.now() + time.Hour}}
	n.mu.Unlock()
	require.False(t, work())
	require.InDelta(t, time.Hour, n.due(), float64(time.Minute))
	require.True(t, work())
}

// A worker that others help sleeps until they do not, or until somebody needs it.
func TestDoze(t *testing.T) {
	r := newRig(t)
	cq := r.cq(4)
	n := newWired(t).node
	n.internet = nil
	n.looks.Store(int64(never))
	before, arms := n.helps.Load(), armed()
	require.False(t, n.doze(before, arms), "nobody helps")
	n.helps.Add(1)
	require.True(t, n.doze(before, arms), "somebody has")
	n.looks.Store(0)
	require.False(t, n.doze(before, arms), "something is due")

	var end atomic.Bool
	helper := make(chan struct{})
	go func() {
		defer close(helper)
		for !end.Load() {
			n.helps.Add(1)
		}
	}()
	n.looks.Store(int64(n.now() + 10*time.Millisecond))
	for n.doze(before, arms) {
	}
	require.LessOrEqual(t, n.due(), time.Duration(0))
	n.looks.Store(int64(never))
	dozed := make(chan struct{})
	go func() {
		defer close(dozed)
		for n.doze(before, arms) {
		}
	}()
	until := n.helps.Load() + 1000
	for n.helps.Load() < until {
		select {
		case <-dozed:
			require.FailNow(t, "nobody waits for an event")
		default:
		}
	}
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	<-dozed
	end.Store(true)
	<-helper
}

// A worker that others help does not sleep on while they leave something undone: they have ended polling, and spin for something
// else. Nor does it nap again soon.
func TestDozeWithWorkUndone(t *testing.T) {
	n := newWired(t).node
	n.internet = nil
	n.looks.Store(int64(never))
	var end atomic.Bool
	helper := make(chan struct{})
	go func() {
		defer close(helper)
		for !end.Load() {
			n.helps.Add(1)
		}
	}()
	defer func() {
		end.Store(true)
		<-helper
	}()
	n.bell.Ring()
	woke := make(chan struct{})
	go func() {
		defer close(woke)
		n.doze(n.helps.Load()-1, armed())
	}()
	select {
	case <-woke:
	case <-time.After(time.Minute):
		require.FailNow(t, "the worker sleeps although the bell was rung and nobody hears it")
	}
	require.False(t, n.doze(n.helps.Load()-1, armed()), "it naps again at once")
	n.wary = 0
	n.bell.Hear()
	n.looks.Store(int64(n.now() + 10*time.Millisecond))
	require.True(t, n.doze(n.helps.Load()-1, armed()), "later it naps again")
}
