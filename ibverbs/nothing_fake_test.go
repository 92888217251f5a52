//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// An error comes with no count that could be taken for completions or requests.
func TestErrorsBringNothing(t *testing.T) {
	f := newFakeDevice(t)
	ctx := t.Context()
	var none context.Context
	srq := &SRQ{raw: &libibverbs.Srq{}}
	srq.object.InitUnlisted("fake SRQ")
	tags, err := NewTagBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, tags.Sync(TagOp{ID: 1}))
	mr := fakeMR(t, 64, 1)
	send, recv := filled(t, mr, 1), must1(NewRecvBatch(1, 0))(t)
	require.NoError(t, recv.Recv(1))
	closed := fakeMR(t, 64, 2)
	stale := must1(NewSendBatch(1, 1))(t)
	require.NoError(t, stale.Send(1, SendInline, closed.All()))
	closeFake(t, closed)
	wcs := make([]WC, 1)
	for name, calls := range map[string]map[string]func() (int, error){
		"nil": {
			"Poll":             func() (int, error) { return (*CQ)(nil).Poll(wcs) },
			"Spin":             func() (int, error) { return (*CQ)(nil).Spin(wcs, 0) },
			"Wait":             func() (int, error) { return (*CQ)(nil).Wait(ctx, wcs) },
			"Sleep":            func() (int, error) { return (*CQ)(nil).Sleep(wcs, 0) },
			"PostSend":         func() (int, error) { return (*QP)(nil).PostSend(send) },
			"PostRecv":         func() (int, error) { return (*QP)(nil).PostRecv(recv) },
			"PostTagOps":       func() (int, error) { return (*SRQ)(nil).PostTagOps(tags) },
			"Exchange":         func() (int, error) { return (*QP)(nil).Exchange(recv, send, f.cq, wcs, 1, 0) },
			"Exchange, no CQ":  func() (int, error) { return f.qp.Exchange(recv, send, nil, wcs, 1, 0) },
			"PostSend, none":   func() (int, error) { return f.qp.PostSend(nil) },
			"PostRecv, none":   func() (int, error) { return f.qp.PostRecv(nil) },
			"PostTagOps, none": func() (int, error) { return srq.PostTagOps(nil) },
			"Wait, no context": func() (int, error) { return f.cq.Wait(none, wcs) },
		},
		"no room": {
			"Spin":     func() (int, error) { return f.cq.Spin(nil, 0) },
			"Wait":     func() (int, error) { return f.cq.Wait(ctx, nil) },
			"Sleep":    func() (int, error) { return f.cq.Sleep(nil, 0) },
			"Exchange": func() (int, error) { return f.qp.Exchange(recv, send, f.cq, nil, 1, 0) },
		},
		"not so made": {
			"Wait":             func() (int, error) { return f.cq.Wait(ctx, wcs) },
			"Sleep":            func() (int, error) { return f.cq.Sleep(wcs, 0) },
			"ExchangeAndSleep": func() (int, error) { return f.qp.ExchangeAndSleep(recv, send, f.cq, wcs, 1, 0) },
			"PostTagOps":       func() (int, error) { return srq.PostTagOps(tags) },
		},
		"closed memory": {
			"PostSend": func() (int, error) { return f.qp.PostSend(stale) },
			"Exchange": func() (int, error) { return f.qp.Exchange(nil, stale, f.cq, wcs, 1, 0) },
		},
	} {
		for call, f := range calls {
			n, err := f()
			require.Error(t, err, "%s: %s", name, call)
			require.Zero(t, n, "%s: %s", name, call)
		}
	}
	require.Zero(t, f.Requests())
	f.Set(fakeverbs.Script{PostError: int(syscall.ENOMEM), Completions: 1})
	n, err := f.qp.Exchange(recv, nil, f.cq, wcs, 1, 0)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Zero(t, n)
	n, err = f.cq.Poll(nil) // no error, and nothing either
	require.NoError(t, err)
	require.Zero(t, n)
	for name, post := range map[string]func() (posted, n int, err error){
		"no QP":         func() (int, int, error) { return (*QP)(nil).PostSendAndSpin(send, f.cq, wcs, 0) },
		"no CQ":         func() (int, int, error) { return f.qp.PostSendAndSpin(send, nil, wcs, 0) },
		"no room":       func() (int, int, error) { return f.qp.PostSendAndSpin(send, f.cq, nil, 0) },
		"no requests":   func() (int, int, error) { return f.qp.PostSendAndSpin(nil, f.cq, wcs, 0) },
		"closed memory": func() (int, int, error) { return f.qp.PostSendAndSpin(stale, f.cq, wcs, 0) },
	} {
		posted, n, err := post()
		require.Error(t, err, name)
		require.Zero(t, posted, name)
		require.Zero(t, n, name)
	}
	// Somebody else waits, or there is nothing to wait with.
	f.Set(fakeverbs.Script{})
	busy := &CQ{raw: f.PlainCQ(), queue: datapath.NewQueue(f.PlainCQ()), channel: &CompChannel{raw: &libibverbs.CompChannel{Fd: -1}}, turn: make(chan struct{}, 1)}
	busy.object.InitUnlisted("busy CQ")
	n, err = busy.Wait(ctx, wcs)
	require.Error(t, err)
	require.Zero(t, n)
	busy.turn <- struct{}{}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	n, err = busy.Wait(ended, wcs)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, n)
	// And none of them keeps the objects in use, so that Close would wait.
	for _, o := range []interface {
		Close(func(), func() error) error
	}{&f.qp.object, &f.cq.object, &srq.object} {
		require.NoError(t, o.Close(nil, func() error { return nil }))
	}
}

