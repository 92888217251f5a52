// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// complete adds a successful completion with the given ID.
func (q *CQ) complete(id uint64) { q.add(&Completion{Wc: libibverbs.Wc{WrId: id}}, dependency{}) }

func ids(all []Completion) (ids []uint64) {
	for _, c := range all {
		ids = append(ids, c.WrId)
	}
	return ids
}

func TestCreateCQ(t *testing.T) {
	d := newNode(t, 1)
	for _, n := range []uint32{0, maxCQE + 1, math.MaxUint32} {
		require.Equal(t, syscall.EINVAL, second(d.CreateCQ(&CompletionQueue{Max: n})))
	}
	q, err := d.CreateCQ(&CompletionQueue{Max: maxCQE})
	require.NoError(t, err)
	require.NoError(t, q.Destroy())
	requireEmpty(t, d.Device)
}

func TestCompletions(t *testing.T) {
	d := newNode(t, 1)
	d.start, d.now = 1000, 30
	q := d.cq(3)
	w := newSendQueue(4, 1, 0)
	for n := range uint32(10) { // around the ring
		q.add(&Completion{Wc: libibverbs.Wc{WrId: uint64(n), Status: 5}, Queue: w, Count: n + 1}, dependency{})
		c := poll(q.ring)
		require.Len(t, c, 1)
		require.Equal(t, Completion{
			Wc: libibverbs.Wc{WrId: uint64(n), Status: 5}, Queue: w, Count: n + 1, Timestamp: 30, Wallclock: 1030,
		}, c[0])
		require.Equal(t, n+1, w.Freed)
	}
	require.Empty(t, d.completions, "it was not armed")
}

func TestArming(t *testing.T) {
	const ok, bad = libibverbs.IBV_WC_SUCCESS, libibverbs.IBV_WC_WR_FLUSH_ERR
	for name, tt := range map[string]struct {
		armed     uint32
		status    libibverbs.WcStatus
		solicited bool
		want      bool
	}{
		"not armed":            {NotArmed, ok, true, false},
		"any":                  {ArmedNext, ok, false, true},
		"any, solicited":       {ArmedNext, ok, true, true},
		"solicited, plain":     {ArmedSolicited, ok, false, false},
		"solicited, solicited": {ArmedSolicited, ok, true, true},
		"solicited, failure":   {ArmedSolicited, bad, false, true},
		"both":                 {ArmedNext | ArmedSolicited, ok, false, true},
		"any, by a goroutine":  {ArmedNext | ArmedWake, ok, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newNode(t, 1)
			q := d.cq(8)
			q.ring.Armed = tt.armed
			for range 2 {
				q.add(&Completion{Wc: libibverbs.Wc{Status: tt.status}}, dependency{solicited: tt.solicited})
			}
			if !tt.want {
				require.Empty(t, d.completions)
				require.Equal(t, tt.armed, q.ring.Armed)
				return
			}
			d.requireCompletionEvents(q)
			require.EqualValues(t, NotArmed, q.ring.Armed)
		})
	}
}

func TestModeration(t *testing.T) {
	const us = time.Microsecond
	for name, tt := range map[string]struct {
		count, period uint16
		at            []time.Duration // completions come
		want          []time.Duration // events come
	}{
		"none":             {0, 0, []time.Duration{1, 2}, []time.Duration{1, 2}},
		"every one":        {1, 10, []time.Duration{1, 2}, []time.Duration{1, 2}},
		"three":            {3, 0, []time.Duration{1, 2, 3, 4, 5, 60 * us}, []time.Duration{3, 60 * us}},
		"too few":          {3, 0, []time.Duration{1, 2}, nil},
		"period":           {0, 10, []time.Duration{1, 2, 3, 20 * us}, []time.Duration{10*us + 1, 30 * us}},
		"the count first":  {2, 10, []time.Duration{1, 5 * us, 6 * us}, []time.Duration{5 * us, 16 * us}},
		"the period first": {5, 10, []time.Duration{1, 5 * us}, []time.Duration{10*us + 1}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newNode(t, 1)
			q := d.cq(16)
			require.NoError(t, q.Moderate(libibverbs.ModerateCq{CqCount: tt.count, CqPeriod: tt.period}))
			q.ring.Armed = ArmedNext
			var got []time.Duration
			look := func() {
				for range d.completions {
					got = append(got, d.now)
					q.ring.Armed = ArmedNext
				}
				d.completions = nil
			}
			advance := func(until time.Duration) {
				for next := d.Advance(d.now); next <= until; next = d.Advance(next) {
					look()
				}
				look()
			}
			for _, at := range tt.at {
				advance(at)
				d.now = at
				q.complete(0)
				look()
			}
			advance(Never - 1)
			require.Equal(t, tt.want, got)
		})
	}
}

