package ibverbs

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

func TestPostErrorText(t *testing.T) {
	post := func(errno syscall.Errno) error {
		return &cerr.Error{Op: "ibv_post_send", Object: "QP 17 of rxe0", Errno: errno}
	}
	for _, tt := range []struct {
		err  PostError
		want string
	}{
		{
			PostError{Index: 3, ID: 7, Err: post(syscall.ENOMEM)},
			"request 3 of the batch (ID 7), the ones before it were posted: ibv_post_send (QP 17 of rxe0): " +
				"cannot allocate memory: the queue is full until completions have been polled",
		},
		{
			PostError{Index: 0, ID: 7, Err: post(syscall.EINVAL)},
			"request 0 of the batch (ID 7): ibv_post_send (QP 17 of rxe0): invalid argument",
		},
	} {
		require.EqualError(t, &tt.err, tt.want)
		var e *Error
		require.ErrorAs(t, &tt.err, &e)
		require.ErrorIs(t, &tt.err, e.Errno)
	}
}

func TestPosition(t *testing.T) {
	wrs := make([]libibverbs.SendWr, 3)
	for i := range wrs {
		require.Equal(t, i, position(wrs, &wrs[i]))
	}
	require.Zero(t, position(wrs, nil))
	require.Zero(t, position(wrs[:2], &wrs[2]), "not of this batch")
	require.Zero(t, position(wrs[1:], &wrs[0]), "not of this batch")
}

// A nil or zero object of this package answers with an error, wherever there
// is one to give.
func TestNotOpened(t *testing.T) {
	ctx := context.Background()
	for name, call := range map[string]func(bool) error{
		"Device.Close":       func(zero bool) error { return pick(zero, &Device{}).Close() },
		"Device.QueryDevice": func(zero bool) error { return second(pick(zero, &Device{}).QueryDevice()) },
		"Device.QueryPort":   func(zero bool) error { return second(pick(zero, &Device{}).QueryPort(1)) },
		"Device.QueryGID":    func(zero bool) error { return second(pick(zero, &Device{}).QueryGID(1, 0)) },
		"Device.AllocPD":     func(zero bool) error { return second(pick(zero, &Device{}).AllocPD()) },
		"Device.CreateCompChannel": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateCompChannel())
		},
		"Device.CreateCQ": func(zero bool) error {
			return second(pick(zero, &Device{}).CreateCQ(CQConfig{Entries: 1}))
		},
		"PD.Close":    func(zero bool) error { return pick(zero, &PD{}).Close() },
		"PD.Alloc":    func(zero bool) error { return second(pick(zero, &PD{}).Alloc(-1, 0)) },
		"PD.Register": func(zero bool) error { return second(pick(zero, &PD{}).Register(nil, 0)) },
		"PD.CreateQP": func(zero bool) error {
			return second(pick(zero, &PD{}).CreateQP(QPConfig{SendCQ: &CQ{}, RecvCQ: &CQ{}}))
		},
		"MR.Close":          func(zero bool) error { return pick(zero, &MR{}).Close() },
		"CompChannel.Close": func(zero bool) error { return pick(zero, &CompChannel{}).Close() },
		"CQ.Close":          func(zero bool) error { return pick(zero, &CQ{}).Close() },
		"CQ.Poll":           func(zero bool) error { return second(pick(zero, &CQ{}).Poll(make([]WC, 1))) },
		"CQ.Wait":           func(zero bool) error { return second(pick(zero, &CQ{}).Wait(ctx, make([]WC, 1))) },
		"CQ.Spin":           func(zero bool) error { return second(pick(zero, &CQ{}).Spin(make([]WC, 1), 0)) },
		"CQ.Sleep":          func(zero bool) error { return second(pick(zero, &CQ{}).Sleep(make([]WC, 1), 0)) },
		"CQ.Resize":         func(zero bool) error { return pick(zero, &CQ{}).Resize(1) },
		"CQ.Moderate":       func(zero bool) error { return pick(zero, &CQ{}).Moderate(1, 0) },
		"QP.PostSendAndSpin": func(zero bool) error {
			_, _, err := pick(zero, &QP{}).PostSendAndSpin(nil, &CQ{}, nil, 0)
			return err
		},
		"QP.Exchange": func(zero bool) error { return second(pick(zero, &QP{}).Exchange(nil, nil, &CQ{}, nil, 1, 0)) },
		"QP.ExchangeAndSleep": func(zero bool) error {
			return second(pick(zero, &QP{}).ExchangeAndSleep(nil, nil, &CQ{}, nil, 1, 0))
		},
		"QP.Close":    func(zero bool) error { return pick(zero, &QP{}).Close() },
		"QP.SetError": func(zero bool) error { return pick(zero, &QP{}).SetError() },
		"QP.State":    func(zero bool) error { return second(pick(zero, &QP{}).State()) },
		"QP.Modify":   func(zero bool) error { return pick(zero, &QP{}).Modify(QPAttr{}, 0) },
		"QP.PostSend": func(zero bool) error { return second(pick(zero, &QP{}).PostSend(nil)) },
		"QP.PostRecv": func(zero bool) error { return second(pick(zero, &QP{}).PostRecv(nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, call(true), os.ErrInvalid)
			require.ErrorIs(t, call(false), os.ErrInvalid)
		})
	}
}

// pick returns the zero value it was given, or nil.
func pick[T any](zero bool, value *T) *T {
	if zero {
		return value
	}
	return nil
}

func second[T any](_ T, err error) error { return err }

func TestBadArguments(t *testing.T) {
	c := &Device{}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"port 0":       {second(c.QueryPort(0)), "ibv_query_port (port 0): invalid argument"},
		"port 256":     {second(c.QueryPort(256)), "ibv_query_port (port 256): invalid argument"},
		"GID port":     {second(c.QueryGID(-1, 0)), "ibv_query_gid (port -1): invalid argument"},
		"GID index":    {second(c.QueryGID(1, -1)), "ibv_query_gid (index -1): invalid argument"},
		"no queues":    {second(QPConfig{}.initAttr()), "queue pair without a completion queue for each direction: invalid argument"},
		"one queue":    {second(QPConfig{SendCQ: &CQ{}}.initAttr()), "queue pair without a completion queue for each direction: invalid argument"},
		"minus 1 send": {second(QPConfig{SendCQ: &CQ{}, RecvCQ: &CQ{}, MaxSendWR: -1}.initAttr()), "queue pair with a size of -1: invalid argument"},
	} {
		require.EqualError(t, tt.err, tt.want, name)
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
	}
}

func TestQPConfigDefaults(t *testing.T) {
	cq := &CQ{raw: &libibverbs.Cq{}}
	a, err := QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 3, MaxRecvWR: 4, MaxInline: 5}.initAttr()
	require.NoError(t, err)
	require.Equal(t, libibverbs.QpInitAttr{
		SendCq: cq.raw, RecvCq: cq.raw, QpType: QPTypeRC,
		Cap: libibverbs.QpCap{MaxSendWr: 3, MaxRecvWr: 4, MaxSendSge: 1, MaxRecvSge: 1, MaxInlineData: 5},
	}, a)
	a, err = QPConfig{SendCQ: cq, RecvCQ: cq, Type: QPTypeUD, MaxSendSGE: 6, MaxRecvSGE: 7, SignalAll: true}.initAttr()
	require.NoError(t, err)
	require.Equal(t, libibverbs.QpInitAttr{
		SendCq: cq.raw, RecvCq: cq.raw, QpType: QPTypeUD, SqSigAll: 1,
		Cap: libibverbs.QpCap{MaxSendSge: 6, MaxRecvSge: 7},
	}, a)
}