func must1[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// The first request of a batch is checked, too.
func TestFirstRequestNeedsExtendedQP(t *testing.T) {
	f := newFakeDevice(t)
	for name, typ := range map[string]QPType{"RC": QPTypeRC, "UD": QPTypeUD} {
		f.qp.raw.QpType = typ
		b := must1(NewSendBatch(2, 0))(t)
		require.NoError(t, b.Flush(7, RemoteBuffer{Addr: 8, Len: 8}, FlushGlobal, 0))
		n, err := f.qp.PostSend(b)
		require.Zero(t, n, name)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "request 0 of the batch (ID 7), none was posted: ibv_post_send", name)
		require.Zero(t, f.Requests(), name)
	}
}

// C does not say which request ibv_wr_complete has failed with; of one there is
// no doubt.
func TestRefusedByComplete(t *testing.T) {
	f := newFakeDevice(t)
	for n, want := range map[int]PostError{
		1: {Index: 0, ID: 9, None: true}, 2: {Index: -1, None: true}, 3: {Index: -1, None: true},
	} {
		b := must1(NewSendBatch(n, 0))(t)
		for range n {
			require.NoError(t, b.Send(9, 0))
		}
		f.Set(fakeverbs.Script{PostError: int(syscall.ENOSPC)})
		posted, err := f.ex.PostSend(b)
		require.Zero(t, posted)
		var failed *PostError
		require.ErrorAs(t, err, &failed)
		want.Err = failed.Err
		require.Equal(t, want, *failed)
	}
	b := must1(NewRecvBatch(2, 0))(t)
	require.NoError(t, b.Recv(5))
	require.NoError(t, b.Recv(6))
	n, err := b.failed(&f.qp.object, nil, syscall.ENOMEM)
	require.Zero(t, n)
	require.ErrorContains(t, err, "request 0 of the batch (ID 5)")
}

// An error names the step that C has failed at.
func TestPollingSteps(t *testing.T) {
	f := newFakeDevice(t)
	for step, want := range map[datapath.Step]string{
		datapath.Polling: "ibv_poll_cq", datapath.Arming: "ibv_req_notify_cq", datapath.Reading: "ibv_get_cq_event",
	} {
		err := f.cq.notPolled(1, &datapath.Polled{Step: step, Value: -1, Errno: int32(syscall.EIO)})
		require.ErrorContains(t, err, want)
		require.NoError(t, f.cq.notPolled(1, &datapath.Polled{Step: step}))
	}
}

