package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

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
					owner = &rig{t: t, device: r.device, c: r.c, pd: must(r.c.AllocPD())(t)}
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
			theirs := &rig{t: t, device: r.device, c: r.c, pd: otherPD}
			_, b := theirs.opPair(0, fullAccess)
			mw, mr := r.window(typ)
			err := b.bind(t, mw, mr)
			if typ == ibverbs.MWType1 {
				require.ErrorIs(t, err, syscall.EPERM)
				require.ErrorContains(t, err, "ibv_bind_mw (MW ")
				require.ErrorContains(t, err, "of another protection domain")
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
