package ibverbs_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// eventWaiter runs NextEvent in a goroutine.
func eventWaiter(ctx context.Context, c *ibverbs.Device) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := c.NextEvent(ctx)
		result <- err
	}()
	return result
}

// A wait ends with its context, and by Close; nothing is left of it.
func TestNextEventEnds(t *testing.T) {
	r := openOwn(t)
	c := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(c)
	_, ok, err := c.PollEvent()
	require.NoError(t, err)
	require.False(t, ok)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		waits := []<-chan error{eventWaiter(ctx, c), eventWaiter(ctx, c), eventWaiter(limit(t), c)}
		cancel()
		for _, w := range waits[:2] {
			if err := ended(t, w); err != nil { // an event that comes just now wins
				require.ErrorIs(t, err, context.Canceled)
			}
		}
		run(t, "ip", "address", "add", "203.0.113.3/24", "dev", ownNetDev)
		run(t, "ip", "address", "delete", "203.0.113.3/24", "dev", ownNetDev)
		require.NoError(t, ended(t, waits[2]))
	}
	deadline, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	for err == nil { // events that are there may come first
		_, err = c.NextEvent(deadline)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	pd := must(c.AllocPD())(t)
	waiting := 8
	waits := make(chan error, waiting)
	for range waiting {
		go func() {
			for _, err := range c.Events(context.Background()) {
				if err != nil {
					waits <- err
				}
			}
		}()
	}
	var busy *ibverbs.BusyError
	require.ErrorAs(t, c.Close(), &busy)
	require.NoError(t, pd.Close())
	require.NoError(t, c.Close())
	for range waiting {
		require.ErrorIs(t, ended(t, waits), os.ErrClosed)
	}
	_, _, err = c.PollEvent()
	require.ErrorIs(t, err, os.ErrClosed)
}

// counts is how many events of each type of interest came.
type counts struct {
	sync.Mutex
	of map[ibverbs.EventType]int
}

// read counts the port going up and down, until ctx ends.
func (n *counts) read(ctx context.Context, t testing.TB, c *ibverbs.Device) {
	for ev, err := range c.Events(ctx) {
		switch {
		case errors.Is(err, context.Canceled):
		case err != nil:
			t.Error(err)
		case ev.Device != c:
			t.Errorf("%v has another context", ev)
		case ev.Type == ibverbs.EventPortActive, ev.Type == ibverbs.EventPortError:
			n.Lock()
			n.of[ev.Type]++
			n.Unlock()
		}
	}
}

func (n *counts) copy() map[ibverbs.EventType]int {
	n.Lock()
	defer n.Unlock()
	return maps.Clone(n.of)
}

// Each event goes to one of all that wait, whichever Device of the C object
// they wait on. Another open device has events of its own to compare with.
func TestEachEventOnce(t *testing.T) {
	r := openOwn(t)
	other := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(other)
	second := bridge.RDMACM.DeviceFromRaw(r.c.Raw(), func() error { return nil }).(*ibverbs.Device)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	want, got := counts{of: map[ibverbs.EventType]int{}}, counts{of: map[ibverbs.EventType]int{}}
	readers.Go(func() { want.read(ctx, t, other) })
	for i := range 8 {
		readers.Go(func() { got.read(ctx, t, []*ibverbs.Device{r.c, second}[i%2]) })
	}
	const times = 10
	for range times {
		run(t, "ip", "link", "set", ownNetDev, "down")
		run(t, "ip", "link", "set", ownNetDev, "up")
	}
	soon(t, "every event has come once", func() bool {
		want, got := want.copy(), got.copy()
		return want[ibverbs.EventPortError] >= times && want[ibverbs.EventPortActive] >= times && maps.Equal(want, got)
	})
	cancel()
	readers.Wait()
	require.Equal(t, want.of, got.of)
	require.NoError(t, second.Close())
}

// Queue pairs are closed while their events are read: no Close waits for ever,
// and what an event names is the queue pair that had it.
func TestCloseWithEvents(t *testing.T) {
	r := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	known := map[*ibverbs.QP]uint32{}
	var readers sync.WaitGroup
	named := 0
	for range 2 {
		readers.Go(func() {
			for ev, err := range r.c.Events(ctx) {
				if err != nil {
					return
				}
				if qp := ev.QP(); qp != nil {
					mu.Lock()
					if known[qp] != ev.Number {
						t.Errorf("%v names QP %d", ev, known[qp])
					}
					named++
					mu.Unlock()
				}
			}
		})
	}
	cq := r.cq(depth, nil)
	for range 25 {
		var qps []*ibverbs.QP
		for range 8 {
			qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}))(t)
			mu.Lock()
			known[qp] = qp.Num()
			mu.Unlock()
			r.connect(&end{rig: r, qp: qp}, linkTo(qp))
			qps = append(qps, qp)
		}
		var closers sync.WaitGroup
		for _, qp := range qps {
			closers.Go(func() {
				if err := errors.Join(drain(qp), qp.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		done := make(chan error, 1)
		go func() { closers.Wait(); done <- nil }()
		require.NoError(t, ended(t, done))
	}
	cancel()
	readers.Wait()
	t.Logf("%d events named a queue pair before it was closed", named)
}

// Waiting for events costs one descriptor, and no thread.
func TestEventsCostNoThread(t *testing.T) {
	r := open(t)
	_, _, err := r.c.PollEvent()
	require.NoError(t, err)
	before := testdevice.Threads(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waits []<-chan error
	for range 200 {
		waits = append(waits, eventWaiter(ctx, r.c))
	}
	require.Less(t, testdevice.Threads(t), before+50)
	cancel()
	for _, w := range waits {
		if err := ended(t, w); err != nil { // an event of the port's may come
			require.ErrorIs(t, err, context.Canceled)
		}
	}
}
