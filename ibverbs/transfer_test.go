// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestSendRecv(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	const imm = 0xA1B2C3D4
	tests := map[string]struct {
		send []ibverbs.Segment // of a
		recv []ibverbs.Segment // of b
		add  func(s *ibverbs.SendBatch, segments ...ibverbs.Segment) error
		imm  bool
	}{
		"send": {
			send: []ibverbs.Segment{a.mr.Sub(0, 1000)}, recv: []ibverbs.Segment{b.mr.Sub(0, 1000)},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled, g...)
			},
		},
		"into a longer receive": {
			send: []ibverbs.Segment{a.mr.Sub(1, 10)}, recv: []ibverbs.Segment{b.mr.Sub(3, 100)},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled, g...)
			},
		},
		"nothing": {
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled, g...)
			},
		},
		"several packets": {
			send: []ibverbs.Segment{a.mr.All()}, recv: []ibverbs.Segment{b.mr.All()},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled, g...)
			},
		},
		"immediate": {
			send: []ibverbs.Segment{a.mr.Sub(0, 8)}, recv: []ibverbs.Segment{b.mr.Sub(0, 8)}, imm: true,
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.SendImm(1, imm, ibverbs.SendSignaled, g...)
			},
		},
		"immediate only": {
			imm: true,
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.SendImm(1, imm, ibverbs.SendSignaled, g...)
			},
		},
		"segments": {
			send: []ibverbs.Segment{a.mr.Sub(0, 100), a.mr.Sub(5000, 1), a.mr.Sub(300, 0), a.mr.Sub(9000, 3000)},
			recv: []ibverbs.Segment{b.mr.Sub(7, 50), b.mr.Sub(1000, 3051)},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled, g...)
			},
		},
		"inline": {
			send: []ibverbs.Segment{a.mr.Sub(0, 40), a.mr.Sub(100, 24)}, recv: []ibverbs.Segment{b.mr.Sub(0, 64)},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled|ibverbs.SendInline, g...)
			},
		},
		"solicited": {
			send: []ibverbs.Segment{a.mr.Sub(0, 4)}, recv: []ibverbs.Segment{b.mr.Sub(0, 4)},
			add: func(s *ibverbs.SendBatch, g ...ibverbs.Segment) error {
				return s.Send(1, ibverbs.SendSignaled|ibverbs.SendSolicited|ibverbs.SendFence, g...)
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pattern(a.mr.Bytes(), byte(len(name)))
			clear(b.mr.Bytes())
			sent := joined(tt.send)
			a.send.Reset()
			require.NoError(t, tt.add(a.send, tt.send...))
			r.device.HaveAttr(t, r.c, &r.attr, need(ibverbs.RawSends(a.send))...) // before there is a receive
			b.postRecv(t, 2, tt.recv...)
			a.postSend(t, func(s *ibverbs.SendBatch) error { return tt.add(s, tt.send...) })

			wc := collectOK(t, a.sendCQ, 1)[0]
			require.EqualValues(t, 1, wc.ID())
			require.Equal(t, ibverbs.WCSend, wc.Opcode())
			require.Equal(t, a.qp.Num(), wc.QPNum())

			wc = collectOK(t, b.recvCQ, 1)[0]
			require.EqualValues(t, 2, wc.ID())
			require.Equal(t, ibverbs.WCRecv, wc.Opcode())
			require.Equal(t, b.qp.Num(), wc.QPNum())
			require.Equal(t, len(sent), wc.ByteLen())
			got, ok := wc.Imm()
			require.Equal(t, tt.imm, ok)
			if ok {
				require.Equal(t, uint32(imm), got)
			}
			require.True(t, bytes.Equal(sent, joined(tt.recv)[:len(sent)]))
		})
	}
}

// joined returns a copy of the segments' memory.
func joined(segments []ibverbs.Segment) []byte {
	var all []byte
	for _, s := range segments {
		all = append(all, s.Bytes()...)
	}
	return all
}

