// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/binary"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// all are the features that move data over reliable connections.
var all = []check.Feature{check.Connections, check.Sockets, check.Transfers}

var transfers = []check.Check{
	{
		Name: "requests.send", Proves: "a message arrives whole, once and in its receive", Features: all,
		Run: on(func(r *rig) {
			a, b := r.pair()
			sent := fill(a.mr.Bytes()[:1000], 1)
			b.receive(1, b.mr.Sub(100, 2000))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 1000)) })
			r.succeed(a.sendCQ, 1)
			wc := r.succeed(b.recvCQ, 1)[0]
			r.want(wc.ByteLen() == len(sent), "the receive has %d of %d bytes", wc.ByteLen(), len(sent))
			r.want(wc.QPNum() == b.qp.Num(), "the completion names queue pair %d instead of %d", wc.QPNum(), b.qp.Num())
			r.want(wc.Opcode() == ibverbs.WCRecv, "the receive's opcode is %v", wc.Opcode())
			r.want(bytes.Equal(sent, b.mr.Bytes()[100:][:len(sent)]), "other bytes arrived")
			r.untouched(b.mr.Bytes()[:100], "before the receive")
			r.untouched(b.mr.Bytes()[100+len(sent):], "behind the message")
			r.nothing(b.recvCQ, "there was one message")
		}),
	},
	{
		Name: "requests.order", Proves: "messages arrive in the order in which they were posted, more than the queues hold at a time", Features: all,
		Run: on(func(r *rig) {
			a, b := r.pair()
			for round := range 32 {
				for i := range depth {
					b.receive(uint64(i+1), b.mr.Sub(8*i, 8))
				}
				a.post(func(s *ibverbs.SendBatch) (err error) {
					for i := range depth {
						binary.NativeEndian.PutUint64(a.mr.Bytes()[8*i:], uint64(round*depth+i))
						if e := s.Send(uint64(i+1), ibverbs.SendSignaled, a.mr.Sub(8*i, 8)); err == nil {
							err = e
						}
					}
					return err
				})
				r.succeed(a.sendCQ, depth)
				r.succeed(b.recvCQ, depth)
				for i := range depth {
					got := binary.NativeEndian.Uint64(b.mr.Bytes()[8*i:])
					r.want(got == uint64(round*depth+i), "message %d arrived as number %d", got, round*depth+i)
				}
			}
		}),
	},
	{
		Name: "requests.long", Proves: "a message of many packets arrives whole, in every kind of request", Features: all,
		Run: on(func(r *rig) {
			const n = 100_003 // not a multiple of any packet
			a, b := r.pair()
			from, to := r.alloc(n, r.access()), r.alloc(n, r.access())
			for i, k := range r.kinds(func(k request) bool { return !k.atomic }) {
				mine, theirs := from, to
				if k.result {
					mine, theirs = to, from
				}
				sent := fill(from.Bytes(), byte(i))
				clear(to.Bytes())
				if k.receive {
					segments := []ibverbs.Segment{to.All()}
					if k.remote {
						segments = nil
					}
					b.receive(1, segments...)
				}
				a.post(func(s *ibverbs.SendBatch) error { return flagged(s, k.add(s, theirs.Remote(), mine.All())) })
				r.succeed(a.sendCQ, 1)
				if k.receive {
					wc := r.succeed(b.recvCQ, 1)[0]
					r.want(wc.ByteLen() == n, "%s: %d of %d bytes", k.name, wc.ByteLen(), n)
				}
				r.want(bytes.Equal(sent, to.Bytes()), "%s: other bytes arrived", k.name)
			}
		}),
	},
	{
		Name: "requests.immediate", Proves: "immediate data arrives with sends and writes, in the right byte order", Features: []check.Feature{check.Connections, check.Sockets},
		Run: on(func(r *rig) {
			r.need(r.immediate(), "immediate data")
			a, b := r.pair()
			const imm = 0x01020304
			b.receive(1, b.mr.Sub(0, 64))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendImm(1, imm, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.succeed(a.sendCQ, 1)
			r.hasImm(r.succeed(b.recvCQ, 1)[0], ibverbs.WCRecv, imm)
			b.receive(1)
			fill(a.mr.Bytes()[:8], 9)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.WriteImm(1, b.mr.Remote().Sub(64, 8), imm+1, ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
			r.succeed(a.sendCQ, 1)
			wc := r.succeed(b.recvCQ, 1)[0]
			r.hasImm(wc, ibverbs.WCRecvImm, imm+1)
			r.want(wc.ByteLen() == 8, "the write's completion says %d of 8 bytes", wc.ByteLen())
			r.want(bytes.Equal(a.mr.Bytes()[:8], b.mr.Bytes()[64:72]), "other bytes were written")
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled) })
			b.receive(1)
			r.succeed(a.sendCQ, 1)
			wc = r.succeed(b.recvCQ, 1)[0]
			_, has := wc.Imm()
			r.want(!has, "a message without immediate data arrived with some")
		}),
	},
	{
		Name: "requests.write", Proves: "an RDMA write changes the bytes that it names, and no others", Features: all,
		Run: on(func(r *rig) {
			a, b := r.pair()
			sent := fill(a.mr.Bytes()[:3000], 3)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Write(1, b.mr.Remote().Sub(1001, 3000), ibverbs.SendSignaled, a.mr.Sub(0, 3000))
			})
			wc := r.succeed(a.sendCQ, 1)[0]
			r.want(wc.Opcode() == ibverbs.WCWrite, "the write's opcode is %v", wc.Opcode())
			r.want(bytes.Equal(sent, b.mr.Bytes()[1001:][:3000]), "other bytes were written")
			r.untouched(b.mr.Bytes()[:1001], "before the range")
			r.untouched(b.mr.Bytes()[4001:], "behind the range")
			r.nothing(b.recvCQ, "a write takes no receive")
		}),
	},
	{
		Name: "requests.read", Proves: "an RDMA read returns the bytes that it names, and changes no others", Features: all,
		Run: on(func(r *rig) {
			r.need(r.reads(), "RDMA reads")
			a, b := r.pair()
			want := fill(b.mr.Bytes(), 5)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Read(1, b.mr.Remote().Sub(777, 3000), ibverbs.SendSignaled, a.mr.Sub(11, 3000))
			})
			wc := r.succeed(a.sendCQ, 1)[0]
			r.want(wc.Opcode() == ibverbs.WCRead, "the read's opcode is %v", wc.Opcode())
			r.want(bytes.Equal(want[777:3777], a.mr.Bytes()[11:3011]), "other bytes were read")
			r.untouched(a.mr.Bytes()[:11], "before the range")
			r.untouched(a.mr.Bytes()[3011:], "behind the range")
			r.want(bytes.Equal(want, b.mr.Bytes()), "the read changed the memory that it read")
		}),
	},
	{
		Name: "requests.fence", Proves: "a fenced write waits for the reads before it", Features: []check.Feature{check.Connections, check.Transfers},
		Run: on(func(r *rig) {
			r.need(r.reads(), "RDMA reads")
			a, b := r.pair()
			for i := range 20 {
				want := fill(b.mr.Bytes()[:4096], byte(i))
				clear(a.mr.Bytes()[:4096])
				a.post(func(s *ibverbs.SendBatch) error {
					err := s.Read(1, b.mr.Remote().Sub(0, 4096), ibverbs.SendSignaled, a.mr.Sub(0, 4096))
					if err != nil {
						return err
					}
					return s.Write(2, b.mr.Remote().Sub(4096, 4096), ibverbs.SendSignaled|ibverbs.SendFence, a.mr.Sub(0, 4096))
				})
				r.succeed(a.sendCQ, 2)
				r.want(bytes.Equal(want, a.mr.Bytes()[:4096]), "other bytes were read")
				r.want(bytes.Equal(want, b.mr.Bytes()[4096:8192]), "the write has not the bytes that the read before it has brought")
			}
		}),
	},
	{
		Name: "requests.segments", Proves: "data is gathered from and scattered to as many segments as the device says it has", Features: all,
		Run: on(func(r *rig) {
			n := min(r.attr.MaxSGE, maxSegments)
			r.want(n >= 1, "the device says that a request has at most %d segments", r.attr.MaxSGE)
			a, b := r.pairOf(ibverbs.QPConfig{SendSegments: n, RecvSegments: n}, normal)
			sent := fill(a.mr.Bytes()[:100*n], 8)
			var from, to []ibverbs.Segment
			for i := range n {
				from = append(from, a.mr.Sub(100*i, 100))
				to = append(to, b.mr.Sub(200*(n-1-i), 100)) // backwards, with gaps
			}
			b.receive(1, to...)
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, from...) })
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
			for i := range n {
				r.want(bytes.Equal(sent[100*i:][:100], to[i].Bytes()), "segment %d of %d has other bytes", i+1, n)
			}
			if k := min(n, r.attr.MaxSGERead); r.reads() && k > 0 {
				clear(a.mr.Bytes())
				want := fill(b.mr.Bytes()[:100*k], 9)
				a.post(func(s *ibverbs.SendBatch) error {
					return s.Read(1, b.mr.Remote().Sub(0, uint64(100*k)), ibverbs.SendSignaled, from[:k]...)
				})
				r.succeed(a.sendCQ, 1)
				r.want(bytes.Equal(want, a.mr.Bytes()[:100*k]), "a read of %d segments has other bytes", k)
			}
			r.Notef("%d segments", n)
		}),
	},
	{
		Name: "requests.inline", Proves: "data that is sent inline arrives as it was when it was posted", Features: []check.Feature{check.Connections, check.Sockets},
		Run: on(func(r *rig) {
			size := r.maxInline()
			r.need(size > 0, "inline data")
			a, b := r.pairOf(ibverbs.QPConfig{MaxInline: size}, normal)
			b.receive(1, b.mr.Sub(0, size))
			memory := make([]byte, size) // not registered
			sent := fill(memory, 4)
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Send(1, ibverbs.SendSignaled|ibverbs.SendInline, ibverbs.InlineBytes(memory))
			})
			clear(memory)
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
			r.want(bytes.Equal(sent, b.mr.Bytes()[:size]), "other bytes arrived")
			r.Notef("%d bytes or more", size)
		}),
	},
	{
		Name: "requests.empty", Proves: "requests without data succeed, whatever address and key they have", Features: all,
		Do: "rdmacm finds vanished peers by empty writes (Config.KeepAlive): turn that off for this device, with a negative value.",
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(k request) bool { return !k.atomic }) {
				r.Scope(func() {
					a, b := r.pair()
					if k.receive {
						b.receive(1)
					}
					a.post(func(s *ibverbs.SendBatch) error {
						return flagged(s, k.add(s, ibverbs.RemoteBuffer{Addr: 8, RKey: 0x5A5A5A}, ibverbs.RawSegment(0, 0, 0x5A5A5A)))
					})
					r.Case(k.name, good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
				})
			}
		}),
	},
	{
		Name: "requests.unsignaled", Proves: "a request that is not signaled completes without a completion, in its order", Features: all,
		Run: on(func(r *rig) {
			a, b := r.pair()
			for range 4 * depth { // more than the queue has room for
				a.post(func(s *ibverbs.SendBatch) error {
					for id := range uint64(3) {
						if err := s.Write(10+id, b.mr.Remote().Sub(8, 8), 0, a.mr.Sub(0, 8)); err != nil {
							return err
						}
					}
					return s.Write(1, b.mr.Remote().Sub(0, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8))
				})
				r.succeed(a.sendCQ, 1)
			}
			r.nothing(a.sendCQ, "the others were not signaled")
		}),
	},
	{
		Name: "requests.both", Proves: "both ends send at the same time", Features: all,
		Run: on(func(r *rig) {
			a, b := r.pair()
			for range 50 {
				ends := []*end{a, b}
				for _, e := range ends {
					e.receive(1, e.mr.Sub(4096, 2000))
				}
				for _, e := range ends {
					fill(e.mr.Bytes()[:2000], byte(e.qp.Num()))
					e.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, e.mr.Sub(0, 2000)) })
				}
				for i, e := range ends {
					r.succeed(e.sendCQ, 1)
					r.succeed(e.recvCQ, 1)
					r.want(bytes.Equal(ends[1-i].mr.Bytes()[:2000], e.mr.Bytes()[4096:][:2000]), "other bytes arrived")
				}
			}
		}),
	},
}