// An event that is held back comes when moderation changes, and does not when
// the queue goes.
func TestModerationEnds(t *testing.T) {
	d := newNode(t, 1)
	hold := func() *CQ {
		q := d.cq(16)
		require.NoError(t, q.Moderate(libibverbs.ModerateCq{CqPeriod: 10}))
		q.ring.Armed = ArmedNext
		q.complete(0)
		require.Empty(t, d.completions)
		return q
	}
	q, gone := hold(), hold()
	require.NoError(t, gone.Destroy())
	require.NoError(t, q.Moderate(libibverbs.ModerateCq{}))
	d.requireCompletionEvents(q)
	require.Equal(t, Never, d.Advance(time.Hour))
	require.Len(t, d.completions, 1)
	require.Empty(t, d.moderated)
}

func TestResizeCQ(t *testing.T) {
	d := newNode(t, 1)
	q := d.cq(16)
	q.ring.Added, q.ring.Polled = math.MaxUint32-2, math.MaxUint32-2 // about to wrap around
	for id := range uint64(6) {
		q.complete(id)
	}
	resize := func(n uint32) error {
		r := newCompletions(n)
		return q.Resize(r.Entries, r.Size, n)
	}
	require.NoError(t, resize(100))
	q.complete(6)
	for _, n := range []uint32{6, 1} {
		require.Equal(t, syscall.EINVAL, resize(n))
	}
	for _, n := range []uint32{0, maxCQE + 1, math.MaxUint32} {
		require.Equal(t, syscall.EINVAL, q.Resize(nil, 0, n))
	}
	require.EqualValues(t, 100, q.ring.Max)
	require.NoError(t, resize(7))
	require.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6}, ids(poll(q.ring)))
	for id := range uint64(7) {
		q.complete(id)
	}
	require.Zero(t, q.ring.Overrun)
	require.Len(t, poll(q.ring), 7)
}

func TestCQOverrun(t *testing.T) {
	d := newNode(t, 1)
	pd, q, other := d.pd(), d.cq(3), d.cq(10)
	sends, recvs := d.qp(pd, libibverbs.IBV_QPT_RC, q, other, nil), d.qp(pd, libibverbs.IBV_QPT_RC, other, q, nil)
	both, idle := d.qp(pd, libibverbs.IBV_QPT_RC, q, q, nil), d.qp(pd, libibverbs.IBV_QPT_RC, q, q, nil)
	unharmed := d.qp(pd, libibverbs.IBV_QPT_RC, other, other, nil)
	goes := d.qp(pd, libibverbs.IBV_QPT_RC, q, q, nil)
	for _, qp := range []*QP{sends, recvs, both, unharmed, goes} {
		d.connect(qp, 2, 2<<16)
	}
	for id := range uint64(5) {
		q.complete(id)
	}
	d.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_CQ_ERR, q})
	require.NoError(t, goes.Destroy())
	d.Advance(0)
	for name, qp := range map[string]*QP{"sends": sends, "recvs": recvs, "both": both} {
		require.Equal(t, libibverbs.IBV_QPS_ERR, qp.attr.QpState, name)
	}
	require.Equal(t, libibverbs.IBV_QPS_RTS, unharmed.attr.QpState)
	require.Equal(t, libibverbs.IBV_QPS_RESET, idle.attr.QpState)
	require.EqualValues(t, 1, q.ring.Overrun)
	require.Equal(t, []uint64{0, 1, 2}, ids(poll(q.ring)))
	q.complete(9)
	require.Empty(t, poll(q.ring), "it stays broken")
	d.requireEvents()
}

