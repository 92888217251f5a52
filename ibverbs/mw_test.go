// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

const remoteBoth = ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite

// window returns a window, and a region that peers reach through windows only.
func (r *rig) window(typ ibverbs.MWType) (*ibverbs.MW, *ibverbs.MR) {
	r.t.Helper()
	mr := r.alloc(8192, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind)
	r.have(testdevice.Windows)
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
	wr.SendFlags = ibverbs.SendSignaled
	var bad *libibverbs.SendWr
	require.NoError(t, libibverbs.PostSend(e.qp.Raw(), &wr, &bad))
	return collect(t, e.sendCQ, 1)[0]
}

// bind2 binds a window of type 2.
func (e *end) bind2(t testing.TB, mw *ibverbs.MW, b ibverbs.Binding) ibverbs.WC {
	t.Helper()
	wr := libibverbs.SendWr{Opcode: libibverbs.IBV_WR_BIND_MW}
	*wr.BindMw() = must(ibverbs.BindWR(mw, b))(t)
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
		"behind":       {remoteBoth, func(w ibverbs.RemoteBuffer) ibverbs.RemoteBuffer { return beyond(w, w.Len-4, 8) }},
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
		"without bind":  {ibverbs.Binding{Memory: b.mr.All()}, syscall.EINVAL, "does not have AccessWindowBind"},
		"other domain":  {ibverbs.Binding{Memory: foreign.All()}, syscall.EPERM, " does not belong to PD "},
		"read-only region": {
			ibverbs.Binding{Memory: readOnly.All(), Access: ibverbs.AccessRemoteWrite}, syscall.EINVAL, "AccessRemoteWrite needs AccessLocalWrite, which MR ",
		},
		"local access": {
			ibverbs.Binding{Memory: mr.All(), Access: ibverbs.AccessLocalWrite}, syscall.EINVAL, "a window cannot have AccessLocalWrite",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := one.Bind(b.qp, 1, ibverbs.SendSignaled, tt.binding)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, "ibv_bind_mw")
			require.ErrorContains(t, err, tt.text)
			_, err = ibverbs.BindWR(two, tt.binding)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.text)
		})
	}
	good := ibverbs.Binding{Memory: mr.All(), Access: ibverbs.AccessRemoteRead}
	require.ErrorContains(t, two.Bind(b.qp, 1, 0, good), "the window is not of type 1")
	require.ErrorContains(t, second(ibverbs.BindWR(one, good)), "the window is not of type 2")
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

// bound returns a window that end b has bound.
func (r *rig) bound(typ ibverbs.MWType, b *end, access ibverbs.AccessFlags) (*ibverbs.MW, *ibverbs.MR) {
	r.t.Helper()
	mw, mr := r.window(typ)
	binding := ibverbs.Binding{Memory: mr.Sub(64, 128), Access: access}
	if typ == ibverbs.MWType1 {
		require.NoError(r.t, mw.Bind(b.qp, 5, ibverbs.SendSignaled, binding))
		collectOK(r.t, b.sendCQ, 1)
	} else {
		wc := b.bind2(r.t, mw, binding)
		require.NoError(r.t, wc.Err())
	}
	return mw, mr
}

var windowTypes = map[string]ibverbs.MWType{"type 1": ibverbs.MWType1, "type 2": ibverbs.MWType2}

// What a peer tries with a window, on 8 bytes of it or beside it.
func TestWindowAccess(t *testing.T) {
	r := open(t)
	const (
		read, write = ibverbs.AccessRemoteRead, ibverbs.AccessRemoteWrite
		atomic      = ibverbs.AccessRemoteAtomic
	)
	for typeName, typ := range windowTypes {
		for name, tt := range map[string]struct {
			access ibverbs.AccessFlags
			kind   string
			change func(w *ibverbs.RemoteBuffer)
			want   verdict
		}{
			"read where it may write":     {write, "read", nil, remoteAccess},
			"write where it may read":     {read, "write", nil, remoteAccess},
			"atomic where it may write":   {read | write, "fetch and add", nil, remoteAccess},
			"write imm where it may read": {read, "write imm", nil, remoteAccess},
			"in front":                    {read | write, "write", func(w *ibverbs.RemoteBuffer) { w.Addr -= 68 }, remoteAccess},
			"behind":                      {read | write, "read", func(w *ibverbs.RemoteBuffer) { w.Addr += 8192 }, remoteAccess},
			"wrong key":                   {read | write, "read", func(w *ibverbs.RemoteBuffer) { w.RKey ^= 1 }, remoteAccess},
			"key of nothing":              {read | write, "write", func(w *ibverbs.RemoteBuffer) { w.RKey = 0 }, remoteAccess},
		} {
			t.Run(typeName+"/"+name, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				mw, mr := r.bound(typ, b, tt.access)
				w := mw.Remote()
				w.Len = 8
				if tt.change != nil {
					tt.change(&w)
				}
				if requests[tt.kind].receive {
					b.postRecv(t, 2, b.mr.Sub(0, 8))
				}
				a.postSend(t, func(s *ibverbs.SendBatch) error { return requests[tt.kind].add(s, w, a.mr.Sub(64, 8)) })
				requireVerdict(t, a.sendCQ, 1, a.qp, tt.want, r)
				require.Equal(t, make([]byte, 8192), mr.Bytes())
			})
		}
	}
}

