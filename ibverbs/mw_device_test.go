package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

const remoteBoth = ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite

// window returns a window, and a region that peers reach through windows only.
func (r *rig) window(typ ibverbs.MWType) (*ibverbs.MW, *ibverbs.MR) {
	r.t.Helper()
	mr := r.alloc(8192, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind)
	mw := must(r.pd.AllocMW(typ))(r.t)
	r.cleanup(mw)
	require.Equal(r.t, typ, mw.Type())
	require.Same(r.t, r.pd, mw.PD())
	require.Zero(r.t, mw.Remote())
	return mw, mr
}

// post posts a request that this package has no method for.
func (e *end) post(t testing.TB, wr libibverbs.SendWr) ibverbs.WC {
	t.Helper()
	wr.SendFlags = uint32(ibverbs.SendSignaled)
	var bad *libibverbs.SendWr
	require.NoError(t, libibverbs.PostSend(e.qp.Raw(), &wr, &bad))
	return collect(t, e.sendCQ, 1)[0]
}

// bind2 binds a window of type 2.
func (e *end) bind2(t testing.TB, mw *ibverbs.MW, b ibverbs.Binding) ibverbs.WC {
	t.Helper()
	wr := libibverbs.SendWr{Opcode: libibverbs.IBV_WR_BIND_MW}
	*wr.BindMw() = must(mw.BindWR(b))(t)
	return e.post(t, wr)
}

func (e *end) invalidate(t testing.TB, rkey uint32) ibverbs.WC {
	t.Helper()
	wr := libibverbs.SendWr{Opcode: libibverbs.IBV_WR_LOCAL_INV}
	*wr.InvalidateRkey() = rkey
	return e.post(t, wr)
}

// requireOpen writes through a window and reads back.
func (e *end) requireOpen(t testing.TB, window ibverbs.RemoteBuffer, memory []byte) {
	t.Helper()
	n := int(window.Len)
	want := pattern(e.mr.Sub(0, n).Bytes(), 21)
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		if err := s.Write(1, window, ibverbs.SendSignaled, e.mr.Sub(0, n)); err != nil {
			return err
		}
		return s.Read(2, window, ibverbs.SendSignaled, e.mr.Sub(n, n))
	})
	collectOK(t, e.sendCQ, 2)
	require.Equal(t, want, memory)
	require.Equal(t, want, e.mr.Sub(n, n).Bytes())
}

// requireShut writes to where there is no way; the connection is lost.
func (e *end) requireShut(t testing.TB, remote ibverbs.RemoteBuffer) {
	t.Helper()
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(9, remote, ibverbs.SendSignaled, e.mr.Sub(0, int(remote.Len)))
	})
	requireWC(t, collect(t, e.sendCQ, 1)[0], 9, e.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
}

func TestWindowType1(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	mw, mr := r.window(ibverbs.MWType1)
	first := mw.RKey()

	require.NoError(t, mw.Bind(b.qp, 5, ibverbs.SendSignaled, ibverbs.Binding{Memory: mr.Sub(100, 1000), Access: remoteBoth}))
	wc := collectOK(t, b.sendCQ, 1)[0]
	require.EqualValues(t, 5, wc.ID())
	require.Equal(t, libibverbs.IBV_WC_BIND_MW, wc.Opcode())
	old := mw.Remote()
	require.NotEqual(t, first, old.RKey)
	require.Equal(t, ibverbs.RemoteBuffer{Addr: mr.Remote().Addr + 100, RKey: mw.RKey(), Len: 1000}, old)
	a.requireOpen(t, old, mr.Sub(100, 1000).Bytes())

	var busy *ibverbs.BusyError
	require.ErrorAs(t, mr.Close(), &busy)
	require.Len(t, busy.Children, 1)
	require.Contains(t, busy.Error(), "close first: MW ")

	require.NoError(t, mw.Bind(b.qp, 6, ibverbs.SendSignaled, ibverbs.Binding{Memory: mr.Sub(4096, 50), Access: remoteBoth}))
	collectOK(t, b.sendCQ, 1)
	require.NotEqual(t, old.RKey, mw.RKey())
	a.requireOpen(t, mw.Remote(), mr.Sub(4096, 50).Bytes())
	a.requireShut(t, old)
	require.NoError(t, mw.Close())
	require.NoError(t, mr.Close())
}

