package ibverbs_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

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
					wr.SendFlags |= uint32(ibverbs.SendSignaled)
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