// A window that was taken away, or is not for the queue pair, does not answer.
func TestWindowTakenAway(t *testing.T) {
	r := open(t)
	for name, tt := range map[string]struct {
		typ ibverbs.MWType
		do  func(t *testing.T, a, b *end, mw *ibverbs.MW)
	}{
		"type 1 closed":             {ibverbs.MWType1, func(t *testing.T, _, _ *end, mw *ibverbs.MW) { require.NoError(t, mw.Close()) }},
		"type 2 closed":             {ibverbs.MWType2, func(t *testing.T, _, _ *end, mw *ibverbs.MW) { require.NoError(t, mw.Close()) }},
		"type 1 of another domain":  {ibverbs.MWType1, nil},
		"type 2 through another QP": {ibverbs.MWType2, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(0, fullAccess)
			owner := r
			if tt.do == nil { // the peer's queue pair has nothing to do with the window
				if tt.typ == ibverbs.MWType1 {
					owner = &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: must(r.c.AllocPD())(t)}
					r.cleanup(owner.pd)
				}
				_, b = owner.opPair(0, fullAccess)
			}
			mw, _ := owner.bound(tt.typ, b, remoteBoth)
			w := mw.Remote()
			if tt.do != nil {
				tt.do(t, a, b, mw)
			}
			a.requireShut(t, w.Sub(0, 8))
		})
	}
}

// Keys that cannot be made invalid. Not among them is that of a window that is
// not bound: Soft-RoCE's kernel crashes.
func TestBadInvalidate(t *testing.T) {
	r := open(t)
	// Soft-RoCE does not look at the queue pair, and a sender does not learn
	// what becomes of its message.
	local := verdict{ibverbs.WCMemoryWindowBind, instead(ibverbs.WCLocalQPOperation, ibverbs.WCFlushed)}
	recv := verdict{ibverbs.WCLocalAccess, instead(ibverbs.WCRemoteInvalidRequest)}
	for name, tt := range map[string]struct {
		key         func(r *rig, a, b *end) uint32
		local, recv verdict
	}{
		"wrong key": {func(r *rig, _, b *end) uint32 {
			mw, _ := r.bound(ibverbs.MWType2, b, remoteBoth)
			return mw.RKey() ^ 1
		}, local, recv},
		"unknown": {func(*rig, *end, *end) uint32 { return 0xFFFFFF00 }, local, recv},
		"window of type 1": {func(r *rig, _, b *end) uint32 {
			mw, _ := r.bound(ibverbs.MWType1, b, remoteBoth)
			return mw.RKey()
		}, local, recv},
		"window of another queue pair": {func(r *rig, _, _ *end) uint32 {
			_, other := r.opPair(0, fullAccess)
			mw, _ := r.bound(ibverbs.MWType2, other, remoteBoth)
			return mw.RKey()
		}, verdict{local.spec, instead(ibverbs.WCSuccess)}, verdict{recv.spec, instead(ibverbs.WCSuccess)}},
		"region": {func(_ *rig, _, b *end) uint32 { return b.mr.RKey() }, local, recv},
	} {
		t.Run("local/"+name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(0, fullAccess)
			rkey := tt.key(r, a, b)
			b.postSend(t, func(s *ibverbs.SendBatch) error { return s.LocalInv(6, rkey, ibverbs.SendSignaled) })
			requireVerdict(t, b.sendCQ, 6, b.qp, tt.local, r)
		})
		t.Run("remote/"+name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(0, fullAccess)
			rkey := tt.key(r, a, b)
			b.postRecv(t, 2, b.mr.Sub(0, 8))
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.SendInv(6, rkey, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			requireVerdict(t, a.sendCQ, 6, a.qp, verdict{ibverbs.WCRemoteAccess, instead(ibverbs.WCSuccess)}, r)
			requireVerdict(t, b.recvCQ, 2, b.qp, tt.recv, r)
		})
	}
}