// A window opens no more than it says. Of Soft-RoCE, which only looks at the
// region's bounds, the window has the whole region.
func TestWindowLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		access ibverbs.AccessFlags
		change func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer
	}{
		"not to write": {ibverbs.AccessRemoteRead, func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer { return w.Sub(0, 8) }},
		"behind":       {remoteBoth, func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer { return w.Sub(w.Len-4, 8) }},
		"in front":     {remoteBoth, func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer { w.Addr -= 4; return w.Sub(0, 8) }},
		"wrong key":    {remoteBoth, func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer { w.RKey--; return w.Sub(0, 8) }},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			a, b := r.pair(nil)
			mw, mr := r.window(ibverbs.MWType1)
			require.NoError(t, mw.Bind(b.qp, 5, ibverbs.SendSignaled, ibverbs.Binding{Memory: mr.All(), Access: tt.access}))
			collectOK(t, b.sendCQ, 1)
			a.requireShut(t, tt.change(mw.Remote()))
		})
	}
}

func TestWindowType2(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	mw, mr := r.window(ibverbs.MWType2)
	wc := b.bind2(t, mw, ibverbs.Binding{Memory: mr.Sub(8, 512), Access: remoteBoth})
	require.NoError(t, wc.Err())
	require.Equal(t, libibverbs.IBV_WC_BIND_MW, wc.Opcode())
	old := mw.Remote()
	a.requireOpen(t, old, mr.Sub(8, 512).Bytes())
	require.ErrorIs(t, mr.Close(), syscall.EBUSY)

	wc = b.invalidate(t, mw.RKey())
	require.NoError(t, wc.Err())
	wc = b.bind2(t, mw, ibverbs.Binding{Memory: mr.Sub(4000, 4096), Access: remoteBoth})
	require.NoError(t, wc.Err())
	require.NotEqual(t, old.RKey, mw.RKey())
	a.requireOpen(t, mw.Remote(), mr.Sub(4000, 4096).Bytes())

	// Bound as it is, it cannot be bound again, and the connection is lost. Newer
	// kernels' Soft-RoCE calls that a request that was flushed.
	wc = b.bind2(t, mw, ibverbs.Binding{Memory: mr.Sub(0, 1), Access: remoteBoth})
	require.Contains(t, []ibverbs.WCStatus{ibverbs.WCMemoryWindowBind, ibverbs.WCFlushed}, wc.Status())
}

// An invalidated window no longer keeps the region.
func TestWindowInvalidated(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	mw, mr := r.window(ibverbs.MWType2)
	wc := b.bind2(t, mw, ibverbs.Binding{Memory: mr.All(), Access: remoteBoth})
	require.NoError(t, wc.Err())
	wc = b.invalidate(t, mw.RKey())
	require.NoError(t, wc.Err())
	a.requireShut(t, mw.Remote().Sub(0, 8))
	require.NoError(t, mr.Close())
}

func TestWindowZeroBased(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	mw, mr := r.window(ibverbs.MWType2)
	wc := b.bind2(t, mw, ibverbs.Binding{Memory: mr.Sub(100, 1000), Access: remoteBoth | ibverbs.AccessZeroBased})
	require.NoError(t, wc.Err())
	require.Equal(t, ibverbs.RemoteBuffer{RKey: mw.RKey(), Len: 1000}, mw.Remote())
	a.requireOpen(t, mw.Remote(), mr.Sub(100, 1000).Bytes())
}

