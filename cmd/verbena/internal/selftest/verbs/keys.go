// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// guarded are the features that need the device to guard memory.
var guarded = []check.Feature{check.Protection, check.Diagnosis}

// statusMatters says what another status means.
const statusMatters = "Requests are refused all the same: only the status that a program is told differs, and with it the hint in the error's text."

// keys are the mistakes with keys, ranges and permissions.
var keys = []check.Check{
	{
		Name: "keys.local.sent", Proves: "the device sends no memory of a wrong local key", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) { r.badLocal(request.sends, unsendable) }),
	},
	{
		Name: "keys.local.written", Proves: "the device writes no memory of a wrong local key", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			r.need(r.reads(), "RDMA reads")
			r.badLocal(request.writes, localProtection)
		}),
	},
	{
		Name: "keys.remote", Proves: "a peer reaches no memory with a wrong remote key", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			foreign, closed := r.foreign(), r.closed()
			for _, k := range r.kinds(func(k request) bool { return k.remote }) {
				for _, bad := range []struct {
					name   string
					remote func(b *end) ibverbs.RemoteBuffer
				}{
					{"wrong remote key", func(b *end) ibverbs.RemoteBuffer { return withKey(b.mr.Remote(), b.mr.RKey()^0x5A) }},
					{"remote key 0", func(b *end) ibverbs.RemoteBuffer { return withKey(b.mr.Remote(), 0) }},
					{"remote key of a closed region", func(*end) ibverbs.RemoteBuffer { return closed.remote }},
					{"remote key of another domain", func(*end) ibverbs.RemoteBuffer { return foreign.Remote() }},
				} {
					r.mistake(k.name+", "+bad.name, remoteAccess, k, func(a, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
						return cut(bad.remote(b)), a.mr.Sub(64, 8)
					})
				}
			}
			r.untouched(foreign.Bytes(), "of another domain's region")
		}),
	},
	{
		Name: "keys.permissions", Proves: "a peer does only what the region permits", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(k request) bool { return k.remote }) {
				mr := r.alloc(64, r.access()&^k.permission())
				r.mistake(k.name+", region without the permission", remoteAccess, k, func(a, _ *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
					return mr.Remote().Sub(0, 8), a.mr.Sub(64, 8)
				})
				r.untouched(mr.Bytes(), "of a region without the permission")
			}
		}),
	},
	{
		Name: "keys.permissions.connection", Proves: "a peer does only what the connection permits", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(k request) bool { return k.remote }) {
				r.Scope(func() {
					a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{})
					r.connectWith(a, b, normal, r.access(), r.access()&^k.permission())
					r.try(k.name+", connection without the permission", spec(ibverbs.WCRemoteInvalidRequest), k, a, b, b.mr.Remote().Sub(0, 8), a.mr.Sub(64, 8))
				})
			}
		}),
	},
	{
		Name: "keys.permissions.local", Proves: "the device writes no region without local write, and sends from it", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			readOnly := r.alloc(64, 0)
			for _, k := range r.kinds(func(request) bool { return true }) {
				v := good
				if k.result {
					v = localProtection
				}
				r.mistake(k.name+", region without local write", v, k, func(_, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
					return b.mr.Remote().Sub(0, 8), at(readOnly, 0, 8, readOnly.LKey())
				})
			}
			r.untouched(readOnly.Bytes(), "of a region without local write")
		}),
	},
	{
		Name: "keys.range.remote", Proves: "a peer reaches no memory outside of the region", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(k request) bool { return k.remote }) {
				for _, bad := range k.ranges() {
					r.mistake(k.name+", remote range "+bad.name, remoteAccess, k, func(a, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
						return beyond(b.mr.Remote(), bad.offset, 8), a.mr.Sub(64, 8)
					})
				}
			}
		}),
	},
	{
		Name: "keys.range.local", Proves: "the device uses no memory outside of the region", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(request) bool { return true }) {
				v := rxe(localProtection, ibverbs.WCLocalProtection, ibverbs.WCFlushed)
				if k.result {
					v = localProtection
				}
				for _, bad := range k.ranges() {
					r.mistake(k.name+", local range "+bad.name, v, k, func(a, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
						return b.mr.Remote().Sub(64, 8), at(a.mr, bad.offset, 8, a.mr.LKey())
					})
				}
			}
		}),
	},
	{
		Name: "keys.neighbours", Proves: "a peer does not reach Go's memory around a registered slice", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			b := make([]byte, 4096)
			r.Reserve(len(b))
			mr := keep(r.pd.Register(b[2048:2112], r.access()))(r.T)
			for _, k := range r.kinds(func(k request) bool { return k.remote }) {
				for _, offset := range []int{-8, 64} {
					r.mistake(k.name+", "+map[int]string{-8: "before", 64: "behind"}[offset]+" a registered slice", remoteAccess, k,
						func(a, _ *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
							return beyond(mr.Remote(), offset, 8), a.mr.Sub(64, 8)
						})
				}
			}
			r.untouched(b, "of Go's heap")
		}),
	},
	{
		Name: "keys.misaligned", Proves: "an atomic operation on a misaligned address is refused", Features: []check.Feature{check.Atomics, check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			r.need(r.atomics() && r.reads(), "atomic operations")
			a, b := r.pair()
			for _, k := range r.kinds(func(k request) bool { return k.atomic }) {
				s := must(ibverbs.NewSendBatch(1, 1))(r.T)
				err := k.add(s, beyond(b.mr.Remote(), 4, 8), a.mr.Sub(64, 8))
				r.Case(k.name+", misaligned: from the batch", refusal("EINVAL"), errno(err))
			}
		}),
	},
}

