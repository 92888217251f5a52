package rdmacm

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// told reports whether somebody who waits for room was told to look again.
func told(turn chan struct{}) bool { return len(turn) == 1 }

// Those who wait for room are told in turn, one for each place, and one who leaves
// takes nobody's place.
func TestRoom(t *testing.T) {
	r := room{size: 2, used: 2}
	a, b, c := r.wait(), r.wait(), r.wait()
	r.wakeNext()
	require.False(t, told(a), "it is full")
	r.free()
	require.True(t, told(a))
	require.False(t, told(b))
	r.used++ // by a, which has looked
	r.leave(b)
	require.Equal(t, []chan struct{}{c}, r.waiting, "the first of those who wait has left")
	r.free()
	require.True(t, told(c))
	require.False(t, told(b))

	d := r.wait()
	r.leave(c) // which was told, and does not use its place
	require.True(t, told(d))
	require.Empty(t, r.waiting)

	e, f := r.wait(), r.wait()
	r.used = r.size
	r.leave(f)
	require.Equal(t, []chan struct{}{e}, r.waiting, "the last has left")
	r.wakeAll()
	require.True(t, told(e), "although it is full")
	require.Empty(t, r.waiting)
	r.free()
	r.wakeNext() // nobody waits
	require.Equal(t, 1, r.used)
}

// offlineOperations are those of a queue pair that there is not.
func offlineOperations() *operations {
	o := &operations{queues: &queues{done: make(chan struct{})}, pending: map[uint64]*operation{}}
	o.sends.size, o.recvs.size = 2, 2
	o.failed = func(*ibverbs.WCError) {}
	return o
}

// under makes an operation that is under way.
func (o *operations) under(id uint64, isSend bool, finish func()) *operation {
	op := &operation{isSend: isSend, finish: finish, done: make(chan struct{})}
	o.pending[id] = op
	if isSend {
		o.sends.used++
	} else {
		o.recvs.used++
	}
	return op
}

// A completion gives its request's place back, and what the device needed for it,
// and ends no other request.
func TestOperationCompletes(t *testing.T) {
	o := offlineOperations()
	finished := 0
	send, recv, other := o.under(0, true, func() { finished++ }), o.under(1, false, nil), o.under(2, true, nil)
	var wc ibverbs.WC // of request 0
	o.complete(&wc)
	require.True(t, send.isDone())
	require.Equal(t, 1, finished)
	require.False(t, recv.isDone())
	require.False(t, other.isDone())
	require.Equal(t, 1, o.sends.used)
	require.Equal(t, 1, o.recvs.used)
	o.complete(&wc) // of a request that is not known
	require.Equal(t, 1, finished)
	require.Equal(t, 1, o.sends.used)

	require.Same(t, recv, o.take(1))
	require.Zero(t, o.recvs.used)
	require.Equal(t, 1, o.sends.used)
	require.Len(t, o.pending, 1)
}

// The end is that of all that is under way, and of those who wait for room.
func TestOperationsAbort(t *testing.T) {
	o := offlineOperations()
	finished := 0
	send, recv := o.under(1, true, func() { finished++ }), o.under(2, false, nil)
	turn := o.sends.wait()
	cause := errors.New("over")
	o.abort(cause)
	for _, op := range []*operation{send, recv} {
		require.True(t, op.isDone())
		require.Equal(t, cause, op.err)
		require.Equal(t, cause, o.result(t.Context(), op))
	}
	require.Equal(t, 1, finished)
	require.Empty(t, o.pending)
	require.True(t, told(turn))
	require.Equal(t, cause, o.over())
}

// A connection without KeepAlive, and one that is over, asks nothing.
func TestKeepAliveDoesNotStart(t *testing.T) {
	for name, tt := range map[string]struct {
		often time.Duration
		cause error
		want  bool
	}{
		"on":   {time.Hour, nil, true},
		"off":  {-1, nil, false},
		"over": {time.Hour, errors.New("over"), false},
	} {
		c := &Conn{config: Config{KeepAlive: tt.often}}
		c.ops.queues, c.done, c.cause = &c.queues, make(chan struct{}), tt.cause
		c.startKeepAlive()
		require.Equal(t, tt.want, c.keepAlive.timer != nil, name)
		c.stopKeepAlive()
		require.Nil(t, c.keepAlive.timer, name)
	}
}

// A receive that Recv has left is for the next call with its memory, once; a call
// with other memory is refused until then.
func TestKeptReceives(t *testing.T) {
	o := offlineOperations()
	one, two := make([]ibverbs.Segment, 1), make([]ibverbs.Segment, 2)
	op, err := o.takeUp(one)
	require.NoError(t, err)
	require.Nil(t, op)
	first, second := o.under(1, false, nil), o.under(2, false, nil)
	o.keep(first, one)
	o.keep(second, two)
	op, err = o.takeUp(nil)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.Nil(t, op)
	op, err = o.takeUp(two)
	require.NoError(t, err)
	require.Same(t, second, op)
	_, err = o.takeUp(two)
	require.ErrorIs(t, err, syscall.EBUSY)

	// What was received before the end is still to be had after it.
	cause := errors.New("over")
	o.abort(cause)
	op, err = o.takeUp(one)
	require.NoError(t, err)
	require.Same(t, first, op)
	op, err = o.takeUp(one)
	require.Equal(t, cause, err)
	require.Nil(t, op)
}

// There is a timer while there is something to watch.
func TestWatchStops(t *testing.T) {
	var w watch
	a, b := offlineOperations(), offlineOperations()
	w.remove(a) // that was never added
	w.add(a)
	timer := w.timer
	require.NotNil(t, timer)
	w.add(b)
	require.Same(t, timer, w.timer)
	require.Len(t, w.ops, 2)
	w.remove(a)
	require.Same(t, timer, w.timer)
	w.remove(b)
	require.Nil(t, w.timer)
	require.False(t, timer.Stop(), "it was stopped")
	w.add(a)
	require.Len(t, w.ops, 1)
	w.remove(a)
}

// Waiting for the peer's answer ends once, with what came first.
func TestPartingEndsOnce(t *testing.T) {
	p := &parting{over: make(chan struct{})}
	p.end(syscall.ETIMEDOUT)
	p.end(nil)
	<-p.over
	require.Equal(t, syscall.ETIMEDOUT, p.err)
}
