// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

var windows = []check.Check{
	{
		Name: "windows.first", Proves: "a window of type 1 opens memory, moves, and closes", Features: []check.Feature{check.Windows},
		Run: on(func(r *rig) {
			a, b := r.pair()
			mw, mr := r.window(ibverbs.MWType1)
			r.bind1(mw, b, mr.Sub(100, 1000))
			old := mw.Remote()
			r.opens(a, old, mr.Bytes()[100:1100])
			r.bind1(mw, b, mr.Sub(4096, 64))
			r.opens(a, mw.Remote(), mr.Bytes()[4096:][:64])
			r.want(old.RKey != mw.RKey(), "the key of the window did not change")
			r.shut(cut(old), "write to where a window was")
			last := mw.Remote()
			ok(r.T, mw.Close())
			r.shut(cut(last), "write to a window that was closed")
		}),
		Matters: statusMatters,
	},
	{
		Name: "windows.second", Proves: "a window of type 2 opens memory, and closes when it is invalidated", Features: []check.Feature{check.Windows},
		Run: on(func(r *rig) {
			a, b := r.pair()
			mw, mr := r.window(ibverbs.MWType2)
			b.bind2(mw, mr.Sub(8, 512))
			r.opens(a, mw.Remote(), mr.Bytes()[8:520])
			old := mw.Remote()
			b.post(func(s *ibverbs.SendBatch) error { return s.LocalInv(1, mw.RKey(), ibverbs.SendSignaled) })
			wc := r.succeed(b.sendCQ, 1)[0]
			r.want(wc.Opcode() == ibverbs.WCLocalInv, "the opcode is %v", wc.Opcode())
			b.bind2(mw, mr.Sub(4096, 512))
			r.opens(a, mw.Remote(), mr.Bytes()[4096:][:512])
			a.post(func(s *ibverbs.SendBatch) error { return s.Write(1, cut(old), ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("write to a window of type 2 that was invalidated", remoteAccess, statusName(r.completions(a.sendCQ, 1)[0].Status()))
		}),
		Matters: statusMatters,
	},
	{
		Name: "windows.peer", Proves: "a peer's message invalidates a window, and its receive says which", Features: []check.Feature{check.Windows},
		Run: on(func(r *rig) {
			a, b := r.pair()
			mw, mr := r.window(ibverbs.MWType2)
			b.bind2(mw, mr.Sub(0, 512))
			old := mw.Remote()
			r.opens(a, old, mr.Bytes()[:512])
			b.receive(1, b.mr.Sub(0, 64))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendInv(1, old.RKey, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.succeed(a.sendCQ, 1)
			key, has := r.succeed(b.recvCQ, 1)[0].InvalidatedRKey()
			r.want(!has || key == old.RKey, "the receive says that the key %#x was invalidated, instead of %#x", key, old.RKey)
			named := refusal("the key")
			named.SoftRoCE = []string{"no key"}
			r.Case("receive of a message that invalidates: it has", named, map[bool]string{true: "the key", false: "no key"}[has])
			a.post(func(s *ibverbs.SendBatch) error { return s.Write(1, cut(old), ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("write to a window that the peer has invalidated", remoteAccess, statusName(r.completions(a.sendCQ, 1)[0].Status()))
		}),
		Matters: "A program learns from a message that a window was invalidated, but not which one.",
	},
	{
		Name: "windows.access", Proves: "a window permits what its binding says", Features: []check.Feature{check.Windows, check.Protection, check.Diagnosis},
		Run: on(func(r *rig) {
			a, b := r.pair()
			mw, mr := r.window(ibverbs.MWType1)
			ok(r.T, mw.Bind(b.qp, 1, ibverbs.SendSignaled, ibverbs.Binding{Memory: mr.Sub(0, 64), Access: ibverbs.AccessRemoteRead}))
			r.succeed(b.sendCQ, 1)
			window := mw.Remote()
			if r.reads() {
				a.post(func(s *ibverbs.SendBatch) error { return s.Read(1, window, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
				r.succeed(a.sendCQ, 1)
			}
			r.shut(cut(window), "write to a window that permits reads")
			r.untouched(mr.Bytes(), "through a window that permits reads")
		}),
		Matters: statusMatters,
	},
	{
		Name: "windows.range", Proves: "a peer reaches no memory around a window", Features: []check.Feature{check.Windows, check.Protection, check.Diagnosis},
		Run: on(func(r *rig) {
			_, b := r.pair()
			mw, mr := r.window(ibverbs.MWType1)
			r.bind1(mw, b, mr.Sub(1024, 64))
			// Soft-RoCE lets peers reach all of the region.
			v := remoteAccess
			v.SoftRoCE = []string{check.Succeeds}
			for _, bad := range []struct {
				name   string
				offset int
			}{{"before", -8}, {"behind", 64}} {
				r.shutAs(beyond(mw.Remote(), bad.offset, 8), "write "+bad.name+" a window", v)
			}
		}),
		Matters: "A window guards less than it says: give peers windows only to regions all of which they may reach.",
	},
	{
		Name: "windows.refused", Proves: "a bind that must not be is refused", Features: []check.Feature{check.Windows, check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			_, b := r.pair()
			mw, mr := r.window(ibverbs.MWType2)
			b.bind2(mw, mr.Sub(0, 64))
			b.post(func(s *ibverbs.SendBatch) error {
				return s.BindMW(1, mw, ibverbs.Binding{Memory: mr.Sub(64, 64), Access: ibverbs.AccessRemoteRead}, ibverbs.SendSignaled)
			})
			r.Case("bind of a window of type 2 that is bound", rxe(spec(ibverbs.WCMemoryWindowBind), ibverbs.WCMemoryWindowBind, ibverbs.WCFlushed),
				statusName(r.completions(b.sendCQ, 1)[0].Status()))
		}),
	},
}

// window returns a window, and a region that peers reach through windows alone.
// It is called after the pair is made: Soft-RoCE takes a minute to close a
// queue pair to which a window is bound.
func (r *rig) window(typ ibverbs.MWType) (*ibverbs.MW, *ibverbs.MR) {
	r.need(r.attr.MaxMW > 0, "memory windows")
	mr := r.alloc(pages, ibverbs.AccessLocalWrite|ibverbs.AccessWindowBind)
	mw, err := r.pd.AllocMW(typ)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		r.Lacks(map[ibverbs.MWType]string{ibverbs.MWType1: "memory windows of type 1", ibverbs.MWType2: "memory windows of type 2"}[typ])
	}
	return keep(mw, err)(r.T), mr
}

// bound is what peers may do with a window.
const bound = ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite

// bind1 binds a window of type 1.
func (r *rig) bind1(mw *ibverbs.MW, e *end, memory ibverbs.Segment) {
	ok(r.T, mw.Bind(e.qp, 1, ibverbs.SendSignaled, ibverbs.Binding{Memory: memory, Access: bound}))
	wc := r.succeed(e.sendCQ, 1)[0]
	r.want(wc.Opcode() == ibverbs.WCBindMW, "the opcode is %v", wc.Opcode())
}

// bind2 binds a window of type 2.
func (e *end) bind2(mw *ibverbs.MW, memory ibverbs.Segment) {
	e.post(func(s *ibverbs.SendBatch) error {
		return s.BindMW(1, mw, ibverbs.Binding{Memory: memory, Access: bound}, ibverbs.SendSignaled)
	})
	e.succeed(e.sendCQ, 1)
}

// opens proves that a peer reaches memory through a window.
func (r *rig) opens(a *end, window ibverbs.RemoteBuffer, b []byte) {
	sent := fill(a.mr.Bytes()[:len(b)], 21)
	a.post(func(s *ibverbs.SendBatch) error { return s.Write(1, window, ibverbs.SendSignaled, a.mr.Sub(0, len(b))) })
	r.succeed(a.sendCQ, 1)
	r.want(bytes.Equal(sent, b), "a write through the window has other bytes")
	if r.reads() {
		there := fill(b, 22)
		a.post(func(s *ibverbs.SendBatch) error { return s.Read(1, window, ibverbs.SendSignaled, a.mr.Sub(0, len(b))) })
		r.succeed(a.sendCQ, 1)
		r.want(bytes.Equal(there, a.mr.Bytes()[:len(b)]), "a read through the window has other bytes")
	}
	clear(b)
}