// What C looks at while it posts is what the batch has now, not what it had when it was
// posted before.
func TestChangesAreHeld(t *testing.T) {
	f := newFakeDevice(t)
	newFakeAH := func() *AH {
		ah := &AH{raw: &libibverbs.Ah{}}
		ah.object.InitUnlisted("fake AH")
		return ah
	}
	for name, change := range map[string]func(b *SendBatch, mr *MR) (closed func()){
		"inline now": func(b *SendBatch, mr *MR) func() {
			require.NoError(t, b.WR(1).SetFlags(SendInline))
			return func() { closeFake(t, mr) }
		},
		"other segments": func(b *SendBatch, _ *MR) func() {
			other := fakeMR(t, 64, 4)
			require.NoError(t, b.WR(0).SetSegments(other.All()))
			return func() { closeFake(t, other) }
		},
		"a header": func(b *SendBatch, _ *MR) func() {
			other := fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, other.All(), 100, 0))
			return func() { closeFake(t, other) }
		},
		"a destination": func(b *SendBatch, mr *MR) func() {
			ah, header := newFakeAH(), fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, header.All(), 100, 0))
			_, err := f.qp.PostSend(b)
			require.NoError(t, err)
			require.NoError(t, b.WR(2).SetDestination(Destination{AH: ah}))
			return func() { require.NoError(t, ah.object.Close(nil, func() error { return nil })) }
		},
		"a header beside a destination": func(b *SendBatch, mr *MR) func() {
			ah, header := newFakeAH(), fakeMR(t, 64, 4)
			require.NoError(t, b.TSO(3, header.All(), 100, 0))
			require.NoError(t, b.WR(2).SetDestination(Destination{AH: ah}))
			return func() { closeFake(t, header) }
		},
		"a datagram": func(b *SendBatch, mr *MR) func() {
			ah := newFakeAH()
			require.NoError(t, b.SendTo(3, Destination{AH: ah}, 0))
			return func() { require.NoError(t, ah.object.Close(nil, func() error { return nil })) }
		},
		"a region beside bytes": func(b *SendBatch, mr *MR) func() {
			other := fakeMR(t, 64, 4)
			b.Reset() // so that no other request is inline
			require.NoError(t, b.Send(3, SendInline, InlineBytes([]byte("bytes")), other.All()))
			return func() { closeFake(t, other) }
		},
	} {
		b := must1(NewSendBatch(3, 2))(t)
		first, second := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
		require.NoError(t, b.Send(1, SendInline, first.All()))
		require.NoError(t, b.Send(2, 0, second.All()))
		_, err := f.qp.PostSend(b)
		require.NoError(t, err)
		closed := change(b, second)
		_, err = f.qp.PostSend(b)
		require.NoError(t, err, name)
		closed()
		_, err = f.qp.PostSend(b)
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
}

// Segments that replace others are all there, belong to their regions, and may
// fill the room.
func TestSetSegmentsOfSeveral(t *testing.T) {
	one, two := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
	two.start = 1 << 20 // for the device, as of a region with an address of its own
	to := RemoteBuffer{Addr: 8, Len: 72}
	for flags, wantTwo := range map[SendFlags]uint64{0: two.start + 8, SendInline: addressOf(two.bytes) + 8} {
		b := must1(NewSendBatch(2, 2))(t)
		require.NoError(t, b.Send(0, 0))
		require.NoError(t, b.Write(1, to, flags, one.Sub(0, 8)))
		require.NoError(t, b.WR(1).SetSegments(one.All(), two.Sub(8, 8)))
		require.Equal(t, []libibverbs.Sge{
			{Addr: one.start, Length: 64, Lkey: 1}, {Addr: wantTwo, Length: 8, Lkey: 2},
		}, b.arena.place(1)[:2])
		require.Equal(t, []*MR{nil, nil, one, two}, b.owner)
		require.EqualValues(t, 2, b.arena.wrs[1].NumSge)
		require.ErrorIs(t, b.WR(1).SetSegments(one.All(), two.Sub(8, 9)), syscall.EINVAL)

		// C reads inline data at this process's address, the device at its own.
		require.NoError(t, b.WR(1).SetFlags(flags^SendInline))
		require.Equal(t, two.start+addressOf(two.bytes)+16-wantTwo, b.arena.place(1)[1].Addr)
		require.NoError(t, b.WR(1).SetFlags(flags))
		require.Equal(t, wantTwo, b.arena.place(1)[1].Addr)

		// The room is the remote buffer's.
		to := to
		to.Len = 80
		require.NoError(t, b.WR(1).SetRemote(to))
		require.NoError(t, b.WR(1).SetSegments(one.All(), two.Sub(0, 16)))
	}
}

// A header may have as many bytes as its length can say.
func TestLargestHeader(t *testing.T) {
	const most = 1<<16 - 1
	mr := fakeMR(t, most+1, 1)
	b := must1(NewSendBatch(2, 0))(t)
	require.NoError(t, b.TSO(1, mr.Sub(0, most), 100, 0))
	require.EqualValues(t, most, b.arena.wrs[0].Tso().HdrSz)
	require.ErrorIs(t, b.TSO(2, mr.All(), 100, 0), syscall.EINVAL)
}

// A request that cannot be inline keeps no memory reachable.
func TestRefusedInlineOwnsNothing(t *testing.T) {
	mr := fakeMR(t, 64, 1)
	b := must1(NewSendBatch(1, 1))(t)
	require.ErrorIs(t, b.Read(1, RemoteBuffer{Len: 64}, SendInline, mr.All()), syscall.EINVAL)
	require.Zero(t, b.Len())
	require.Equal(t, []*MR{nil}, b.owner)
}