// badRange is a place of 8 bytes that is not in an end's memory.
type badRange struct {
	name   string
	offset int
}

var badRanges = []badRange{
	{"before the region", -16},
	{"across the region's start", -4},
	{"across the region's end", pages - 4},
	{"behind the region", pages + 8},
}

// ranges returns the places that a request can name: an atomic operation needs
// an aligned one.
func (k request) ranges() (all []badRange) {
	for _, bad := range badRanges {
		if !k.atomic || bad.offset%8 == 0 {
			all = append(all, bad)
		}
	}
	return all
}

// permission returns the access that the request needs of the peer's memory.
func (k request) permission() ibverbs.AccessFlags {
	switch {
	case k.atomic:
		return ibverbs.AccessRemoteAtomic
	case k.result:
		return ibverbs.AccessRemoteRead
	}
	return ibverbs.AccessRemoteWrite
}

func withKey(b ibverbs.RemoteBuffer, rkey uint32) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{Addr: b.Addr, RKey: rkey, Len: b.Len}
}

// cut returns the first 8 bytes.
func cut(b ibverbs.RemoteBuffer) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{Addr: b.Addr, RKey: b.RKey, Len: 8}
}

// closedRegion is what is known of a region that was closed.
type closedRegion struct {
	remote ibverbs.RemoteBuffer
	lkey   uint32
}

// closed returns the keys of a region that was closed. Its memory stays.
func (r *rig) closed() closedRegion {
	r.Reserve(4096)
	b := make([]byte, 4096)
	mr := must(r.pd.Register(b, r.access()))(r.T)
	c := closedRegion{mr.Remote(), mr.LKey()}
	ok(r.T, mr.Close())
	r.Close(check.Closer(func() error { _ = b[0]; return nil })) // reachable until then
	return c
}

// foreign returns a region of another protection domain.
func (r *rig) foreign() *ibverbs.MR {
	pd := keep(r.dev.AllocPD())(r.T)
	r.Reserve(64)
	return keep(pd.Alloc(64, r.access()))(r.T)
}

// badLocal tries requests with wrong local keys.
func (r *rig) badLocal(match func(k request) bool, v check.Verdict) {
	foreign, closed := r.foreign(), r.closed()
	for _, k := range r.kinds(match) {
		for _, bad := range []struct {
			name  string
			local func(a *end) ibverbs.Segment
		}{
			{"wrong local key", func(a *end) ibverbs.Segment { return at(a.mr, 64, 8, a.mr.LKey()^0x5A) }},
			{"local key 0", func(a *end) ibverbs.Segment { return at(a.mr, 64, 8, 0) }},
			{"local key of a closed region", func(*end) ibverbs.Segment { return ibverbs.RawSegment(closed.remote.Addr, 8, closed.lkey) }},
			{"local key of another domain", func(*end) ibverbs.Segment { return at(foreign, 0, 8, foreign.LKey()) }},
		} {
			r.mistake(k.name+", "+bad.name, v, k, func(a, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment) {
				return b.mr.Remote().Sub(64, 8), bad.local(a)
			})
		}
	}
}

// mistake makes a pair, posts a request with the memory that bad returns, and
// adds the case.
func (r *rig) mistake(name string, v check.Verdict, k request, bad func(a, b *end) (ibverbs.RemoteBuffer, ibverbs.Segment)) {
	r.Scope(func() {
		a, b := r.pair()
		remote, local := bad(a, b)
		r.try(name, v, k, a, b, remote, local)
	})
}

// landing is where an end's memory for receives begins, which the device may
// write.
const landing = pages / 2

// try posts a request from a to b, and adds the case. A request that is refused
// must not have changed anything, and puts its queue pair into the error state.
func (r *rig) try(name string, v check.Verdict, k request, a, b *end, remote ibverbs.RemoteBuffer, local ibverbs.Segment) {
	mine, theirs := fill(a.mr.Bytes(), 1), fill(b.mr.Bytes()[:landing], 2)
	if k.receive {
		b.receive(2, b.mr.Sub(landing, 8))
	}
	a.post(func(s *ibverbs.SendBatch) error { return flagged(s, k.add(s, remote, local)) })
	wc := r.completions(a.sendCQ, 1)[0]
	r.Case(name, v, statusName(wc.Status()))
	r.want(wc.ID() == 1, "%s: the completion has the ID %d instead of 1", name, wc.ID())
	if wc.Status() == ibverbs.WCSuccess {
		return
	}
	r.want(bytes.Equal(mine, a.mr.Bytes()), "%s: this end's memory was changed although the request was refused", name)
	done := k.atomic && wc.Status() != ibverbs.WCRemoteAccess // the peer has done what it was asked for, and this end cannot take the result
	r.want(done || bytes.Equal(theirs, b.mr.Bytes()[:landing]), "%s: the peer's memory was changed although the request was refused", name)
	r.until(name+": the queue pair is in the error state", func() bool { return r.is(a, ibverbs.QPStateError) })
}
