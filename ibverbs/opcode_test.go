// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

const (
	// rcOps are what any device with ibv_wr_* has for reliable connections.
	rcOps = libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
		libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_READ |
		libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
		libibverbs.IBV_QP_EX_WITH_LOCAL_INV | libibverbs.IBV_QP_EX_WITH_BIND_MW | libibverbs.IBV_QP_EX_WITH_SEND_WITH_INV

	fullAccess = anyAccess | ibverbs.AccessRemoteAtomic | ibverbs.AccessWindowBind
)

// paths are the two ways to post.
var paths = map[string]libibverbs.QpCreateSendOpsFlags{"ibv_post_send": 0, "ibv_wr": rcOps}

// opEnd makes an end that is not connected, with all access and the send
// operations.
func (r *rig) opEnd(ops libibverbs.QpCreateSendOpsFlags, access ibverbs.AccessFlags) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil), mr: r.alloc(mrSize, access)}
	e.qp = r.qp(ibverbs.QPConfig{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, RecvQueue: depth,
		SendSegments: segments, RecvSegments: segments, MaxInline: inline, SendOps: ops,
	})
	e.send = must(ibverbs.NewSendBatch(2*depth, 2*segments))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, segments))(r.t)
	return e
}

// opPair makes two of them that are connected, and allow each other the access.
func (r *rig) opPair(ops libibverbs.QpCreateSendOpsFlags, access ibverbs.AccessFlags) (a, b *end) {
	r.t.Helper()
	a, b = r.opEnd(ops, access), r.opEnd(ops, access)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	for _, e := range []*end{a, b} {
		require.NoError(r.t, e.qp.ModifyRaw(
			&libibverbs.QpAttr{QpAccessFlags: access &^ ibverbs.AccessWindowBind}, libibverbs.IBV_QP_ACCESS_FLAGS))
	}
	return a, b
}

// done posts one request and returns its completion, which must be good.
func (e *end) done(t testing.TB, fill func(s *ibverbs.SendBatch) error) ibverbs.WC {
	t.Helper()
	e.postSend(t, fill)
	return collectOK(t, e.sendCQ, 1)[0]
}