// What cannot be right is refused before C sees it.
func TestWindowRefused(t *testing.T) {
	r := open(t)
	_, b := r.pair(nil)
	one, mr := r.window(ibverbs.MWType1)
	two := must(r.pd.AllocMW(ibverbs.MWType2))(t)
	r.cleanup(two)
	pd := must(r.c.AllocPD())(t)
	r.cleanup(pd)
	foreign := must(pd.Alloc(64, ibverbs.AccessWindowBind))(t)
	r.cleanup(foreign)
	readOnly := r.alloc(64, ibverbs.AccessWindowBind)
	closed := must(r.pd.Alloc(64, ibverbs.AccessWindowBind))(t)
	require.NoError(t, closed.Close())
	gone := must(r.pd.AllocMW(ibverbs.MWType1))(t)
	require.NoError(t, gone.Close())
	require.NoError(t, gone.Close())

	for name, tt := range map[string]struct {
		binding ibverbs.Binding
		want    error
		text    string
	}{
		"nothing":       {ibverbs.Binding{}, os.ErrInvalid, "is nil, or was not made"},
		"closed region": {ibverbs.Binding{Memory: closed.All()}, os.ErrClosed, "MR "},
		"outside":       {ibverbs.Binding{Memory: mr.Sub(8000, 200)}, syscall.EINVAL, "segment of 200 bytes at 8000 is outside"},
		"no bytes":      {ibverbs.Binding{Memory: mr.Sub(10, 0)}, syscall.EINVAL, "0 bytes of MR "},
		"without bind":  {ibverbs.Binding{Memory: b.mr.All()}, syscall.EINVAL, "without AccessWindowBind"},
		"other domain":  {ibverbs.Binding{Memory: foreign.All()}, syscall.EPERM, " is not of PD "},
		"read-only region": {
			ibverbs.Binding{Memory: readOnly.All(), Access: ibverbs.AccessRemoteWrite}, syscall.EINVAL, "AccessRemoteWrite needs AccessLocalWrite, which MR ",
		},
		"local access": {
			ibverbs.Binding{Memory: mr.All(), Access: ibverbs.AccessLocalWrite}, syscall.EINVAL, "no window can have AccessLocalWrite",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := one.Bind(b.qp, 1, ibverbs.SendSignaled, tt.binding)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, "ibv_bind_mw")
			require.ErrorContains(t, err, tt.text)
			_, err = two.BindWR(tt.binding)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.text)
		})
	}
	good := ibverbs.Binding{Memory: mr.All(), Access: ibverbs.AccessRemoteRead}
	require.ErrorContains(t, two.Bind(b.qp, 1, 0, good), "the window is not of type 1")
	require.ErrorContains(t, second(one.BindWR(good)), "the window is not of type 2")
	require.ErrorIs(t, gone.Bind(b.qp, 1, 0, good), os.ErrClosed)
	require.ErrorIs(t, one.Bind(nil, 1, 0, good), os.ErrInvalid)
	require.ErrorIs(t, (*ibverbs.MW)(nil).Bind(b.qp, 1, 0, good), os.ErrInvalid)
	require.ErrorIs(t, (*ibverbs.MW)(nil).Close(), os.ErrInvalid)
	require.ErrorIs(t, second(r.pd.AllocMW(3)), syscall.EINVAL)
	require.ErrorIs(t, second(r.pd.AllocMW(0)), syscall.EINVAL)
	require.NoError(t, mr.Close(), "no window was bound")
}

// A domain with windows stays; a queue pair that is not connected refuses.
func TestWindowLifetimes(t *testing.T) {
	r := open(t)
	e := r.end(nil)
	mw, mr := r.window(ibverbs.MWType1)
	err := r.pd.Close()
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorContains(t, err, "MW ")
	err = mw.Bind(e.qp, 1, 0, ibverbs.Binding{Memory: mr.All()})
	t.Log(err)
	require.Error(t, err)
	require.Zero(t, mw.Remote())
	require.NoError(t, mr.Close())
	pd := must(r.c.AllocPD())(t)
	require.NoError(t, pd.Close())
	require.ErrorIs(t, second(pd.AllocMW(ibverbs.MWType1)), os.ErrClosed)
}
