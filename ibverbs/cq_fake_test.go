// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// polls are the ways to get completions' IDs.
func polls(f *fakeDevice) map[string]func(room int) ([]uint64, error) {
	all := map[string]func(int) ([]uint64, error){}
	for kind, cq := range map[string]*CQ{"plain": f.cq, "fields": f.fields} {
		for name, poll := range map[string]func(wcs []WC) (int, error){
			"Poll": cq.Poll,
			"Spin": func(wcs []WC) (int, error) { return cq.Spin(wcs, time.Millisecond) },
			"Wait": func(wcs []WC) (int, error) { return cq.pollOrArm(wcs, false) },
			"Exchange": func(wcs []WC) (int, error) {
				return f.qp.Exchange(nil, nil, cq, wcs, len(wcs), time.Millisecond)
			},
		} {
			all[kind+"/"+name] = func(room int) (ids []uint64, err error) {
				wcs := make([]WC, room)
				n, err := poll(wcs)
				for i := range wcs[:n] {
					ids = append(ids, wcs[i].ID())
				}
				return ids, err
			}
		}
	}
	return all
}

func TestPolls(t *testing.T) {
	f := newFakeDevice(t)
	for name, poll := range polls(f) {
		t.Run(name, func(t *testing.T) {
			f.Set(fakeverbs.Script{Completions: 5})
			for _, want := range [][]uint64{{0, 1, 2}, {3, 4}, nil} {
				ids, err := poll(3)
				require.NoError(t, err)
				require.Equal(t, want, ids)
			}
			require.Zero(t, f.Unended())

			f.Set(fakeverbs.Script{Completions: 200})
			ids, err := poll(200)
			require.NoError(t, err)
			require.Len(t, ids, 200)

			f.Set(fakeverbs.Script{PollError: -2})
			_, err = poll(3)
			require.Error(t, err)
			require.ErrorContains(t, err, " (fake CQ): ")
			f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
			_, err = poll(3)
			require.ErrorIs(t, err, syscall.EFAULT)
			require.Zero(t, f.Unended())
		})
	}
}

// ibv_next_poll cannot be relied upon in Soft-RoCE's provider; without it the
// same completions come.
func TestPollOneByOne(t *testing.T) {
	f := newFakeDevice(t)
	f.fields.queue.Fields |= 1 << 62 // as for Soft-RoCE
	f.Set(fakeverbs.Script{Completions: 5})
	wcs := make([]WC, 3)
	for _, want := range []int{3, 2, 0} {
		n, err := f.fields.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Zero(t, f.Unended())
}

func TestSpinStops(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 4)
	f.Set(fakeverbs.Script{EmptyPolls: 100, Completions: 2})
	n, err := f.cq.Spin(wcs, time.Hour) // MaxSpin is enough
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 101, f.Polls())

	for _, budget := range []time.Duration{-1, 0} {
		f.Set(fakeverbs.Script{})
		n, err = f.cq.Spin(wcs, budget)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 1, f.Polls())
	}
	for polls, end := 0, time.Now().Add(time.Minute); polls <= 8; polls = f.Polls() { // fewer if the system stops the thread meanwhile
		require.True(t, time.Now().Before(end), "it polls on")
		f.Set(fakeverbs.Script{})
		begin := time.Now()
		n, err = f.cq.Spin(wcs, time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		require.GreaterOrEqual(t, time.Since(begin), MaxSpin)
	}

	_, err = f.cq.Spin(nil, time.Second)
	require.ErrorIs(t, err, syscall.EINVAL)
}

func TestSleepRefuses(t *testing.T) {
	f := newFakeDevice(t)
	_, err := f.cq.Sleep(nil, time.Second)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = f.cq.Sleep(make([]WC, 1), time.Second)
	require.ErrorContains(t, err, "CQ.Sleep (fake CQ): the queue was made without CQConfig.Channel")
	_, err = f.qp.ExchangeAndSleep(nil, nil, f.cq, make([]WC, 1), 1, time.Second)
	require.ErrorContains(t, err, "QP.ExchangeAndSleep (fake CQ): the queue was made without CQConfig.Channel")
	_, err = f.qp.ExchangeAndSleep(nil, nil, nil, make([]WC, 1), 1, time.Second)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// A completion that comes between the first look and the arming is found.
func TestPollOrArm(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 4)
	arm := func() (int, error) { return f.cq.pollOrArm(wcs, false) }

	f.Set(fakeverbs.Script{Completions: 1})
	n, err := arm()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, f.Armed(), "there is something already")

	f.Set(fakeverbs.Script{OnArming: 2})
	n, err = arm()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 1, f.Armed())
	require.Equal(t, 2, f.Polls())

	f.cq.solicited = true
	n, err = arm()
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 101, f.Armed())

	f.Set(fakeverbs.Script{ArmError: int(syscall.ENODEV)})
	_, err = arm()
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "ibv_req_notify_cq (fake CQ)")
	for _, code := range []int{-1, -int(syscall.ENODEV)} {
		f.Set(fakeverbs.Script{ArmError: code})
		_, err = arm()
		require.ErrorContains(t, err, "ibv_req_notify_cq (fake CQ)")
	}
}

