// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

var atomics = []check.Check{
	{
		Name: "atomics.add", Proves: "fetch and add returns the old value and adds to it", Features: []check.Feature{check.Atomics},
		Run: on(func(r *rig) {
			a, b := r.atomicPair()
			for i := range uint64(10) {
				a.post(func(s *ibverbs.SendBatch) error {
					return s.FetchAdd(1, b.mr.Remote().Sub(8, 8), 1<<33+3, ibverbs.SendSignaled, a.mr.Sub(16, 8))
				})
				wc := r.succeed(a.sendCQ, 1)[0]
				r.want(wc.Opcode() == ibverbs.WCFetchAdd, "the opcode is %v", wc.Opcode())
				was, is := word(a, 16), word(b, 8)
				r.want(was == i*(1<<33+3), "the old value is %d instead of %d", was, i*(1<<33+3))
				r.want(is == (i+1)*(1<<33+3), "the value is %d instead of %d", is, (i+1)*(1<<33+3))
			}
			r.want(word(b, 0) == 0 && word(b, 16) == 0, "the operation changed the bytes around")
		}),
	},
	{
		Name: "atomics.swap", Proves: "compare and swap returns the old value, and changes it only if it equals", Features: []check.Feature{check.Atomics},
		Run: on(func(r *rig) {
			a, b := r.atomicPair()
			for _, step := range []struct{ compare, swap, was, is uint64 }{
				{0, 7, 0, 7}, {1 << 40, 9, 7, 7}, {7, 1<<63 + 1, 7, 1<<63 + 1}, {7, 1, 1<<63 + 1, 1<<63 + 1},
			} {
				a.post(func(s *ibverbs.SendBatch) error {
					return s.CompareSwap(1, b.mr.Remote().Sub(8, 8), step.compare, step.swap, ibverbs.SendSignaled, a.mr.Sub(16, 8))
				})
				wc := r.succeed(a.sendCQ, 1)[0]
				r.want(wc.Opcode() == ibverbs.WCCompareSwap, "the opcode is %v", wc.Opcode())
				was, is := word(a, 16), word(b, 8)
				r.want(was == step.was, "the old value is %#x instead of %#x", was, step.was)
				r.want(is == step.is, "the value is %#x instead of %#x", is, step.is)
			}
		}),
	},
	{
		Name: "atomics.many", Proves: "no operation of several connections on the same bytes is lost", Features: []check.Feature{check.Atomics},
		Run: on(func(r *rig) {
			counter := r.alloc(64, r.access())
			var ends []*end
			for range 4 {
				a, _ := r.atomicPair()
				ends = append(ends, a)
			}
			const rounds = 25
			for range rounds {
				for _, a := range ends {
					a.post(func(s *ibverbs.SendBatch) (err error) {
						for i := range uint64(4) {
							if e := s.FetchAdd(i+1, counter.Remote().Sub(0, 8), 1, ibverbs.SendSignaled, a.mr.Sub(int(8*i), 8)); err == nil {
								err = e
							}
						}
						return err
					})
				}
				for _, a := range ends {
					r.succeed(a.sendCQ, 4)
				}
			}
			got := binary.NativeEndian.Uint64(counter.Bytes())
			r.want(got == uint64(rounds*len(ends)*4), "%d of %d operations count", got, rounds*len(ends)*4)
		}),
	},
}

// atomicPair makes a pair, if the device has atomic operations.
func (r *rig) atomicPair() (a, b *end) {
	r.need(r.atomics() && r.reads(), "atomic operations")
	return r.pair()
}

// word returns 8 bytes of an end's memory.
func word(e *end, offset int) uint64 { return binary.NativeEndian.Uint64(e.mr.Bytes()[offset:]) }