func TestOpcodes(t *testing.T) {
	r := open(t)
	const signaled = ibverbs.SendSignaled
	for name, ops := range paths {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.opPair(ops, fullAccess)
			from := []ibverbs.Segment{a.mr.Sub(0, 3000), a.mr.Sub(5000, 40), a.mr.Sub(9000, 1)} // of different lengths
			small := []ibverbs.Segment{a.mr.Sub(3, 5), a.mr.Sub(100, 7)}
			received := func(t testing.TB, op ibverbs.WCOpcode, want []byte) *ibverbs.WC {
				t.Helper()
				wc := &collectOK(t, b.recvCQ, 1)[0]
				require.Equal(t, op, wc.Opcode())
				require.Equal(t, len(want), wc.ByteLen())
				return wc
			}
			prepare := func(seed byte) {
				pattern(a.mr.Bytes(), seed)
				clear(b.mr.Bytes())
			}
			holds := func(t testing.TB, want []byte, offset int) {
				t.Helper()
				require.True(t, bytes.Equal(want, b.mr.Sub(offset, len(want)).Bytes()))
			}

			for name, segments := range map[string][]ibverbs.Segment{"send": from, "send one": from[:1], "send nothing": nil} {
				t.Run(name, func(t *testing.T) {
					send := func(s *ibverbs.SendBatch) error { return s.Send(1, signaled, segments...) }
					a.asks(t, send)
					prepare(byte(len(name)))
					b.postRecv(t, 2, b.mr.All())
					wc := a.done(t, send)
					require.Equal(t, ibverbs.WCSend, wc.Opcode())
					received(t, ibverbs.WCRecv, joined(segments))
					holds(t, joined(segments), 0)
				})
			}
			t.Run("send inline", func(t *testing.T) {
				send := func(s *ibverbs.SendBatch) error { return s.Send(1, signaled|ibverbs.SendInline, small...) }
				a.asks(t, send)
				prepare(2)
				b.postRecv(t, 2, b.mr.All())
				a.done(t, send)
				received(t, ibverbs.WCRecv, joined(small))
				holds(t, joined(small), 0)
			})
			t.Run("send imm", func(t *testing.T) {
				send := func(s *ibverbs.SendBatch) error { return s.SendImm(1, 0xA1B2C3D4, signaled, from...) }
				a.asks(t, send)
				prepare(3)
				b.postRecv(t, 2, b.mr.All())
				a.done(t, send)
				imm, ok := received(t, ibverbs.WCRecv, joined(from)).Imm()
				require.True(t, ok)
				require.EqualValues(t, uint32(0xA1B2C3D4), imm)
				holds(t, joined(from), 0)
			})
			t.Run("write", func(t *testing.T) {
				prepare(4)
				wc := a.done(t, func(s *ibverbs.SendBatch) error {
					return s.Write(1, b.mr.Remote().Sub(77, 5000), signaled, from...)
				})
				require.Equal(t, ibverbs.WCWrite, wc.Opcode())
				holds(t, joined(from), 77)
			})
			t.Run("write nothing", func(t *testing.T) {
				a.done(t, func(s *ibverbs.SendBatch) error { return s.Write(1, b.mr.Remote(), signaled) })
			})
			t.Run("write inline", func(t *testing.T) {
				prepare(5)
				a.done(t, func(s *ibverbs.SendBatch) error {
					return s.Write(1, b.mr.Remote(), signaled|ibverbs.SendInline, small...)
				})
				holds(t, joined(small), 0)
			})
			t.Run("write imm", func(t *testing.T) {
				write := func(s *ibverbs.SendBatch) error {
					return s.WriteImm(1, b.mr.Remote(), 0x01020304, signaled, from...)
				}
				a.asks(t, write)
				prepare(6)
				b.postRecv(t, 2)
				a.done(t, write)
				imm, ok := received(t, ibverbs.WCRecvImm, joined(from)).Imm()
				require.True(t, ok)
				require.EqualValues(t, 0x01020304, imm)
				holds(t, joined(from), 0)
			})
			t.Run("read", func(t *testing.T) {
				pattern(b.mr.Bytes(), 7)
				clear(a.mr.Bytes())
				wc := a.done(t, func(s *ibverbs.SendBatch) error {
					return s.Read(1, b.mr.Remote().Sub(9, 4000), signaled, from...)
				})
				require.Equal(t, ibverbs.WCRead, wc.Opcode())
				holds(t, joined(from), 9)
			})
			t.Run("atomics", func(t *testing.T) {
				word, old := b.mr.Sub(16, 8).Bytes(), a.mr.Sub(24, 8)
				at := b.mr.Remote().Sub(16, 8)
				binary.NativeEndian.PutUint64(word, 41)
				for _, step := range []struct {
					op        ibverbs.WCOpcode
					add       func(s *ibverbs.SendBatch) error
					old, then uint64
				}{
					{ibverbs.WCFetchAdd, func(s *ibverbs.SendBatch) error { return s.FetchAdd(1, at, 1<<40, signaled, old) }, 41, 41 + 1<<40},
					{ibverbs.WCCompareSwap, func(s *ibverbs.SendBatch) error { return s.CompareSwap(1, at, 41, 7, signaled, old) }, 41 + 1<<40, 41 + 1<<40},
					{ibverbs.WCCompareSwap, func(s *ibverbs.SendBatch) error { return s.CompareSwap(1, at, 41+1<<40, 7, signaled, old) }, 41 + 1<<40, 7},
				} {
					wc := a.done(t, step.add)
					require.Equal(t, step.op, wc.Opcode())
					require.Equal(t, step.old, binary.NativeEndian.Uint64(old.Bytes()))
					require.Equal(t, step.then, binary.NativeEndian.Uint64(word))
				}
			})
			t.Run("changed in place", func(t *testing.T) {
				prepare(8)
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					return errors.Join(s.Write(1, b.mr.Remote(), 0, a.mr.Sub(0, 10)), s.Write(2, b.mr.Remote(), signaled, a.mr.Sub(0, 10)))
				})
				collectOK(t, a.sendCQ, 1)
				second := a.send.WR(1)
				require.NoError(t, second.SetRemote(b.mr.Remote().Sub(1000, 100)))
				require.NoError(t, second.SetSegments(a.mr.Sub(50, 100)))
				require.NoError(t, second.SetID(99))
				must(a.qp.PostSend(a.send))(t)
				require.EqualValues(t, 99, new(collectOK(t, a.sendCQ, 1)[0]).ID())
				holds(t, a.mr.Sub(50, 100).Bytes(), 1000)
				holds(t, a.mr.Sub(0, 10).Bytes(), 0)
			})
		})
	}
}

// window binds a window of b's that peers may write.
func window(t testing.TB, r *rig, b *end) *ibverbs.MW {
	t.Helper()
	r.device.HaveAttr(t, r.c, &r.attr, testdevice.Windows)
	mw := must(r.pd.AllocMW(ibverbs.MWType2))(t)
	r.cleanup(mw)
	wc := b.done(t, func(s *ibverbs.SendBatch) error {
		return s.BindMW(5, mw, ibverbs.Binding{Memory: b.mr.Sub(100, 1000), Access: ibverbs.AccessRemoteWrite}, ibverbs.SendSignaled)
	})
	require.Equal(t, ibverbs.WCBindMW, wc.Opcode())
	require.EqualValues(t, 5, wc.ID())
	return mw
}

