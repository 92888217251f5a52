package ibverbs_test

import (
	"errors"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// withCQ makes an end whose two directions complete into one queue, connected
// with itself.
func (r *rig) withCQ(cq *ibverbs.CQ, requests int) *end { return r.withCQs(cq, cq, requests) }

func (r *rig) withCQs(send, recv *ibverbs.CQ, requests int) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: send, recvCQ: recv, mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{SendCQ: send, RecvCQ: recv, MaxSendWR: requests, MaxRecvWR: requests})
	e.send = must(ibverbs.NewSendBatch(requests, 1))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(requests, 1))(r.t)
	r.connect(e, linkTo(e.qp))
	return e
}

// writes posts n signaled writes with the IDs from first on.
func (e *end) writes(t testing.TB, first uint64, n int) {
	t.Helper()
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		for i := range uint64(n) {
			if err := s.Write(first+i, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(0, 8)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestExtendedCQ(t *testing.T) {
	r := open(t)
	ch := r.channel()
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: depth, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, depth)
	for name, poll := range map[string]func(wcs []ibverbs.WCEx) (int, error){
		"poll":  cq.PollEx,
		"spin":  func(wcs []ibverbs.WCEx) (int, error) { return cq.SpinEx(wcs, ibverbs.MaxSpin) },
		"wait":  func(wcs []ibverbs.WCEx) (int, error) { return cq.WaitEx(limit(t), wcs) },
		"sleep": func(wcs []ibverbs.WCEx) (int, error) { return cq.SleepEx(wcs, ibverbs.MaxSpin) },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 20
			e.recv.Reset()
			for i := range uint64(n) {
				require.NoError(t, e.recv.Recv(100+i, e.mr.Sub(100, 100)))
			}
			must(e.qp.PostRecv(e.recv))(t)
			e.postSend(t, func(s *ibverbs.SendBatch) error {
				for i := range uint64(n) {
					if err := s.SendImm(i, uint32(i), ibverbs.SendSignaled, e.mr.Sub(0, 10)); err != nil {
						return err
					}
				}
				return nil
			})
			var sent, received []ibverbs.WCEx
			wcs := make([]ibverbs.WCEx, 7)
			for end := time.Now().Add(patience); len(sent)+len(received) < 2*n; {
				require.True(t, time.Now().Before(end), "%d and %d came", len(sent), len(received))
				for _, wc := range wcs[:must(poll(wcs))(t)] {
					require.NoError(t, wc.Err())
					require.Equal(t, e.qp.Num(), wc.QPNum())
					if wc.ID() >= 100 {
						received = append(received, wc)
					} else {
						sent = append(sent, wc)
					}
				}
			}
			for i := range n {
				require.EqualValues(t, i, sent[i].ID())
				require.Equal(t, ibverbs.WCSend, sent[i].Opcode())
				require.EqualValues(t, 100+i, received[i].ID())
				require.Equal(t, ibverbs.WCRecv, received[i].Opcode())
				require.Equal(t, 10, received[i].ByteLen())
				imm, ok := received[i].Imm()
				require.True(t, ok)
				require.EqualValues(t, i, imm)
			}
			require.Zero(t, must(cq.PollEx(wcs))(t), "nothing twice")
		})
	}
	t.Run("without fields", func(t *testing.T) { // as on any queue
		e.writes(t, 1, 2)
		collectOK(t, cq, 2)
	})
	t.Run("failure", func(t *testing.T) {
		require.NoError(t, e.qp.SetError())
		e.writes(t, 7, 1)
		wcs := make([]ibverbs.WCEx, 1)
		require.Equal(t, 1, must(cq.WaitEx(limit(t), wcs))(t))
		requireWC(t, wcs[0].WC, 7, e.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
	})
}

// What a device does not have is refused: Soft-RoCE, all of these.
func TestExtendedCQUnsupported(t *testing.T) {
	r := open(t)
	for name, config := range map[string]ibverbs.CQConfig{
		"timestamp":      {Fields: ibverbs.WCWithTimestamp},
		"wall clock":     {Fields: ibverbs.WCStandard | ibverbs.WCWithWallclock},
		"flow tag":       {Fields: ibverbs.WCWithFlowTag},
		"VLAN":           {Fields: ibverbs.WCWithCVLAN},
		"tag matching":   {Fields: ibverbs.WCWithTMInfo},
		"ignore overrun": {IgnoreOverrun: true},
	} {
		config.Entries = 4
		cq, err := r.c.CreateCQ(config)
		if err == nil {
			t.Logf("%s: supported here", name)
			require.NoError(t, cq.Close())
			continue
		}
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "ibv_create_cq_ex (4 entries on ")
	}
	err := r.cq(4, nil).Moderate(8, 10*time.Microsecond)
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	require.ErrorIs(t, r.cq(4, nil).Moderate(1<<16, 0), syscall.EINVAL)
	require.ErrorIs(t, r.cq(4, nil).Moderate(0, time.Second), syscall.EINVAL)
}

