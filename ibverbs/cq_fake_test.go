//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/fakeverbs"
)

// polls are the ways to get completions' IDs.
func polls(f *fakeDevice) map[string]func(room int) ([]uint64, error) {
	plain := func(poll func(wcs []WC) (int, error)) func(int) ([]uint64, error) {
		return func(room int) (ids []uint64, err error) {
			wcs := make([]WC, room)
			n, err := poll(wcs)
			for i := range wcs[:n] {
				ids = append(ids, wcs[i].ID())
			}
			return ids, err
		}
	}
	extended := func(poll func(wcs []WCEx) (int, error)) func(int) ([]uint64, error) {
		return func(room int) (ids []uint64, err error) {
			wcs := make([]WCEx, room)
			n, err := poll(wcs)
			for i := range wcs[:n] {
				ids = append(ids, wcs[i].ID())
			}
			return ids, err
		}
	}
	return map[string]func(int) ([]uint64, error){
		"Poll":   plain(f.cq.Poll),
		"PollEx": extended(f.cq.PollEx),
		"Spin":   plain(func(wcs []WC) (int, error) { return f.cq.Spin(wcs, time.Millisecond) }),
		"SpinEx": extended(func(wcs []WCEx) (int, error) { return f.cq.SpinEx(wcs, time.Millisecond) }),
	}
}

func TestPolls(t *testing.T) {
	f := newFakeDevice(t)
	for name, poll := range polls(f) {
		t.Run(name, func(t *testing.T) {
			f.Set(fakeverbs.Script{Completions: 5})
			for _, want := range [][]uint64{{0, 1, 2}, {3, 4}, nil} {
				ids, err := poll(3)
				require.NoError(t, err)
				require.Equal(t, want, ids)
			}
			require.Zero(t, f.Unended())

			f.Set(fakeverbs.Script{Completions: 200})
			ids, err := poll(200)
			require.NoError(t, err)
			require.Len(t, ids, 200)

			f.Set(fakeverbs.Script{PollError: -2})
			_, err = poll(3)
			require.Error(t, err)
			require.ErrorContains(t, err, " (fake CQ): ")
			f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
			_, err = poll(3)
			require.ErrorIs(t, err, syscall.EFAULT)
			require.Zero(t, f.Unended())
		})
	}
}

// ibv_next_poll cannot be relied upon in Soft-RoCE's provider; without it the
// same completions come.
func TestPollExOneByOne(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.extended.Fields |= 1 << 62 // as for Soft-RoCE
	f.Set(fakeverbs.Script{Completions: 5})
	wcs := make([]WCEx, 3)
	for _, want := range []int{3, 2, 0} {
		n, err := f.cq.PollEx(wcs)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Zero(t, f.Unended())
}

func TestSpinStops(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 4)
	f.Set(fakeverbs.Script{EmptyPolls: 100, Completions: 2})
	n, err := f.cq.Spin(wcs, time.Hour) // MaxSpin is enough
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 101, f.Polls())

	for _, budget := range []time.Duration{-1, 0} {
		f.Set(fakeverbs.Script{})
		n, err = f.cq.Spin(wcs, budget)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 1, f.Polls())
	}
	f.Set(fakeverbs.Script{})
	begin := time.Now()
	n, err = f.cq.Spin(wcs, time.Hour)
	require.NoError(t, err)
	require.Zero(t, n)
	require.GreaterOrEqual(t, time.Since(begin), MaxSpin)
	require.Greater(t, f.Polls(), 8)

	_, err = f.cq.Spin(nil, time.Second)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = f.cq.SpinEx(nil, time.Second)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// A completion that comes between the first look and the arming is found.
