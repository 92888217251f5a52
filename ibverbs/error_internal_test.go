// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

func TestPostErrorText(t *testing.T) {
	post := func(errno syscall.Errno) error {
		return &Error{Op: "ibv_post_send", Object: "QP 17 of rxe0", Errno: errno}
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
			return second(pick(zero, &Device{}).CreateCQ(CQConfig{CompQueue: 1}))
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
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no queues":    {second(QPConfig{}.initAttr()), "SendCQ or RecvCQ is nil"},
		"one queue":    {second(QPConfig{SendCQ: &CQ{}}.initAttr()), "SendCQ or RecvCQ is nil"},
		"minus 1 send": {second(QPConfig{SendCQ: &CQ{}, RecvCQ: &CQ{}, SendQueue: -1}.initAttr()), "SendQueue is -1, not from 0 to 2147483647"},
	} {
		require.EqualError(t, tt.err, tt.want, name)
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
	}
}

func TestQPConfigDefaults(t *testing.T) {
	cq := &CQ{raw: &libibverbs.Cq{}}
	a, err := QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 3, RecvQueue: 4, MaxInline: 5}.initAttr()
	require.NoError(t, err)
	require.Equal(t, libibverbs.QpInitAttr{
		SendCq: cq.raw, RecvCq: cq.raw, QpType: QPTypeRC,
		Cap: libibverbs.QpCap{MaxSendWr: 3, MaxRecvWr: 4, MaxSendSge: 1, MaxRecvSge: 1, MaxInlineData: 5},
	}, a)
	a, err = QPConfig{SendCQ: cq, RecvCQ: cq, Type: QPTypeUD, SendSegments: 6, RecvSegments: 7, SignalAll: true}.initAttr()
	require.NoError(t, err)
	require.Equal(t, libibverbs.QpInitAttr{
		SendCq: cq.raw, RecvCq: cq.raw, QpType: QPTypeUD, SqSigAll: 1,
		Cap: libibverbs.QpCap{MaxSendSge: 6, MaxRecvSge: 7},
	}, a)
}

// TestPublicErrors has the errors of the packages below come as types of this
// one.
func TestPublicErrors(t *testing.T) {
	const op = "ibv_test"
	for name, tt := range map[string]struct{ err, want error }{
		"status":       {cerr.Status(op, -1, int32(syscall.ENODEV)), &Error{Op: op, Errno: syscall.ENODEV}},
		"code":         {cerr.Code(op, int64(syscall.ENODEV), 0), &Error{Op: op, Errno: syscall.ENODEV}},
		"count":        {cerr.Count(op, -1, int32(syscall.ENODEV)), &Error{Op: op, Errno: syscall.ENODEV}},
		"null":         {cerr.Null(op, int32(syscall.ENODEV)), &Error{Op: op, Errno: syscall.ENODEV}},
		"poll":         {cerr.Poll(op, int64(syscall.EBADF), 1, 0), &Error{Op: op, Errno: syscall.EBADF}},
		"poll, -1":     {cerr.Poll(op, -1, 1, 0), &Error{Op: op, Errno: syscall.EIO}},
		"poll, -errno": {cerr.Poll(op, -int64(syscall.EBADF), 1, 0), &Error{Op: op, Errno: syscall.EBADF}},
		"wait":         {cerr.Wait(op, int64(syscall.EBADF), 1, 0), &Error{Op: op, Errno: syscall.EBADF}},
		"addrinfo":     {cerr.Addrinfo(op, -11, int32(syscall.ENODEV)), &Error{Op: op, Errno: syscall.ENODEV}},
		"rereg":        {cerr.Rereg(-4, int32(syscall.ENOMEM)), &ReregError{Code: -4, Errno: syscall.ENOMEM}},
		"nil":          {cerr.Nil(op, "cq"), &ArgumentError{Op: op, Err: cerr.Invalid("cq is nil")}},
		"refused":      {cerr.Refuse(op, "rxe0", "no"), &ArgumentError{Op: op, Object: "rxe0", Err: cerr.Invalid("no")}},
		"busy":         {cerr.Busy("PD", []string{"MR"}), &BusyError{Object: "PD", Children: []string{"MR"}}},
		"symbol":       {cerr.Lacks(cerr.SymbolError{Symbol: op}), &SymbolError{Symbol: op}},
		"library":      {cerr.NotLoaded(cerr.LibraryError{Library: op}), &LibraryError{Library: op}},
	} {
		require.Equal(t, tt.want, tt.err, name)
	}
}

// TestErrorTexts has what each type says, and what errors.Is finds in it.
func TestErrorTexts(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
		is   error
	}{
		{&Error{Op: "ibv_alloc_pd", Object: "rxe0", Errno: syscall.ENOSPC}, "ibv_alloc_pd (rxe0): no space left on device", syscall.ENOSPC},
		{
			&Error{Op: "ibv_reg_mr", Errno: syscall.ENOMEM, hint: "too much"},
			"ibv_reg_mr: cannot allocate memory: too much", syscall.ENOMEM,
		},
		{&ArgumentError{Op: "ibv_create_cq", Object: "rxe0", Err: cerr.Invalid("CompQueue is 0")}, "ibv_create_cq (rxe0): CompQueue is 0", syscall.EINVAL},
		{&ArgumentError{Op: "CQ.Wait", Err: cerr.Invalid("ctx is nil")}, "CQ.Wait: ctx is nil", syscall.EINVAL},
		{&BusyError{Object: "PD 1", Children: []string{"MR 1", "MR 2"}}, "PD 1: close first: MR 1, MR 2", syscall.EBUSY},
		{
			&ReregError{Object: "MR 7", Code: -4, Errno: syscall.ENOMEM},
			"ibv_rereg_mr (MR 7): cannot allocate memory (command, the region is unusable)", syscall.ENOMEM,
		},
		{&SymbolError{Symbol: "ibv_new", Library: "libibverbs.so.1"}, "ibv_new: the installed libibverbs.so.1 does not have it", errors.ErrUnsupported},
		{
			&LibraryError{Library: "libx.so.1", Debian: "libx1", Fedora: "libx", Reason: "no such file"},
			"cannot load libx.so.1 (on Debian and Ubuntu install libx1, on Fedora libx, or use package softroce, which needs no library): no such file; verbena doctor says more", errors.ErrUnsupported,
		},
	} {
		require.EqualError(t, tt.err, tt.want)
		require.ErrorIs(t, tt.err, tt.is)
	}
	require.Contains(t, cerr.Null("ibv_reg_mr", int32(syscall.ENOMEM)).(*Error).Hint(), "verbena doctor")
	require.True(t, (&ReregError{Code: -4, Errno: syscall.ENOMEM}).Unusable())
	require.False(t, (&ReregError{Code: -1, Errno: syscall.EINVAL}).Unusable())
}