func TestSingleThreadedCQ(t *testing.T) {
	r := open(t)
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 8, SingleThreaded: true}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, 4)
	e.writes(t, 1, 3)
	collectOK(t, cq, 3)
}

// Resizing keeps what is in the queue, and those who use it.
func TestResize(t *testing.T) {
	r := open(t)
	cq := r.cq(32, nil)
	e := r.withCQs(cq, r.cq(1, nil), 128)
	const n = 20
	// The message waits for the read, and so for all completions before it.
	e.writes(t, 0, n-1)
	e.postRecv(t, 0)
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		return errors.Join(s.Read(n-1, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(8, 8)), s.Send(0, ibverbs.SendFence))
	})
	collectOK(t, e.recvCQ, 1)
	wcs := make([]ibverbs.WC, 128)
	next := uint64(0)
	take := func(n int) {
		t.Helper()
		for _, wc := range collectOK(t, cq, n) {
			require.Equal(t, next, wc.ID())
			next++
		}
	}
	take(5)

	before := cq.Len()
	require.NoError(t, cq.Resize(100))
	require.GreaterOrEqual(t, cq.Len(), 100)
	require.Greater(t, cq.Len(), before)
	take(5)
	require.Error(t, cq.Resize(1), "there are more in it")
	require.GreaterOrEqual(t, cq.Len(), 100)
	take(10)
	e.writes(t, n, 90) // more than fitted before
	take(90)
	require.NoError(t, cq.Resize(4))
	require.Less(t, cq.Len(), 100)
	e.writes(t, n+90, 3)
	take(3)
	require.Zero(t, must(cq.Poll(wcs))(t))

	for _, entries := range []int{0, -1, math.MinInt} {
		require.ErrorIs(t, cq.Resize(entries), syscall.EINVAL)
	}
	require.Error(t, cq.Resize(1<<30), "more than any device has")
}

// An overrun loses completions. Those that are not lost come, and then an
// error, which wakes who waits, although nobody asks for events.
func TestOverrun(t *testing.T) {
	r := open(t)
	cq := r.cq(1, r.channel())
	kept := cq.Len()
	other := r.cq(1, nil)
	e := r.withCQs(cq, other, kept+10)
	// The message waits for the read, and so for all completions before it: while
	// the queue is read, none of them may find room.
	e.writes(t, 0, kept+8)
	e.postRecv(t, 0)
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		return errors.Join(s.Read(0, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(8, 8)), s.Send(0, ibverbs.SendFence))
	})
	collectOK(t, other, 1)

	for i, wc := range collectOK(t, cq, kept) {
		require.EqualValues(t, i, wc.ID())
	}
	require.ErrorIs(t, waitErr(limit(t), cq), ibverbs.ErrCQOverrun)
	_, err := cq.Poll(make([]ibverbs.WC, 1))
	require.ErrorIs(t, err, ibverbs.ErrCQOverrun)
	require.Same(t, cq, wantEvent(t, r.c, ibverbs.EventCQError).CQ())
}

func TestSpin(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	wcs := make([]ibverbs.WC, 4)
	require.Zero(t, must(b.recvCQ.Spin(wcs, time.Millisecond))(t))
	for id := range uint64(20) {
		b.postRecv(t, id, b.mr.Sub(0, 100))
		a.send.Reset()
		require.NoError(t, a.send.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 100)))
		posted, n, err := a.qp.PostSendAndSpin(a.send, a.sendCQ, wcs, ibverbs.MaxSpin)
		require.NoError(t, err)
		require.Equal(t, 1, posted)
		if n == 0 { // a slow machine
			n = len(collect(t, a.sendCQ, 1))
		} else {
			require.NoError(t, wcs[0].Err())
			require.Equal(t, id, wcs[0].ID())
		}
		require.Equal(t, 1, n)
		collectOK(t, b.recvCQ, 1)
	}
}

// Every vector that the device has can be taken, and no other.
func TestVectors(t *testing.T) {
	r := open(t)
	vectors := r.c.CompVectors()
	require.Positive(t, vectors)
	for vector := range vectors {
		r.cleanup(must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: vector}))(t))
	}
	_, err := r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: vectors})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "which has 0 to ")
}