// bind asks for a window in the way of its type, not signaled, with ID 1.
func (e *end) bind(t testing.TB, mw *ibverbs.MW, mr *ibverbs.MR) error {
	t.Helper()
	binding := ibverbs.Binding{Memory: mr.All(), Access: remoteBoth}
	if mw.Type() == ibverbs.MWType1 {
		return mw.Bind(e.qp, 1, 0, binding)
	}
	e.send.Reset()
	require.NoError(t, e.send.BindMW(1, mw, binding, 0))
	return second(e.qp.PostSend(e.send))
}

// Binds to a queue pair that cannot do it.
func TestBindFails(t *testing.T) {
	r := open(t)
	otherPD := must(r.c.AllocPD())(t)
	r.cleanup(otherPD)
	for name, typ := range windowTypes {
		t.Run(name+"/QP in error", func(t *testing.T) {
			r := r.sub(t)
			_, b := r.opPair(0, fullAccess)
			mw, mr := r.window(typ)
			require.NoError(t, b.qp.SetError())
			require.NoError(t, b.bind(t, mw, mr))
			requireWC(t, collect(t, b.sendCQ, 1)[0], 1, b.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
		})
		t.Run(name+"/QP not connected", func(t *testing.T) {
			r := r.sub(t)
			mw, mr := r.window(typ)
			require.ErrorIs(t, r.opEnd(0, fullAccess).bind(t, mw, mr), syscall.EINVAL)
		})
		t.Run(name+"/QP of another domain", func(t *testing.T) {
			r := r.sub(t)
			theirs := &rig{t: t, device: r.device, c: r.c, attr: r.attr, pd: otherPD}
			_, b := theirs.opPair(0, fullAccess)
			mw, mr := r.window(typ)
			err := b.bind(t, mw, mr)
			if typ == ibverbs.MWType1 {
				require.ErrorIs(t, err, syscall.EPERM)
				require.ErrorContains(t, err, "ibv_bind_mw (MW ")
				require.ErrorContains(t, err, " does not belong to PD ")
				return
			}
			require.NoError(t, err)
			want := verdict{ibverbs.WCMemoryWindowBind, instead(ibverbs.WCMemoryWindowBind, ibverbs.WCFlushed)}
			requireVerdict(t, b.sendCQ, 1, b.qp, want, r)
		})
	}
	t.Run("closed after it was asked for", func(t *testing.T) {
		r := r.sub(t)
		_, b := r.opPair(0, fullAccess)
		mw, mr := r.window(ibverbs.MWType2)
		require.NoError(t, b.send.BindMW(1, mw, ibverbs.Binding{Memory: mr.All(), Access: remoteBoth}, 0))
		require.NoError(t, mw.Close())
		_, err := b.qp.PostSend(b.send)
		require.ErrorIs(t, err, os.ErrClosed)
	})
}

// A window keeps its region, and its domain, until it is closed; its queue pair
// may go before.
func TestCloseAroundWindow(t *testing.T) {
	r := open(t)
	for name, typ := range windowTypes {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(0, fullAccess)
			mw, mr := r.bound(typ, b, remoteBoth)
			busy := func(err error, child string) {
				t.Helper()
				require.ErrorIs(t, err, syscall.EBUSY)
				require.ErrorContains(t, err, child)
			}
			busy(mr.Close(), "close first: MW ")
			busy(r.pd.Close(), "MW ")
			a.requireOpen(t, mw.Remote(), mr.Sub(64, 128).Bytes())
			if typ == ibverbs.MWType1 { // with the other, Soft-RoCE needs a minute to close the queue pair
				require.NoError(t, b.qp.Close())
				busy(mr.Close(), "close first: MW ")
			}
			require.NoError(t, mw.Close())
			require.NoError(t, mr.Close())
		})
	}
}