func TestPostSendAndSpin(t *testing.T) {
	f := newFakeDevice(t)
	b := filled(t, fakeMR(t, 64, 1), 3)
	wcs := make([]WC, 8)
	for _, qp := range []*QP{f.qp, f.ex} {
		f.Set(fakeverbs.Script{EmptyPolls: 20, Completions: 3})
		posted, n, err := qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin)
		require.NoError(t, err)
		require.Equal(t, 3, posted)
		require.Equal(t, 3, n)

		f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
		posted, n, err = qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin)
		require.ErrorIs(t, err, syscall.EFAULT)
		require.Equal(t, 3, posted, "these are under way")
		require.Zero(t, n)
	}
	_, _, err := f.qp.PostSendAndSpin(b, f.cq, nil, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, _, err = f.qp.PostSendAndSpin(nil, f.cq, wcs, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, _, err = f.qp.PostSendAndSpin(b, &CQ{}, wcs, 0)
	require.Error(t, err)
}

func TestPostRecvAndPoll(t *testing.T) {
	f := newFakeDevice(t)
	b, err := NewRecvBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, b.Recv(1, fakeMR(t, 64, 1).Sub(0, 64)))
	wcs := make([]WC, 8)
	for name, tt := range map[string]struct {
		script    fakeverbs.Script
		cq        *CQ
		posted, n int
		err       error
	}{
		"a message":     {fakeverbs.Script{Completions: 1}, f.cq, 1, 1, nil},
		"no message":    {fakeverbs.Script{EmptyPolls: 20}, f.cq, 1, 0, nil},
		"a full queue":  {fakeverbs.Script{PostError: int(syscall.ENOMEM), Completions: 1}, f.cq, 0, 0, syscall.ENOMEM},
		"no polling":    {fakeverbs.Script{PollError: -int(syscall.EFAULT)}, f.cq, 1, 0, syscall.EFAULT},
		"another queue": {fakeverbs.Script{Completions: 1}, &CQ{}, 0, 0, os.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f.Set(tt.script)
			posted, n, err := f.qp.postRecvAndPoll(b, tt.cq, wcs)
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.posted, posted)
			require.Equal(t, tt.n, n)
		})
	}
	_, _, err = (*QP)(nil).postRecvAndPoll(b, f.cq, wcs)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// After an overrun, what is left comes first, and then the error.
func TestOverran(t *testing.T) {
	f := newFakeDevice(t)
	f.Set(fakeverbs.Script{Completions: 1})
	f.cq.overran()
	wcs := make([]WC, 2)
	n, err := f.cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for range 2 {
		_, err = f.cq.Poll(wcs)
		require.ErrorIs(t, err, ErrCQOverrun)
		require.EqualError(t, err, "fake CQ: "+ErrCQOverrun.Error())
	}
	_, err = f.cq.Poll(nil)
	require.NoError(t, err)
}

// A loop that ends leaves the completions that it has not seen.
func TestCompletionsOneAtATime(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.channel = &CompChannel{} // which is not used while there are completions
	f.Set(fakeverbs.Script{Completions: 4})
	var ids []uint64
	for wc, err := range f.cq.Completions(t.Context()) {
		require.NoError(t, err)
		if ids = append(ids, wc.ID()); len(ids) == 2 {
			break
		}
	}
	require.Equal(t, []uint64{0, 1}, ids)
	wc, err := f.cq.WaitOne(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, wc.ID())
	n, err := f.cq.Poll(make([]WC, 9))
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A request that failed is an error, after which others follow.
func TestCompletionsThatFailed(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.channel = &CompChannel{}
	f.Set(fakeverbs.Script{Completions: 9, Status: libibverbs.IBV_WC_WR_FLUSH_ERR})
	wc, err := f.cq.WaitOne(t.Context())
	require.ErrorIs(t, err, WCFlushed)
	require.EqualValues(t, 0, wc.ID())
	next := uint64(1)
	for wc, err := range f.cq.Completions(t.Context()) {
		require.ErrorIs(t, err, WCFlushed)
		require.Equal(t, next, wc.ID())
		if next++; next == 9 {
			break
		}
	}

	f.Set(fakeverbs.Script{PollError: -1})
	times := 0
	for wc, err := range f.cq.Completions(t.Context()) {
		require.ErrorContains(t, err, "ibv_poll_cq (fake CQ)")
		require.Zero(t, wc)
		times++
	}
	require.Equal(t, 1, times, "an error of another kind ends the loop")
}

// Wait spins if recent spins have usually succeeded.
func TestWaitSpins(t *testing.T) {
	setPlaces(t, &spinPlaces, 1)
	f := newFakeDevice(t)
	f.cq.channel = &CompChannel{raw: &libibverbs.CompChannel{Fd: -1}} // which is never asked
	f.cq.policy.init(CQConfig{Spin: MaxSpin}, false)
	f.cq.policy.spins.add(true)
	f.Set(fakeverbs.Script{EmptyPolls: 50, Completions: 2})
	wcs := make([]WC, 4)
	n, err := f.cq.Wait(t.Context(), wcs)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 51, f.Polls())
	require.Equal(t, int32(2), f.cq.policy.spins.score.Load(), "the spin has succeeded")

	f.Set(fakeverbs.Script{PollError: -2})
	_, err = f.cq.Wait(t.Context(), wcs)
	require.Error(t, err)
}

