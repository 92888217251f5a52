// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"errors"
	"math"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Before Linux 7.3 Soft-RoCE cannot be taken from its users: it lacks what the
// kernel calls disassociation, which drivers of hardware mostly have. So the
// kernel sends no event, waits for the last user, and goes on when that has
// closed the device. From 7.3 on it does not wait: it destroys all that is on
// the device, and answers EIO to whatever is asked of it.
// TestRemovedDeviceRefuses has that on all kernels.

// start runs a command of the system's that waits for something.
func start(t testing.TB, args ...string) (ended <-chan error) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	require.NoError(t, cmd.Start())
	result := make(chan error, 1)
	go func() { result <- cmd.Wait() }()
	return result
}

// load lets pairs exchange messages until ctx ends or something fails, and
// returns how each end ended.
func (r *rig) load(ctx context.Context, pairs int) (ends []*end, results chan error) {
	r.t.Helper()
	ch := r.channel()
	results = make(chan error, 2*pairs)
	for range pairs {
		a, b := r.end(ch), r.end(ch)
		r.connect(a, hasty(b.qp))
		r.connect(b, hasty(a.qp))
		for _, e := range []*end{a, b} {
			e.postRecv(r.t, 0, e.mr.Sub(8, 8))
			e.postRecv(r.t, 1, e.mr.Sub(8, 8))
			go func() { results <- pingPong(ctx, e, e == a, math.MaxInt) }()
			ends = append(ends, e)
		}
	}
	return ends, results
}

// hasty is linkTo for a peer that may go away.
func hasty(peer *ibverbs.QP) route {
	l := linkTo(peer)
	l.timeout, l.retries = 12, 3 // 17 ms, four times
	return l
}

// A device that is to be removed works until its last user has gone.
func TestRemovalWaits(t *testing.T) {
	testdevice.Needs(t, testdevice.Guest)
	if testdevice.TakesDevices(t) {
		t.Skip("this kernel does not wait: TestRemovalTakes")
	}
	r := openOwn(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var removal <-chan error
	t.Run("in use", func(t *testing.T) {
		sub := &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: r.pd} // closes what the removal waits for
		ends, results := sub.load(ctx, 4)
		removal = start(t, "rdma", "link", "delete", ownName)
		soon(t, "the device is not listed any more", func() bool { return !ownExists(t) })
		a, b := sub.pair(sub.channel())
		for id := range uint64(100) {
			ping(t, a, b, id)
			wcs := make([]ibverbs.WC, 1)
			require.Equal(t, 1, must(b.recvCQ.Wait(limit(t), wcs))(t))
			require.NoError(t, wcs[0].Err())
			collectOK(t, a.sendCQ, 1)
		}
		for ev := range sub.eventsNow() {
			require.NotEqual(t, ibverbs.EventDeviceFatal, ev.Type)
		}
		cancel()
		for range ends {
			require.ErrorIs(t, ended(t, results), context.Canceled)
		}
	})
	require.NoError(t, r.pd.Close())
	select {
	case err := <-removal:
		require.FailNow(t, "removed under its user", "%v", err)
	default:
	}
	require.NoError(t, r.c.Close())
	require.NoError(t, ended(t, removal))
	_, err := ibverbs.Open(ownName)
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
}