// The completions of a queue pair go when it is reset or destroyed, and those
// of others stay.
func TestCompletionsGoWithQP(t *testing.T) {
	for name, end := range map[string]func(q *QP) error{
		"reset":   func(q *QP) error { return q.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE) },
		"destroy": (*QP).Destroy,
	} {
		t.Run(name, func(t *testing.T) {
			d := newNode(t, 1)
			pd, cq, recvCQ := d.pd(), d.cq(8), d.cq(8)
			a, b := d.qp(pd, libibverbs.IBV_QPT_RC, cq, recvCQ, nil), d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil)
			d.connect(a, 2, 2<<16)
			add := func(cq *CQ, q *QP, id uint64) {
				cq.add(&Completion{Wc: libibverbs.Wc{WrId: id, QpNum: q.number}}, dependency{})
			}
			add(cq, b, 0)
			poll(cq.ring)
			for id, q := range []*QP{a, b, a, a, b, a} {
				add(cq, q, uint64(id))
			}
			add(recvCQ, a, 0)
			require.NoError(t, end(a))
			require.Equal(t, []uint64{1, 4}, ids(poll(cq.ring)))
			require.Empty(t, poll(recvCQ.ring))
		})
	}
}

// The event that is due first is waited for, whichever queue came first.
func TestModerationOrder(t *testing.T) {
	const us = time.Microsecond
	d := newNode(t, 1)
	var all []*CQ
	for _, period := range []uint16{20, 10, 30} {
		q := d.cq(4)
		require.NoError(t, q.Moderate(libibverbs.ModerateCq{CqPeriod: period}))
		q.ring.Armed = ArmedNext
		q.complete(0)
		all = append(all, q)
	}
	// The period begins when the device is told the time, which it may not have
	// been for long.
	require.Equal(t, time.Hour+10*us, d.Advance(time.Hour))
	require.Equal(t, time.Hour+20*us, d.Advance(time.Hour+10*us))
	d.requireCompletionEvents(all[1])
	require.Equal(t, time.Hour+30*us, d.Advance(time.Hour+20*us))
	require.Equal(t, Never, d.Advance(time.Hour+40*us))
	d.requireCompletionEvents(all[1], all[0], all[2])
}

// What C lays out agrees with Go.
func TestCompletionBeginsWithWc(t *testing.T) {
	var c Completion
	require.Zero(t, unsafe.Offsetof(c.Wc))
}

// The array in which a queue has staged many completions serves the next queue,
// without references to what it was used for.
func TestStagedArrayIsReused(t *testing.T) {
	d := newNode(t, 1)
	d.config.Outgoing = &gate{open: true}
	first, next := d.cq(64), d.cq(64)
	for i := range uint64(40) {
		first.add(&Completion{Wc: libibverbs.Wc{WrId: i}}, dependency{qp: new(QP)})
	}
	array := unsafe.SliceData(first.staged)
	d.Publish()
	require.Len(t, poll(first.ring), 40)
	require.Nil(t, first.staged)
	for _, dep := range d.staged.unused[:40] {
		require.Zero(t, dep)
	}
	next.complete(1)
	require.Same(t, array, unsafe.SliceData(next.staged))
	require.Nil(t, d.staged.unused)
	first.complete(2)
	d.Publish()
	require.Equal(t, []uint64{1}, ids(poll(next.ring)))
	require.Equal(t, []uint64{2}, ids(poll(first.ring)))
	require.Same(t, array, unsafe.SliceData(d.staged.unused), "the larger one is kept")
}
