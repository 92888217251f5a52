// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/caps"
)

func TestDeviceAttr(t *testing.T) {
	raw := libibverbs.DeviceAttrEx{
		OrigAttr: libibverbs.DeviceAttr{
			MaxQp: 1, MaxResRdAtom: 2, MaxMcastQpAttach: 3, MaxTotalMcastQpAttach: 4, LocalCaAckDelay: 5, PhysPortCnt: 6,
		},
		OdpCaps: libibverbs.OdpCaps{
			GeneralCaps:      3,
			PerTransportCaps: libibverbs.OdpCapsPerTransportCaps{RcOdpCaps: 1, UcOdpCaps: 2, UdOdpCaps: 4},
		},
		CompletionTimestampMask: 1<<63 - 1,
		HcaCoreClock:            156250,
		DeviceCapFlagsEx:        1<<34 | 1<<20,
		TsoCaps:                 libibverbs.TsoCaps{MaxTso: 1 << 18, SupportedQpts: 1 << 8},
		RssCaps: libibverbs.RssCaps{
			SupportedQpts: 1 << 8, MaxRwqIndirectionTables: 7, MaxRwqIndirectionTableSize: 8,
			RxHashFieldsMask: 1 << 31, RxHashFunction: 1,
		},
		MaxWqTypeRq:      9,
		PacketPacingCaps: libibverbs.PacketPacingCaps{QpRateLimitMin: 10, QpRateLimitMax: 11, SupportedQpts: 1 << 2},
		RawPacketCaps:    4,
		TmCaps:           libibverbs.TmCaps{MaxRndvHdrSize: 12, MaxNumTags: 13, Flags: 1, MaxOps: 14, MaxSge: 15},
		CqModCaps:        libibverbs.CqModerationCaps{MaxCqCount: 16, MaxCqPeriod: 17},
		MaxDmSize:        18,
		PciAtomicCaps:    libibverbs.PciAtomicCaps{FetchAdd: 1, Swap: 2, CompareSwap: 4},
		XrcOdpCaps:       8,
		PhysPortCntEx:    300,
	}
	got := deviceAttr(&raw)
	require.Equal(t, DeviceAttr{
		MaxQP: 1, MaxResReadAtomic: 2, MaxMcastQPAttach: 3, MaxTotalMcastQPAttach: 4, LocalAckDelay: 5,
		Ports:                   300,
		Capabilities:            caps.RawScatterFCS | caps.XRC,
		CompletionTimestampMask: 1<<63 - 1,
		CoreClock:               156250,
		MaxWQ:                   9,
		MaxDeviceMemory:         18,
		RawPacket:               libibverbs.IBV_RAW_PACKET_CAP_IP_CSUM,
		ODP: caps.ODP{
			General: libibverbs.IBV_ODP_SUPPORT | libibverbs.IBV_ODP_SUPPORT_IMPLICIT,
			RC:      libibverbs.IBV_ODP_SUPPORT_SEND, UC: libibverbs.IBV_ODP_SUPPORT_RECV,
			UD: libibverbs.IBV_ODP_SUPPORT_WRITE, XRC: libibverbs.IBV_ODP_SUPPORT_READ,
		},
		TSO: caps.TSO{MaxPayload: 1 << 18, QPTypes: 1 << 8},
		RSS: caps.RSS{
			QPTypes: 1 << 8, MaxIndirectionTables: 7, MaxIndirectionTableSize: 8,
			HashFields: libibverbs.IBV_RX_HASH_INNER, HashFunctions: libibverbs.IBV_RX_HASH_FUNC_TOEPLITZ,
		},
		PacketPacing: caps.PacketPacing{MinRate: 10, MaxRate: 11, QPTypes: 1 << 2},
		TagMatching:  caps.TagMatching{MaxRendezvousHeader: 12, MaxTags: 13, Flags: libibverbs.IBV_TM_CAP_RC, MaxOps: 14, MaxSGE: 15},
		CQModeration: caps.CQModeration{MaxCount: 16, MaxPeriod: 17},
		PCIAtomic:    caps.PCIAtomic{FetchAdd: 1, Swap: 2, CompareSwap: 4},
	}, got)

	raw.PhysPortCntEx, raw.DeviceCapFlagsEx = 0, 0 // an older library
	raw.OrigAttr.DeviceCapFlags = 1<<31 | 1<<20
	got = deviceAttr(&raw)
	require.Equal(t, 6, got.Ports)
	require.Equal(t, 1<<31|caps.XRC, got.Capabilities)
}

func TestClockDuration(t *testing.T) {
	for _, tt := range []struct {
		kHz, ticks uint64
		want       time.Duration
	}{
		{156250, 156250, time.Millisecond},
		{156250, 1, 6},
		{1000000, 12345, 12345},
		{1000, 1 << 40, 1 << 40 * time.Microsecond},
		{3, 1, 333333},
		{0, 1 << 40, 0},
		{1, math.MaxUint64, math.MaxInt64},
		{1000000, math.MaxUint64, math.MaxInt64},
		{2000000, math.MaxUint64 - 1, math.MaxInt64},
		{4000000, math.MaxUint64 - 3, math.MaxInt64 / 2},
	} {
		require.Equal(t, tt.want, DeviceAttr{CoreClock: tt.kHz}.ClockDuration(tt.ticks), tt)
	}
}
