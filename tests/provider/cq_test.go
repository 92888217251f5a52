// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"fmt"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestCreateExtendedCQ(t *testing.T) {
	r := open(t)
	channel := keep(t, must(r.c.CreateCompChannel())(t))
	raw := fakelib.ResultOf[libibverbs.CompChannel](r.p.Only("ibv_create_comp_channel"))
	const masked = libibverbs.IBV_CQ_INIT_ATTR_MASK_FLAGS
	for name, tt := range map[string]struct {
		config ibverbs.CQConfig
		want   libibverbs.CqInitAttrEx
	}{
		"fields": {
			ibverbs.CQConfig{CompQueue: 9, Vector: 2, Channel: channel, Fields: ibverbs.WCStandard | ibverbs.WCWithTimestamp},
			libibverbs.CqInitAttrEx{Cqe: 9, CompVector: 2, Channel: raw, WcFlags: 0x7f | 1<<7},
		},
		"one goroutine": {
			ibverbs.CQConfig{CompQueue: 1, SingleThreaded: true},
			libibverbs.CqInitAttrEx{Cqe: 1, CompMask: masked, Flags: 1},
		},
		"overrun": {
			ibverbs.CQConfig{CompQueue: 1, IgnoreOverrun: true, SingleThreaded: true},
			libibverbs.CqInitAttrEx{Cqe: 1, CompMask: masked, Flags: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cq := must(r.c.CreateCQ(tt.config))(t)
			call := r.p.Only("ibv_create_cq_ex")
			require.Equal(t, address(r.c.Raw()), call.Arg(0))
			require.Equal(t, tt.want, *fakelib.Struct[libibverbs.CqInitAttrEx](call, 1))
			require.Equal(t, tt.config.CompQueue, cq.Cap())
			require.NoError(t, cq.Close())
			require.Equal(t, []int64{call.Result()}, r.p.Only("ibv_destroy_cq").Args())
		})
	}
}

func TestCompVectors(t *testing.T) {
	r := open(t)
	require.Equal(t, 4, r.c.CompVectors()) // as fakelib's objects.h has it
	keep(t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: 3}))(t))
	require.EqualValues(t, 3, r.p.Only("ibv_create_cq").Arg(4))
	for _, vector := range []int{-1, 4, math.MaxInt} {
		_, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: vector})
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, fmt.Sprintf("ibv_create_cq (fake0): Vector is %d, not from 0 to 3", vector))
	}
	closed := must(ibverbs.Open("fake0"))(t)
	require.NoError(t, closed.Close())
	require.Equal(t, 4, closed.CompVectors())
}

// Events are asked for of all completions, or of solicited ones alone.
func TestSolicitedOnly(t *testing.T) {
	r := open(t)
	channel := keep(t, must(r.c.CreateCompChannel())(t))
	for solicited, want := range map[bool]int64{false: 0, true: 1} {
		cq := keep(t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: channel, SolicitedOnly: solicited}))(t))
		r.p.Forget()
		for range 2 { // at once, and before arming
			r.p.Next("ibv_poll_cq", fakelib.Returns(0, 0))
		}
		r.p.Next("ibv_poll_cq", fakelib.Returns(1, 0))
		require.Equal(t, 1, must(cq.Wait(t.Context(), make([]ibverbs.WC, 1)))(t))
		require.Equal(t, []string{"ibv_poll_cq", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_poll_cq"}, r.p.Names())
		require.Equal(t, []int64{address(cq.Raw()), want}, r.p.Calls()[2].Args())
		r.p.Forget()
	}
}

func TestModerate(t *testing.T) {
	r := open(t)
	cq := r.cq()
	require.NoError(t, cq.Moderate(65535, 300*time.Microsecond))
	call := r.p.Only("ibv_modify_cq")
	require.Equal(t, address(cq.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.ModifyCqAttr{AttrMask: 1, Moderate: libibverbs.ModerateCq{CqCount: 65535, CqPeriod: 300}},
		*fakelib.Struct[libibverbs.ModifyCqAttr](call, 1))
	r.p.Next("ibv_modify_cq", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0))
	require.ErrorIs(t, cq.Moderate(1, 0), errors.ErrUnsupported)
}

// Every field that C writes is read, in the host's byte order, also where there
// are several completions.
func TestCompletionFields(t *testing.T) {
	r := open(t)
	cq := r.cq()
	const n = 4
	raw := make([]libibverbs.Wc, n)
	var written []byte
	for i := range raw {
		k := uint32(i) * 16
		raw[i] = libibverbs.Wc{
			WrId: 1<<63 + uint64(k), Opcode: ibverbs.WCRecv, VendorErr: k + 2, ByteLen: k + 3, QpNum: k + 4, SrcQp: k + 5,
			WcFlags:   libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH,
			PkeyIndex: uint16(k) + 6, Slid: uint16(k) + 7, Sl: uint8(k) + 8, DlidPathBits: uint8(k) + 9,
		}
		*raw[i].ImmData() = libibverbs.NewBe32(k + 0x01020304)
		written = append(written, fakelib.Bytes(&raw[i])...)
	}
	r.p.Next("ibv_poll_cq", fakelib.Returns(n, 0), fakelib.Writes(2, 0, written))
	wcs := make([]ibverbs.WC, n)
	require.Equal(t, n, must(cq.Poll(wcs))(t))
	for i := range wcs {
		wc, k := &wcs[i], uint32(i)*16
		imm, ok := wc.Imm()
		require.True(t, ok)
		require.EqualValues(t, k+0x01020304, imm)
		require.True(t, wc.HasGRH())
		require.Equal(t, []any{
			1<<63 + uint64(k), ibverbs.WCSuccess, ibverbs.WCRecv, k + 2, int(k + 3), k + 4, k + 5,
			libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH, uint16(k) + 6, k + 7, uint8(k) + 8, uint8(k) + 9,
		}, []any{
			wc.ID(), wc.Status(), wc.Opcode(), wc.VendorError(), wc.ByteLen(), wc.QPNum(), wc.SrcQPNum(),
			wc.Flags(), wc.PKeyIndex(), wc.SLID(), wc.SL(), wc.DLIDPathBits(),
		})
	}
}
