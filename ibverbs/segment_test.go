// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Memory that is not registered is sent inline, and can be changed at once.
func TestInlineBytesArrive(t *testing.T) {
	r := open(t)
	const rcOps = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
	for name, ops := range map[string]libibverbs.QpCreateSendOpsFlags{"ibv_post_send": 0, "ibv_wr": rcOps} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.endWithOps(ops), r.endWithOps(ops)
			r.connect(a, linkTo(b.qp))
			r.connect(b, linkTo(a.qp))
			b.postRecv(t, 1, b.mr.Sub(0, 100))
			b.postRecv(t, 2)
			copy(a.mr.Bytes(), "region")
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				var data [8]byte
				copy(data[:], "anything")
				const flags = ibverbs.SendSignaled | ibverbs.SendInline
				err := errors.Join(
					s.Send(1, flags, ibverbs.InlineBytes(data[:3]), a.mr.Sub(0, 6), ibverbs.InlineBytes(data[3:])),
					s.Write(2, b.mr.Remote().Sub(200, 8), flags, ibverbs.InlineBytes(data[:])),
					s.WriteImm(3, b.mr.Remote().Sub(300, 0), 7, flags, ibverbs.InlineBytes(nil)),
				)
				clear(data[:])
				return err
			})
			collectOK(t, a.sendCQ, 3)
			require.Equal(t, 14, collectOK(t, b.recvCQ, 2)[0].ByteLen())
			require.Equal(t, "anyregionthing", string(b.mr.Bytes()[:14]))
			require.Equal(t, "anything", string(b.mr.Bytes()[200:208]))

			// The same batch, with other bytes.
			require.NoError(t, a.send.WR(1).SetSegments(ibverbs.InlineBytes([]byte("else"))))
			b.postRecv(t, 1, b.mr.Sub(0, 100))
			b.postRecv(t, 2)
			must(a.qp.PostSend(a.send))(t)
			collectOK(t, a.sendCQ, 3)
			require.Equal(t, "elsehing", string(b.mr.Bytes()[200:208]))
			collectOK(t, b.recvCQ, 2)
		})
	}
}

// endWithOps is end with a queue pair that posts with ibv_wr_*, if it has ops.
func (r *rig) endWithOps(ops libibverbs.QpCreateSendOpsFlags) *end {
	r.t.Helper()
	e := r.end(nil)
	e.qp = r.qp(ibverbs.QPConfig{
		SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, RecvQueue: depth,
		SendSegments: segments, RecvSegments: segments, MaxInline: inline, SendOps: ops,
	})
	return e
}

// Memory is named by its address and key alone, as if something else had
// registered it.
func TestRawSegmentArrives(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	want := pattern(a.mr.Sub(64, 32).Bytes(), 5)
	b.postRecv(t, 1, ibverbs.RawSegment(b.mr.Remote().Addr, b.mr.Len(), b.mr.LKey()).Sub(100, 50))
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Send(1, ibverbs.SendSignaled, ibverbs.RawSegment(a.mr.Remote().Addr+64, 32, a.mr.LKey()))
	})
	collectOK(t, a.sendCQ, 1)
	collectOK(t, b.recvCQ, 1)
	require.Equal(t, want, b.mr.Sub(100, 50).Sub(0, 32).Bytes())
}