func TestRDMA(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	const n = 10000
	local := []ibverbs.Segment{a.mr.Sub(0, n/2), a.mr.Sub(n, n/2)}
	remote := b.mr.Remote().Sub(77, n)
	const imm = 0x01020304

	t.Run("write", func(t *testing.T) {
		want := pattern(make([]byte, n), 1)
		copy(local[0].Bytes(), want)
		copy(local[1].Bytes(), want[n/2:])
		a.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.Write(1, remote, ibverbs.SendSignaled, local...)
		})
		wc := collectOK(t, a.sendCQ, 1)[0]
		require.Equal(t, ibverbs.WCWrite, wc.Opcode())
		require.True(t, bytes.Equal(want, b.mr.Sub(77, n).Bytes()))
		require.Zero(t, must(b.recvCQ.Poll(make([]ibverbs.WC, 1)))(t), "the peer learns nothing")
	})
	t.Run("write imm", func(t *testing.T) {
		want := pattern(make([]byte, n), 2)
		copy(local[0].Bytes(), want)
		copy(local[1].Bytes(), want[n/2:])
		b.postRecv(t, 5)
		a.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.WriteImm(1, remote, imm, ibverbs.SendSignaled, local...)
		})
		require.Equal(t, ibverbs.WCWrite, new(collectOK(t, a.sendCQ, 1)[0]).Opcode())
		wc := collectOK(t, b.recvCQ, 1)[0]
		require.EqualValues(t, 5, wc.ID())
		require.Equal(t, ibverbs.WCRecvImm, wc.Opcode())
		require.Equal(t, n, wc.ByteLen())
		got, ok := wc.Imm()
		require.True(t, ok)
		require.EqualValues(t, imm, got)
		require.True(t, bytes.Equal(want, b.mr.Sub(77, n).Bytes()))
	})
	t.Run("read", func(t *testing.T) {
		want := pattern(b.mr.Sub(77, n).Bytes(), 3)
		clear(a.mr.Bytes())
		a.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.Read(1, remote, ibverbs.SendSignaled, local...)
		})
		wc := collectOK(t, a.sendCQ, 1)[0]
		require.Equal(t, ibverbs.WCRead, wc.Opcode())
		require.Equal(t, n, wc.ByteLen())
		require.True(t, bytes.Equal(want, joined(local)))
	})
	t.Run("inline write", func(t *testing.T) {
		want := pattern(a.mr.Sub(0, inline).Bytes(), 4)
		a.postSend(t, func(s *ibverbs.SendBatch) error {
			return s.Write(1, b.mr.Remote(), ibverbs.SendSignaled|ibverbs.SendInline, a.mr.Sub(0, inline))
		})
		collectOK(t, a.sendCQ, 1)
		require.Equal(t, want, b.mr.Sub(0, inline).Bytes())
	})
}

// The data of an inline request is taken while it is posted.
func TestInlineIsCopied(t *testing.T) {
	r := open(t)
	r.have(testdevice.Inline(inline))
	a, b := r.pair(nil)
	message := must(r.pd.Alloc(inline, 0))(t)
	want := bytes.Clone(pattern(message.Bytes(), 9))
	b.postRecv(t, 1, b.mr.All())

	a.send.Reset()
	require.NoError(t, a.send.Send(1, ibverbs.SendSignaled|ibverbs.SendInline, message.All()))
	_, err := a.qp.PostSend(a.send)
	require.NoError(t, err)
	clear(message.Bytes())
	require.NoError(t, message.Close())
	collectOK(t, b.recvCQ, 1)
	require.Equal(t, want, b.mr.Sub(0, inline).Bytes())

	// Posting it again would read memory that is gone.
	_, err = a.qp.PostSend(a.send)
	require.ErrorContains(t, err, "a request uses an object that was closed: MR ")
	require.ErrorContains(t, err, "file already closed")
	collectOK(t, a.sendCQ, 1)
}

// A batch goes to the queue whole, and completes in its order.
func TestBatchOf32(t *testing.T) {
	r := open(t)
	r.have(testdevice.Immediate)
	a, b := r.pair(nil)
	const n, size = 32, 100
	for round := range 4 {
		b.recv.Reset()
		a.send.Reset()
		for i := range n {
			require.NoError(t, b.recv.Recv(uint64(1000+i), b.mr.Sub(i*size, size)))
			flags := ibverbs.SendFlags(0)
			if i%8 == 7 {
				flags = ibverbs.SendSignaled
			}
			require.NoError(t, a.send.SendImm(uint64(i), uint32(round), flags, a.mr.Sub(i*size, size)))
		}
		pattern(a.mr.Bytes(), byte(round))
		require.Equal(t, n, must(b.qp.PostRecv(b.recv))(t))
		require.Equal(t, n, must(a.qp.PostSend(a.send))(t))

		for i, wc := range collectOK(t, b.recvCQ, n) {
			require.EqualValues(t, 1000+i, wc.ID())
		}
		for i, wc := range collectOK(t, a.sendCQ, n/8) {
			require.EqualValues(t, i*8+7, wc.ID(), "only signaled ones complete")
		}
		require.Zero(t, must(a.sendCQ.Poll(make([]ibverbs.WC, 1)))(t))
		require.True(t, bytes.Equal(a.mr.Sub(0, n*size).Bytes(), b.mr.Sub(0, n*size).Bytes()))
	}
}

func TestSignalAll(t *testing.T) {
	r := open(t)
	cq := r.cq(8, nil)
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 4, RecvQueue: 4, SignalAll: true})
	e := &end{rig: r, qp: qp}
	r.connect(e, linkTo(qp)) // with itself
	recv := must(ibverbs.NewRecvBatch(1, 0))(t)
	require.NoError(t, recv.Recv(1))
	must(qp.PostRecv(recv))(t)
	send := must(ibverbs.NewSendBatch(1, 0))(t)
	require.NoError(t, send.Send(2, 0))
	must(qp.PostSend(send))(t)
	collectOK(t, cq, 2)
}