func TestPollOrArm(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 4)
	arm := func() (int, error) { return f.cq.pollOrArm(opPoll, f.cq.plain(), count(wcs), unsafePointer(wcs)) }

	f.Set(fakeverbs.Script{Completions: 1})
	n, err := arm()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Zero(t, f.Armed(), "there is something already")

	f.Set(fakeverbs.Script{OnArming: 2})
	n, err = arm()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 1, f.Armed())
	require.Equal(t, 2, f.Polls())

	f.cq.solicited = true
	n, err = arm()
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 101, f.Armed())

	f.Set(fakeverbs.Script{ArmError: int(syscall.ENODEV)})
	_, err = arm()
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "ibv_req_notify_cq (fake CQ)")
	for _, code := range []int{-1, -int(syscall.ENODEV)} {
		f.Set(fakeverbs.Script{ArmError: code})
		_, err = arm()
		require.ErrorContains(t, err, "ibv_req_notify_cq (fake CQ)")
	}
}

func TestPostSendAndSpin(t *testing.T) {
	f := newFakeDevice(t)
	b := filled(t, fakeMR(t, 64, 1), 3)
	wcs := make([]WC, 8)
	for _, qp := range []*QP{f.qp, f.ex} {
		f.Set(fakeverbs.Script{EmptyPolls: 20, Completions: 3})
		posted, n, err := qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin)
		require.NoError(t, err)
		require.Equal(t, 3, posted)
		require.Equal(t, 3, n)

		f.Set(fakeverbs.Script{PollError: -int(syscall.EFAULT)})
		posted, n, err = qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin)
		require.ErrorIs(t, err, syscall.EFAULT)
		require.Equal(t, 3, posted, "these are under way")
		require.Zero(t, n)
	}
	_, _, err := f.qp.PostSendAndSpin(b, f.cq, nil, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, _, err = f.qp.PostSendAndSpin(nil, f.cq, wcs, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, _, err = f.qp.PostSendAndSpin(b, &CQ{}, wcs, 0)
	require.Error(t, err)
}

func TestWCExFields(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WCEx, 1)
	one := func(fields WCFields, s fakeverbs.Script) *WCEx {
		t.Helper()
		f.cq.extended.Fields = f.cq.extended.Fields&^uint64(fakeFields) | uint64(fields)
		s.Completions = 1
		f.Set(s)
		n, err := f.cq.PollEx(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return &wcs[0]
	}
	all := fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH}
	checkAll := func(wc *WCEx) {
		t.Helper()
		require.NoError(t, wc.Err())
		require.Equal(t, WCRecv, wc.Opcode())
		require.True(t, wc.HasGRH())
		require.Equal(t, 64, wc.ByteLen())
		require.EqualValues(t, 17, wc.QPNum())
		require.EqualValues(t, 18, wc.SrcQP())
		require.EqualValues(t, 19, wc.SLID())
		require.EqualValues(t, 20, wc.SL())
		require.EqualValues(t, 21, wc.DLIDPathBits())
		require.EqualValues(t, 22, wc.Timestamp())
		require.EqualValues(t, 23, wc.CVLAN())
		require.EqualValues(t, 24, wc.FlowTag())
		require.EqualValues(t, 25, wc.Time().UnixNano())
		tag, data := wc.TMInfo()
		require.EqualValues(t, 26, tag)
		require.EqualValues(t, 27, data)
		imm, ok := wc.Imm()
		require.True(t, ok)
		require.Equal(t, libibverbs.Be32(0x01020304).Host(), imm)
	}
	checkAll(one(fakeFields, all))

	wc := one(0, all) // what there is without asking
	require.Equal(t, WCRecv, wc.Opcode())
	require.True(t, wc.HasGRH())
	bare := WCEx{}
	bare.raw.Opcode, bare.raw.WcFlags = WCRecv, uint32(all.WCFlags)
	require.Equal(t, bare, *wc)

	wc = one(fakeFields, fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_INV})
	key, ok := wc.InvalidatedRKey()
	require.True(t, ok)
	require.EqualValues(t, 0x01020304, key)
	_, ok = wc.Imm()
	require.False(t, ok)

	wc = one(fakeFields, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR})
	failed := WCEx{}
	failed.raw.Status, failed.raw.QpNum, failed.raw.VendorErr = libibverbs.IBV_WC_RETRY_EXC_ERR, 17, 0x99
	require.Equal(t, failed, *wc)
	require.ErrorIs(t, wc.Err(), WCRetryExceeded)

	// A provider may lack any reader.
	cq := f.CQ()
	cq.ReadOpcode, cq.ReadVendorErr, cq.ReadByteLen, cq.ReadImmData, cq.ReadQpNum, cq.ReadSrcQp = nil, nil, nil, nil, nil, nil
	cq.ReadWcFlags, cq.ReadSlid, cq.ReadSl, cq.ReadDlidPathBits, cq.ReadCompletionTs, cq.ReadCvlan = nil, nil, nil, nil, nil, nil
	cq.ReadFlowTag, cq.ReadTmInfo, cq.ReadCompletionWallclockNs = nil, nil, nil
	require.Equal(t, WCEx{}, *one(fakeFields, all))
	failed.raw.QpNum, failed.raw.VendorErr = 0, 0
	require.Equal(t, failed, *one(fakeFields, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR}))
}

