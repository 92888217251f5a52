// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

var datagrams = []check.Check{
	{
		Name: "datagrams.send", Proves: "a datagram arrives with its sender's number, behind the place of its header", Features: []check.Feature{check.Datagrams},
		Run: on(func(r *rig) {
			a, b, to := r.datagramPair()
			for i, n := range []int{0, 1, 100, min(1000, r.mtu())} {
				sent := fill(a.mr.Bytes()[:n], byte(i+1))
				b.receive(1, b.mr.Sub(0, ibverbs.GRHLen+n))
				a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, n)) })
				r.succeed(a.sendCQ, 1)
				wc := r.succeed(b.recvCQ, 1)[0]
				r.want(wc.ByteLen() == ibverbs.GRHLen+n, "the receive has %d bytes instead of %d", wc.ByteLen(), ibverbs.GRHLen+n)
				r.want(wc.SrcQPNum() == a.qp.Num(), "the sender is queue pair %d instead of %d", wc.SrcQPNum(), a.qp.Num())
				r.want(bytes.Equal(sent, b.mr.Bytes()[ibverbs.GRHLen:][:n]), "other bytes arrived")
			}
			if r.immediate() {
				b.receive(1, b.mr.Sub(0, ibverbs.GRHLen))
				a.post(func(s *ibverbs.SendBatch) error { return s.SendImmTo(1, to, 0x01020304, ibverbs.SendSignaled) })
				r.succeed(a.sendCQ, 1)
				r.hasImm(r.succeed(b.recvCQ, 1)[0], ibverbs.WCRecv, 0x01020304)
			}
		}),
	},
	{
		Name: "datagrams.answer", Proves: "a datagram can be answered by what its receive says", Features: []check.Feature{check.Datagrams},
		Run: on(func(r *rig) {
			a, b, to := r.datagramPair()
			b.receive(1, b.mr.Sub(0, 100))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.succeed(a.sendCQ, 1)
			wc := r.succeed(b.recvCQ, 1)[0]
			r.need(wc.HasGRH(), "route headers of datagrams")
			ah := keep(r.pd.CreateAHFromWC(&wc, b.mr.Bytes()[:ibverbs.GRHLen], r.Target().Port))(r.T)
			a.receive(1, a.mr.Sub(landing, 100))
			b.post(func(s *ibverbs.SendBatch) error {
				return s.SendTo(1, ibverbs.Destination{AH: ah, QPNum: wc.SrcQPNum(), QKey: ibverbs.DefaultQKey}, ibverbs.SendSignaled, b.mr.Sub(1000, 8))
			})
			r.succeed(b.sendCQ, 1)
			r.succeed(a.recvCQ, 1)
		}),
	},
	{
		Name: "datagrams.lost", Proves: "a datagram with a wrong key or number reaches nothing", Features: []check.Feature{check.Datagrams, check.Protection}, Matters: statusMatters,
		Run: on(func(r *rig) {
			a, b, to := r.datagramPair()
			b.receive(1, b.mr.Sub(0, 100))
			wrong := to
			wrong.QKey++
			absent := to
			absent.QPNum ^= 0x400000
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, wrong, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("datagram with a wrong Q_Key", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, absent, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("datagram to a queue pair that does not exist", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			fill(a.mr.Bytes()[:20], 7)
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 20)) })
			r.succeed(a.sendCQ, 1)
			wc := r.succeed(b.recvCQ, 1)[0]
			r.want(wc.ByteLen() == ibverbs.GRHLen+20, "a datagram with a wrong key arrived")
			r.nothing(b.recvCQ, "one datagram had the right key")
		}),
	},
	{
		Name: "datagrams.unsendable", Proves: "a datagram of a wrong local key is not sent", Features: []check.Feature{check.Datagrams, check.Protection, check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			a, _, to := r.datagramPair()
			a.post(func(s *ibverbs.SendBatch) error {
				return s.SendTo(1, to, ibverbs.SendSignaled, at(a.mr, 0, 8, a.mr.LKey()^0x5A))
			})
			r.Case("datagram, wrong local key", unsendable, statusName(r.completions(a.sendCQ, 1)[0].Status()))
		}),
	},
	{
		Name: "datagrams.room", Proves: "a datagram that its receive has no room for ends nothing", Features: []check.Feature{check.Datagrams, check.Diagnosis},
		Matters: "One datagram that is too long ends the queue pair: post receives with room for the port's MTU and 40 bytes more, as rdmacm and rsocket do.",
		Run: on(func(r *rig) {
			a, b, to := r.datagramPair()
			b.receive(1, b.mr.Sub(0, ibverbs.GRHLen+8))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 64)) })
			r.Case("datagram without room: sender", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			a.post(func(s *ibverbs.SendBatch) error { return s.SendTo(1, to, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.succeed(a.sendCQ, 1)
			v := good
			v.SoftRoCE = []string{check.Succeeds, "WCLocalQPOperation"} // until Linux 6.10
			r.Case("datagram without room: receiver", v, statusName(r.completions(b.recvCQ, 1)[0].Status()))
		}),
	},
}