// Ranges of the peer's memory that its region does not have, and those of this
// side, which Go refuses but for what C is given.
func TestOutOfRange(t *testing.T) {
	r := open(t)
	for what, place := range map[string]func(start uint64) uint64{
		"in front":              func(start uint64) uint64 { return start - 8 },
		"over the beginning":    func(start uint64) uint64 { return start - 4 },
		"over the end":          func(start uint64) uint64 { return start + mrSize - 4 },
		"behind":                func(start uint64) uint64 { return start + mrSize },
		"at address 0":          func(uint64) uint64 { return 0 },
		"over the last address": func(uint64) uint64 { return math.MaxUint64 - 3 },
	} {
		for name, k := range requests {
			at := place
			if k.atomic { // must be aligned
				at = func(start uint64) uint64 { return place(start) &^ 7 }
				if what == "over the beginning" || what == "over the end" || what == "over the last address" {
					continue
				}
			}
			if k.remote {
				t.Run(what+"/remote/"+name, func(t *testing.T) {
					r := r.sub(t)
					a, b := r.opPair(0, fullAccess)
					k.spoiled(t, a, b, func(wr *libibverbs.SendWr) {
						addr, _ := k.remoteOf(wr)
						*addr = at(b.mr.Remote().Addr)
					})
					requireVerdict(t, a.sendCQ, 1, a.qp, remoteAccess, r)
				})
			}
			t.Run(what+"/local/"+name, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				k.spoiled(t, a, b, func(wr *libibverbs.SendWr) { sge(wr).Addr = place(a.mr.Remote().Addr) })
				v := localProtection
				if !k.result {
					v.rxe = instead(ibverbs.WCLocalProtection, ibverbs.WCFlushed)
				}
				requireVerdict(t, a.sendCQ, 1, a.qp, v, r)
			})
		}
	}
}

// Nothing is sent, written or read: addresses and keys do not matter.
func TestZeroLength(t *testing.T) {
	r := open(t)
	for name, k := range requests {
		if k.atomic {
			continue
		}
		for what, spoil := range map[string]func(wr *libibverbs.SendWr){
			"no segment":    func(wr *libibverbs.SendWr) { wr.NumSge, wr.SgList = 0, nil },
			"empty segment": func(wr *libibverbs.SendWr) { sge(wr).Length = 0 },
			"outside of the region": func(wr *libibverbs.SendWr) {
				sge(wr).Length, sge(wr).Addr = 0, 16
				if k.remote {
					addr, _ := k.remoteOf(wr)
					*addr = 16
				}
			},
			"wrong remote key": func(wr *libibverbs.SendWr) {
				sge(wr).Length = 0
				if k.remote {
					_, rkey := k.remoteOf(wr)
					*rkey ^= 0x5A
				}
			},
			"wrong local key": func(wr *libibverbs.SendWr) { sge(wr).Length, sge(wr).Lkey = 0, sge(wr).Lkey^0x5A },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				k.spoiled(t, a, b, func(wr *libibverbs.SendWr) {
					spoil(wr)
					wr.SendFlags |= ibverbs.SendSignaled
				})
				requireVerdict(t, a.sendCQ, 1, a.qp, good, r)
				if k.receive {
					wc := collectOK(t, b.recvCQ, 1)[0]
					require.Zero(t, wc.ByteLen())
				}
			})
		}
	}
}

// Atomics that Go refuses are refused by C or by the device too.
func TestBadAtomics(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, k := range requests {
		if !k.atomic {
			continue
		}
		for what, tt := range map[string]struct {
			spoil func(wr *libibverbs.SendWr)
			want  ibverbs.WCStatus // unless C refuses
		}{
			"not aligned": {func(wr *libibverbs.SendWr) { wr.Wr.Atomic().RemoteAddr += 4 }, ibverbs.WCRemoteInvalidRequest},
			"not aligned, wrong remote key": {func(wr *libibverbs.SendWr) {
				wr.Wr.Atomic().RemoteAddr++
				wr.Wr.Atomic().Rkey ^= 0x5A
			}, ibverbs.WCRemoteInvalidRequest},
			"result too small": {func(wr *libibverbs.SendWr) { sge(wr).Length = 4 }, ibverbs.WCLocalLength},
			"no result":        {func(wr *libibverbs.SendWr) { wr.NumSge, wr.SgList = 0, nil }, ibverbs.WCLocalLength},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				require.NoError(t, k.add(a.send, b.mr.Remote().Sub(64, 8), a.mr.Sub(64, 8)))
				tt.spoil(&ibverbs.RawSends(a.send)[0])
				if _, err := a.qp.PostSend(a.send); err != nil {
					require.ErrorIs(t, err, syscall.EINVAL)
					require.ErrorContains(t, err, "request 0 of the batch (ID 1): ibv_post_send (QP ")
					require.Equal(t, ibverbs.QPStateRTS, must(a.qp.State())(t))
					return
				}
				requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, tt.want, tt.want.Class())
			})
		}
	}
}