func TestPollExNeedsFields(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.fields = 0
	_, err := f.cq.PollEx(make([]WCEx, 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "fake CQ, made without Fields")
	_, err = f.cq.WaitEx(t.Context(), make([]WCEx, 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// After an overrun, what is left comes first, and then the error.
func TestOverran(t *testing.T) {
	f := newFakeDevice(t)
	f.Set(fakeverbs.Script{Completions: 1})
	f.cq.overran()
	wcs := make([]WC, 2)
	n, err := f.cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for range 2 {
		_, err = f.cq.Poll(wcs)
		require.ErrorIs(t, err, ErrCQOverrun)
		require.EqualError(t, err, "fake CQ: "+ErrCQOverrun.Error())
	}
	_, err = f.cq.Poll(nil)
	require.NoError(t, err)
}

func TestDataPathAllocatesNothing(t *testing.T) {
	f := newFakeDevice(t)
	f.Endless()
	mr, ah := fakeMR(t, 4096, 1), fakeAH()
	b := filled(t, mr, 32)
	other := filled(t, mr, 32)
	wcs, ex := make([]WC, 32), make([]WCEx, 32)
	to := Destination{AH: ah}
	remote := mr.Remote()
	remote.Addr &^= 7
	for name, do := range map[string]func() error{
		"post":          func() error { _, err := f.qp.PostSend(b); return err },
		"post extended": func() error { _, err := f.ex.PostSend(b); return err },
		"post and spin": func() error { _, _, err := f.qp.PostSendAndSpin(b, f.cq, wcs, MaxSpin); return err },
		"poll":          func() error { _, err := f.cq.Poll(wcs); return err },
		"spin":          func() error { _, err := f.cq.Spin(wcs, MaxSpin); return err },
		"poll extended": func() error { _, err := f.cq.PollEx(ex); return err },
		"poll or arm": func() error {
			_, err := f.cq.pollOrArm(opPoll, f.cq.plain(), len(wcs), unsafePointer(wcs))
			return err
		},
		"fill": func() error {
			b := other
			b.Reset()
			return errors.Join(b.SendInv(1, 2, SendInline, mr.Sub(0, 8)), b.SendTo(1, to, 0, mr.Sub(0, 8)),
				b.SendImmTo(1, to, 2, 0), b.CompareSwap(1, remote, 1, 2, 0, mr.Sub(0, 8)),
				b.FetchAdd(1, remote, 1, 0, mr.Sub(0, 8)), b.AtomicWrite(1, remote, [8]byte{}, 0),
				b.Flush(1, remote, FlushGlobal, 0), b.LocalInv(1, 2, 0), b.TSO(1, mr.Sub(0, 8), 9, 0, mr.Sub(0, 8)))
		},
	} {
		require.NoError(t, do(), name)
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = do() }), name)
	}
}