// mtu returns the port's MTU in bytes.
func (r *rig) mtu() int { return must(r.dev.QueryPort(r.Target().Port))(r.T).ActiveMTU.Bytes() }

// datagramPair makes two ends for datagrams, and the way to the second.
func (r *rig) datagramPair() (a, b *end, to ibverbs.Destination) {
	r.need(r.attr.MaxAH > 0, "datagrams")
	config := ibverbs.QPConfig{Type: ibverbs.QPTypeUD}
	a, b = r.end(config), r.end(config)
	for _, e := range []*end{a, b} {
		e.addr = must(e.qp.Addr(ibverbs.QPAddrConfig{Port: r.Target().Port}))(r.T)
		ok(r.T, e.qp.Activate(e.addr, 0))
	}
	to = must(r.pd.CreateDestination(a.addr, b.addr))(r.T)
	r.Close(to.AH)
	return a, b, to
}

var unreliable = []check.Check{
	{
		Name: "unreliable.send", Proves: "messages and writes arrive over unreliable connections", Features: []check.Feature{check.Unreliable},
		Run: on(func(r *rig) {
			a, b := r.unreliablePair()
			for i, n := range []int{0, 8, landing} {
				sent := fill(a.mr.Bytes()[:n], byte(i+1))
				b.receive(1, b.mr.Sub(0, landing))
				a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, n)) })
				r.succeed(a.sendCQ, 1)
				wc := r.succeed(b.recvCQ, 1)[0]
				r.want(wc.ByteLen() == n && bytes.Equal(sent, b.mr.Bytes()[:n]), "other bytes arrived")
			}
			sent := fill(a.mr.Bytes()[:100], 9)
			b.receive(1)
			a.post(func(s *ibverbs.SendBatch) error {
				return errors.Join(s.Write(1, b.mr.Remote().Sub(landing, 100), 0, a.mr.Sub(0, 100)), s.Send(1, ibverbs.SendSignaled))
			})
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
			r.want(bytes.Equal(sent, b.mr.Bytes()[landing:][:100]), "other bytes were written")
		}),
	},
	{
		Name: "unreliable.lost", Proves: "what a peer refuses over an unreliable connection is lost, and ends nothing", Features: []check.Feature{check.Unreliable}, Matters: statusMatters,
		Run: on(func(r *rig) {
			a, b := r.unreliablePair()
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Write(1, cut(withKey(b.mr.Remote(), b.mr.RKey()^0x5A)), ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
			r.Case("wrong remote key over an unreliable connection", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("no receive over an unreliable connection", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			r.untouched(b.mr.Bytes(), "with a wrong key")
			r.inState(b, ibverbs.QPStateRTS)
			b.receive(1, b.mr.Sub(0, 8))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
		}),
	},
}

// unreliablePair makes a pair with an unreliable connection.
func (r *rig) unreliablePair() (a, b *end) {
	r.need(!r.iWARP(), "unreliable connections")
	cq := r.cq(1)
	qp, err := r.pd.CreateQP(ibverbs.QPConfig{Type: ibverbs.QPTypeUC, SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1})
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
		r.Lacks("unreliable connections")
	}
	keep(qp, err)(r.T)
	return r.pairOf(ibverbs.QPConfig{Type: ibverbs.QPTypeUC}, normal)
}
