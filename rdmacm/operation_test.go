// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// told reports whether a goroutine that waits for room was told to look again.
func told(turn chan struct{}) bool { return len(turn) == 1 }

// When room becomes free, the first goroutine that waits is told to look. The
// next one is told when it has become the first.
func TestRoom(t *testing.T) {
	r := room{size: 2, used: 2}
	a, b, c := r.wait(), r.wait(), r.wait()
	require.True(t, r.isFirst(a))
	require.False(t, r.isFirst(b))
	r.free(1)
	r.free(1) // it need not be told twice
	require.True(t, told(a))
	require.False(t, told(b))
	r.used++
	require.True(t, r.has(1))
	require.False(t, r.has(2))
	r.leave(b)
	require.Equal(t, []chan struct{}{a, c}, r.waiting)
	require.False(t, told(c), "it is not the first")
	r.leave(a)
	require.True(t, told(c))
	require.True(t, r.isFirst(c))
	r.leave(c)
	require.Empty(t, r.waiting)
	r.free(1) // no goroutine waits
	require.Zero(t, r.used)
}

// offlineOperations returns operations without a real queue pair.
func offlineOperations() *operations {
	o := &operations{queues: &queues{done: make(chan struct{})}}
	o.intake = ownReceives{o}
	o.makeRoom(2, 2)
	o.failed = func(*ibverbs.WCError, error) {}
	return o
}

// under puts an operation under way. A receive takes no place in the send
// queue.
func (o *operations) under(op *operation, requests int, finish func()) (place uint32) {
	op.begin(requests, &work{}, finish)
	place, _ = o.place(op)
	o.sends.used += requests
	if requests == 0 {
		o.recvs.used++
	}
	return place
}

// completion returns a successful completion of a request ID.
func completion(id uint64) (wc ibverbs.WC) {
	*(*uint64)(unsafe.Pointer(&wc)) = id
	return wc
}

// A completion frees its request's place and what the device needed for it. It
// ends no other request.
func TestOperationCompletes(t *testing.T) {
	o := offlineOperations()
	finished := 0
	var send, recv, other operation
	place := o.under(&send, 1, func() { finished++ })
	receive := o.under(&recv, 0, nil)
	o.under(&other, 1, nil)
	wc := completion(uint64(place) | lastRequest)
	require.Equal(t, uint64(place)|lastRequest, wc.ID())
	o.complete(&wc)
	require.True(t, send.isOver())
	require.Equal(t, 1, finished)
	require.False(t, recv.isOver())
	require.False(t, other.isOver())
	require.Equal(t, 1, o.sends.used)
	require.Equal(t, 1, o.recvs.used)
	for _, id := range []uint64{uint64(place) | lastRequest, 1 << 63, 1<<63 | uint64(receive), lastRequest | 4} { // not known
		wc := completion(id)
		o.complete(&wc)
	}
	require.Equal(t, 1, finished)
	require.Equal(t, 1, o.sends.used)

	wc = completion(uint64(receive) | lastRequest)
	o.complete(&wc)
	require.True(t, recv.isOver())
	require.Zero(t, o.recvs.used)
	require.Equal(t, 1, o.sends.used)
	require.Len(t, o.places, 3)

	// An operation that is over can be used again. One that is under way
	// cannot.
	require.True(t, send.claim())
	require.False(t, send.claim())
}

// An operation of several requests ends with the last of them.
func TestOperationOfSeveralRequests(t *testing.T) {
	o := offlineOperations()
	var op operation
	place := o.under(&op, 2, nil)
	wc := completion(uint64(place))
	o.complete(&wc)
	require.False(t, op.isOver())
	require.Equal(t, 2, o.sends.used)
	wc = completion(uint64(place) | lastRequest)
	o.complete(&wc)
	require.True(t, op.isOver())
	require.Zero(t, o.sends.used)
}

// The end of the connection ends all operations under way.
func TestOperationsAbort(t *testing.T) {
	o := offlineOperations()
	finished := 0
	var send, recv operation
	o.under(&send, 1, func() { finished++ })
	o.under(&recv, 0, nil)
	cause := errors.New("over")
	o.abort(cause)
	for _, op := range []*operation{&send, &recv} {
		require.True(t, op.isOver())
		require.Equal(t, cause, op.err)
		require.Equal(t, cause, o.result(t.Context(), op))
	}
	require.Equal(t, 1, finished)
	for _, op := range o.inFlight {
		require.Nil(t, op)
	}
	require.Equal(t, cause, o.over())
}

// A connection without KeepAlive, or one that is over, does not ask its peer.
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

// A receive that Recv has left belongs to the next call with its memory, once.
// A call with other memory is refused until then.
func TestKeptReceives(t *testing.T) {
	o := offlineOperations()
	one, two := make([]ibverbs.Segment, 1), make([]ibverbs.Segment, 2)
	op, err := o.takeUp(one)
	require.NoError(t, err)
	require.Nil(t, op)
	first, second := &Receive{ops: o}, &Receive{ops: o}
	o.under(&first.operation, 0, nil)
	o.under(&second.operation, 0, nil)
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

	// A message that came before the end can be received after it.
	cause := errors.New("over")
	o.abort(cause)
	op, err = o.takeUp(one)
	require.NoError(t, err)
	require.Same(t, first, op)
	op, err = o.takeUp(one)
	require.Equal(t, cause, err)
	require.Nil(t, op)
}

// The timer runs while there is something to watch.
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

// The wait for the peer's answer ends once. The first result counts.
func TestPartingEndsOnce(t *testing.T) {
	p := &endNotice{over: make(chan struct{})}
	p.end(syscall.ETIMEDOUT)
	p.end(nil)
	<-p.over
	require.Equal(t, syscall.ETIMEDOUT, p.err)
}