// A window lets peers write until it is made invalid, by either side.
func TestMemoryWindows(t *testing.T) {
	r := open(t)
	for name, ops := range paths {
		for end, invalidate := range map[string]func(t *testing.T, a, b *end, rkey uint32){
			"local": func(t *testing.T, _, b *end, rkey uint32) {
				wc := b.done(t, func(s *ibverbs.SendBatch) error { return s.LocalInv(6, rkey, ibverbs.SendSignaled) })
				require.Equal(t, ibverbs.WCLocalInv, wc.Opcode())
			},
			"remote": func(t *testing.T, a, b *end, rkey uint32) {
				b.postRecv(t, 7, b.mr.Sub(5000, 100))
				a.done(t, func(s *ibverbs.SendBatch) error {
					return s.SendInv(6, rkey, ibverbs.SendSignaled, a.mr.Sub(0, 10))
				})
				wc := collectOK(t, b.recvCQ, 1)[0]
				if got, ok := wc.InvalidatedRKey(); ok {
					require.Equal(t, rkey, got)
				} else { // Soft-RoCE gives the flag the value that it has inside the kernel
					require.NotZero(t, wc.Flags()&libibverbs.IBV_WC_IP_CSUM_OK)
				}
				require.Equal(t, a.mr.Sub(0, 10).Bytes(), b.mr.Sub(5000, 10).Bytes())
			},
		} {
			t.Run(name+"/"+end, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(ops, fullAccess)
				mw := window(t, r, b)
				write := func(s *ibverbs.SendBatch) error {
					return s.Write(1, mw.Remote().Sub(20, 200), ibverbs.SendSignaled, a.mr.Sub(0, 200))
				}
				pattern(a.mr.Bytes(), 9)
				a.done(t, write)
				require.Equal(t, a.mr.Sub(0, 200).Bytes(), b.mr.Sub(120, 200).Bytes())

				invalidate(t, a, b, mw.RKey())
				a.postSend(t, write)
				requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
			})
		}
	}
}

// late makes a connected pair with an operation that not every kernel and
// library has; without it, nil, and the error must say that.
func late(t *testing.T, r *rig, op libibverbs.QpCreateSendOpsFlags, access ibverbs.AccessFlags) (a, b *end) {
	t.Helper()
	if testdevice.Soft() {
		r.have(testdevice.Operations(op))
	}
	cq := r.cq(1, nil)
	qp, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, SendOps: op})
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Logf("not here: %v", err)
		return nil, nil
	}
	require.NoError(t, qp.Close())
	mr, err := r.pd.Alloc(64, access)
	if err != nil {
		t.Logf("not with this kernel: %v", err)
		return nil, nil
	}
	require.NoError(t, mr.Close())
	return r.opPair(rcOps|op, access)
}

func TestAtomicWrite(t *testing.T) {
	r := open(t)
	a, b := late(t, r, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE, fullAccess)
	if a == nil {
		return
	}
	data := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.AtomicWrite(1, b.mr.Remote().Sub(64, 8), data, ibverbs.SendSignaled)
	})
	wc := collect(t, a.sendCQ, 1)[0]
	if wc.Err() != nil && !testdevice.Soft() { // the library has it, the kernel has not
		t.Logf("not with this kernel: %v", wc.Err())
		require.ErrorIs(t, wc.Err(), ibverbs.WCLocalQPOperation)
		return
	}
	require.NoError(t, wc.Err())
	require.Equal(t, ibverbs.WCAtomicWrite, wc.Opcode())
	require.Equal(t, data[:], b.mr.Sub(64, 8).Bytes())
}

func TestFlushMemory(t *testing.T) {
	r := open(t)
	a, b := late(t, r, libibverbs.IBV_QP_EX_WITH_FLUSH, fullAccess|ibverbs.AccessFlushGlobal)
	if a == nil {
		return
	}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		to := b.mr.Remote().Sub(64, 1000)
		return errors.Join(s.Write(1, to, 0, a.mr.Sub(0, 1000)), s.Flush(2, to, ibverbs.FlushGlobal, ibverbs.SendSignaled),
			s.FlushRegion(3, to, ibverbs.FlushGlobal, ibverbs.SendSignaled))
	})
	for i, wc := range collectOK(t, a.sendCQ, 2) {
		require.Equal(t, ibverbs.WCFlush, wc.Opcode())
		require.EqualValues(t, i+2, wc.ID())
	}
	require.Equal(t, a.mr.Sub(0, 1000).Bytes(), b.mr.Sub(64, 1000).Bytes())

	// A region must allow it.
	plain := r.alloc(64, anyAccess)
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Flush(4, plain.Remote(), ibverbs.FlushGlobal, 0) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 4, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
}