// flagged makes the last request of a batch signaled.
func flagged(s *ibverbs.SendBatch, err error) error {
	if err != nil {
		return err
	}
	return s.WR(s.Len() - 1).SetFlags(ibverbs.SendSignaled)
}

// untouched fails the check unless memory is as it was allocated.
func (r *rig) untouched(b []byte, where string) {
	for i, x := range b {
		if x != 0 {
			r.Failf("the device changed byte %d %s", i, where)
		}
	}
}

// hasImm fails the check unless a receive has immediate data.
func (r *rig) hasImm(wc ibverbs.WC, opcode ibverbs.WCOpcode, imm uint32) {
	got, has := wc.Imm()
	r.want(has, "the immediate data is missing")
	r.want(got == imm, "the immediate data is %#x instead of %#x", got, imm)
	r.want(wc.Opcode() == opcode, "the opcode is %v instead of %v", wc.Opcode(), opcode)
}

// maxInline returns how many bytes the device takes inline, of a few sizes; no
// call says it.
func (r *rig) maxInline() (size int) {
	for _, n := range []int{1024, 512, 256, 128, 96, 64, 32, 16, 8} {
		r.Scope(func() {
			cq := r.cq(1)
			qp, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1, MaxInline: n})
			if err == nil {
				r.Close(qp)
				size = max(size, n)
			}
		})
		if size > 0 {
			break
		}
	}
	return size
}