// A device that is removed is taken from its users: every wait ends, every call
// fails, and everything can be closed.
func TestRemovalTakes(t *testing.T) {
	testdevice.Needs(t, testdevice.Guest)
	if !testdevice.TakesDevices(t) {
		t.Skip("this kernel waits: TestRemovalWaits")
	}
	r := openOwn(t)
	t.Run("in use", func(t *testing.T) {
		sub := &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: r.pd}
		idle, _ := sub.pair(sub.channel()) // waits for what never comes
		idle.postRecv(t, 1)
		completion := waiter(context.Background(), idle.recvCQ)
		untilWaiting(t, idle.recvCQ)
		fatal := make(chan error, 1)
		go func() { fatal <- untilEvent(limit(t), r.c, ibverbs.EventDeviceFatal) }()
		ends, results := sub.load(context.Background(), 4)
		require.False(t, r.c.Removed())
		removal := start(t, "rdma", "link", "delete", ownName)
		require.NoError(t, ended(t, removal), "with all that in use")
		require.True(t, r.c.Removed())
		require.ErrorIs(t, ended(t, completion).err, syscall.EIO)
		require.NoError(t, ended(t, fatal))
		for range ends {
			err := ended(t, results)
			var wcErr *ibverbs.WCError // of one whose peer went first
			require.True(t, errors.Is(err, syscall.EIO) || errors.As(err, &wcErr), "%v", err)
		}
		for name, err := range map[string]error{
			"SetError": idle.qp.SetError(),
			"State":    second(idle.qp.State()),
			"CreateCQ": second(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1})),
			"Alloc":    second(r.pd.Alloc(1, 0)),
		} {
			require.ErrorIs(t, err, syscall.EIO, name)
		}
	})
	require.NoError(t, r.pd.Close())
	require.NoError(t, r.c.Close())
	_, err := ibverbs.Open(ownName)
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
}

// untilEvent waits for an event of a type, which others may precede.
func untilEvent(ctx context.Context, c *ibverbs.Device, want ibverbs.EventType) error {
	for {
		ev, err := c.NextEvent(ctx)
		if err != nil || ev.Type == want {
			return err
		}
	}
}

// eventsNow gives the events that are there.
func (r *rig) eventsNow() func(yield func(ibverbs.Event) bool) {
	return func(yield func(ibverbs.Event) bool) {
		for {
			ev, ok, err := r.c.PollEvent()
			require.NoError(r.t, err)
			if !ok || !yield(ev) {
				return
			}
		}
	}
}

// The interface goes away under load. Requests fail, and moving the queue pairs
// to the error state ends every other wait, if the kernel has not taken the
// device by then. Linux 6.1 also says that the port is down; 7.2 does not get
// to it.
func TestInterfaceRemoved(t *testing.T) {
	r := openOwn(t)
	var removal <-chan error
	t.Run("in use", func(t *testing.T) {
		sub := &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: r.pd} // closes what the removal waits for
		idle, _ := sub.pair(sub.channel())                                  // waits for what never comes
		idle.postRecv(t, 1)
		w := waiter(context.Background(), idle.recvCQ)
		ends, results := sub.load(context.Background(), 4)
		removal = start(t, "ip", "link", "delete", ownNetDev)
		errs := []error{ended(t, results)}
		taken := func(err error) bool {
			return err != nil && errors.Is(err, syscall.EIO) && testdevice.TakesDevices(t)
		}
		for _, e := range append(ends, idle) {
			if err := e.qp.SetError(); !taken(err) {
				require.NoError(t, err)
			}
		}
		if got := ended(t, w); !taken(got.err) {
			require.NoError(t, got.err)
			require.Equal(t, ibverbs.WCFlushed, got.wcs[0].Status())
		}
		for len(errs) < len(ends) {
			errs = append(errs, ended(t, results))
		}
		for _, err := range errs {
			var wcErr *ibverbs.WCError
			var postErr *ibverbs.PostError
			require.True(t, errors.As(err, &wcErr) || errors.As(err, &postErr) || taken(err), "%v", err)
			t.Log(err)
		}
		if !testdevice.TakesDevices(t) {
			for ev := range sub.eventsNow() {
				t.Log(ev)
			}
		}
	})
	require.NoError(t, r.pd.Close())
	require.NoError(t, r.c.Close())
	require.NoError(t, ended(t, removal))
	soon(t, "the device is gone", func() bool { return !ownExists(t) })
}

// A failure of a device that is there stays one.
func TestFailureIsNotRemoval(t *testing.T) {
	r := open(t)
	for _, err := range []error{syscall.EIO, syscall.EBUSY, nil} {
		require.Equal(t, err, r.c.UnlessRemoved(err))
	}
}