// attendant is a device in this process whose work waiting goroutines do.
type attendant struct {
	received   atomic.Uint32
	attends    chan struct{} // gets a value when a goroutine attends
	interrupts chan struct{}
	parked     atomic.Int32 // number of goroutines that have said that they park
	superseded atomic.Int32 // number of calls of Supersede
	busy       bool         // whether another goroutine attends
}

func newAttendant(t *testing.T) *attendant {
	a := &attendant{attends: make(chan struct{}, 1), interrupts: make(chan struct{}, 1)}
	datapath.SetDevice(&datapath.Device{
		Idle:       func(unsafe.Pointer) {},
		Received:   func() uint32 { return a.received.Add(1) },
		WokeOthers: func() bool { return false },
		MayAttend:  func() bool { return !a.busy },
		Attend: func(over func() bool, _ time.Duration) bool {
			if a.busy {
				return false
			}
			for a.attends <- struct{}{}; !over(); {
				<-a.interrupts
			}
			return true
		},
		Interrupt: func() {
			select {
			case a.interrupts <- struct{}{}:
			default:
			}
		},
		Park:      func() { a.parked.Add(1) },
		Supersede: func() { a.superseded.Add(1) },
	})
	t.Cleanup(func() { datapath.SetDevice(nil) })
	return a
}

// A wait that does the device's work ends with a completion, a call of Wake,
// and the end of its context.
func TestWaitAttends(t *testing.T) {
	f := newFakeDevice(t)
	cq := f.cq
	cq.channel = &CompChannel{raw: &libibverbs.CompChannel{Fd: -1}} // which is never asked
	a := newAttendant(t)
	cq.policy.init(CQConfig{Spin: -1}, true)
	cq.wakes = true
	arrive := func() {
		f.Set(fakeverbs.Script{Completions: 1})
		cq.rouse()
	}
	type result struct {
		n   int
		err error
	}
	begin := func(ctx context.Context) <-chan result {
		results := make(chan result, 1)
		f.Set(fakeverbs.Script{})
		go func() {
			n, err := cq.Wait(ctx, make([]WC, 1))
			results <- result{n, err}
		}()
		return results
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	// The first wait with a context parks.
	w := begin(ctx)
	require.Eventually(t, cq.parks.Load, time.Minute, time.Millisecond)
	arrive()
	require.Equal(t, result{n: 1}, <-w)
	require.EqualValues(t, 1, a.parked.Load())
	for range 3 {
		w = begin(ctx)
		<-a.attends
		arrive()
		require.Equal(t, result{n: 1}, <-w)
	}
	require.EqualValues(t, 1, a.parked.Load(), "it does the device's work")

	w = begin(ctx)
	<-a.attends
	cq.Wake()
	require.Equal(t, result{}, <-w)

	// Waits aside park.
	sealed.Open(cq.Internals()).SetAside(true)
	w = begin(ctx)
	require.Eventually(t, cq.parks.Load, time.Minute, time.Millisecond)
	arrive()
	require.Equal(t, result{n: 1}, <-w)
	sealed.Open(cq.Internals()).SetAside(false)

	// Waits with changing contexts park.
	for _, other := range []context.Context{limitOf(t), limitOf(t)} {
		w = begin(other)
		require.Eventually(t, cq.parks.Load, time.Minute, time.Millisecond)
		arrive()
		require.Equal(t, result{n: 1}, <-w)
	}

	w = begin(ctx)
	<-a.attends
	cancel()
	require.ErrorIs(t, (<-w).err, context.Canceled)
	require.Nil(t, cq.unguard, "nothing is left of the context")

	w = begin(context.Background())
	<-a.attends
	arrive()
	require.Equal(t, result{n: 1}, <-w)

	a.busy = true
	for short, superseded := range []int32{0, 1} { // whether the waits of the queue are short
		cq.policy.spins.score.Store(int32(short))
		w = begin(context.Background())
		require.Eventually(t, cq.parks.Load, time.Minute, time.Millisecond)
		arrive()
		require.Equal(t, result{n: 1}, <-w)
		require.Equal(t, superseded, a.superseded.Load())
	}
}

// limitOf returns a context of the test that can end.
func limitOf(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx
}
