package ibverbs_test

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Parents close after their children, and say which those are.
func TestCloseOrder(t *testing.T) {
	d := testdevice.Require(t)
	testdevice.NoLeaks(t)
	c := must(ibverbs.Open(d.Name))(t)
	pd := must(c.AllocPD())(t)
	ch := must(c.CreateCompChannel())(t)
	cq := must(c.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: ch}))(t)
	mr := must(pd.Alloc(64, 0))(t)
	qp := must(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}))(t)
	require.Len(t, ibverbs.OpenObjects(), 6)
	require.Same(t, c, pd.Device())
	require.Same(t, pd, qp.PD())
	require.Equal(t, ibverbs.QPTypeRC, qp.Type())
	require.NotZero(t, qp.Num())
	require.Equal(t, qp.Num(), qp.Raw().QpNum)
	require.GreaterOrEqual(t, cq.Len(), 1)

	busy := func(close func() error, children ...string) {
		t.Helper()
		err := close()
		require.ErrorIs(t, err, syscall.EBUSY)
		var busyErr *ibverbs.BusyError
		require.ErrorAs(t, err, &busyErr)
		require.Len(t, busyErr.Children, len(children), err.Error())
		for i, kind := range children {
			require.Contains(t, busyErr.Children[i], kind+" ")
			require.Contains(t, err.Error(), busyErr.Children[i])
		}
	}
	busy(c.Close, "CQ", "PD", "completion channel")
	busy(pd.Close, "MR", "QP")
	busy(ch.Close, "CQ")
	busy(cq.Close, "QP")
	require.Equal(t, ibverbs.QPStateReset, must(qp.State())(t), "nothing was closed")
	require.NoError(t, must(pd.Alloc(1, 0))(t).Close())

	require.NoError(t, qp.Close())
	busy(pd.Close, "MR")
	require.NoError(t, cq.Close())
	require.NoError(t, mr.Close())
	require.NoError(t, ch.Close())
	busy(c.Close, "PD")
	require.NoError(t, pd.Close())
	require.NoError(t, c.Close())
	for _, again := range []interface{ Close() error }{c, pd, ch, cq, mr, qp} {
		require.NoError(t, again.Close())
	}

	for name, err := range map[string]error{
		"AllocPD":      second(c.AllocPD()),
		"CreateCQ":     second(c.CreateCQ(ibverbs.CQConfig{Entries: 1})),
		"channel":      second(c.CreateCompChannel()),
		"QueryDevice":  second(c.QueryDevice()),
		"QueryPort":    second(c.QueryPort(1)),
		"QueryGID":     second(c.QueryGID(1, 0)),
		"Alloc":        second(pd.Alloc(1, 0)),
		"Register":     second(pd.Register(make([]byte, 1), 0)),
		"CreateQP":     second(pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq})),
		"Poll":         second(cq.Poll(nil)),
		"closed queue": second(qp.State()),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
	}
}

// Objects of two contexts do not fit together, even on one device: C would take
// one for another that has the same number.
func TestObjectsOfTwoContexts(t *testing.T) {
	r := open(t)
	other := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(other)
	ch := must(other.CreateCompChannel())(t)
	r.cleanup(ch)
	_, err := r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: ch})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "not of the same open device")

	mine := r.cq(1, nil)
	theirs := must(other.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: ch}))(t)
	r.cleanup(theirs)
	for _, config := range []ibverbs.QPConfig{
		{SendCQ: theirs, RecvCQ: mine}, {SendCQ: mine, RecvCQ: theirs}, {SendCQ: theirs, RecvCQ: theirs},
	} {
		_, err := r.pd.CreateQP(config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "not of the same open device")
	}
}

// C knows a queue of which Go does not: what it refuses stays usable.
func TestCloseThatCRefuses(t *testing.T) {
	r := open(t)
	ch := r.channel()
	a, b := r.pair(ch)
	unknown := hiddenQP(t, r, b.recvCQ)
	require.NoError(t, b.qp.Close()) // so that for Go nobody uses the queue
	w := waiter(limit(t), b.recvCQ)
	for woken := false; !woken; { // a wait that begins after the failure goes on
		err := b.recvCQ.Close()
		require.ErrorIs(t, err, syscall.EBUSY)
		require.ErrorContains(t, err, "ibv_destroy_cq (CQ ")
		select {
		case got := <-w:
			require.ErrorIs(t, got.err, os.ErrClosed)
			woken = true
		default:
			runtime.Gosched()
		}
	}

	// The queue still gets its events, also those that another one's wait reads.
	c := r.end(ch)
	d := &end{rig: r, qp: r.qp(ibverbs.QPConfig{SendCQ: r.cq(depth, ch), RecvCQ: b.recvCQ, MaxSendWR: 8, MaxRecvWR: 8})}
	d.recv = must(ibverbs.NewRecvBatch(1, 0))(t)
	r.connect(c, linkTo(d.qp))
	r.connect(d, linkTo(c.qp))
	leader := waiter(limit(t), a.recvCQ)
	untilWaiting(t, a.recvCQ)
	w = waiter(limit(t), b.recvCQ)
	untilWaiting(t, b.recvCQ)
	ping(t, c, d, 1)
	requireOne(t, ended(t, w), 1)
	unknown()
	require.NoError(t, d.qp.Close())
	require.NoError(t, a.qp.Close())
	require.NoError(t, a.recvCQ.Close())
	require.ErrorIs(t, ended(t, leader).err, os.ErrClosed)
}
