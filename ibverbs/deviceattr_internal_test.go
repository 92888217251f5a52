package ibverbs

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
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
		Capabilities:            DeviceRawScatterFCS | DeviceXRC,
		CompletionTimestampMask: 1<<63 - 1,
		CoreClock:               156250,
		MaxWQ:                   9,
		MaxDeviceMemory:         18,
		RawPacket:               libibverbs.IBV_RAW_PACKET_CAP_IP_CSUM,
		ODP: ODPCaps{
			General: libibverbs.IBV_ODP_SUPPORT | libibverbs.IBV_ODP_SUPPORT_IMPLICIT,
			RC:      libibverbs.IBV_ODP_SUPPORT_SEND, UC: libibverbs.IBV_ODP_SUPPORT_RECV,
			UD: libibverbs.IBV_ODP_SUPPORT_WRITE, XRC: libibverbs.IBV_ODP_SUPPORT_READ,
		},
		TSO: TSOCaps{MaxPayload: 1 << 18, QPTypes: 1 << 8},
		RSS: RSSCaps{
			QPTypes: 1 << 8, MaxIndirectionTables: 7, MaxIndirectionTableSize: 8,
			HashFields: libibverbs.IBV_RX_HASH_INNER, HashFunctions: libibverbs.IBV_RX_HASH_FUNC_TOEPLITZ,
		},
		PacketPacing: PacketPacingCaps{MinRate: 10, MaxRate: 11, QPTypes: 1 << 2},
		TagMatching:  TagMatchingCaps{MaxRendezvousHeader: 12, MaxTags: 13, Flags: libibverbs.IBV_TM_CAP_RC, MaxOps: 14, MaxSGE: 15},
		CQModeration: CQModerationCaps{MaxCount: 16, MaxPeriod: 17},
		PCIAtomic:    PCIAtomicCaps{FetchAdd: 1, Swap: 2, CompareSwap: 4},
	}, got)
	require.True(t, got.TSO.QPTypes.Has(QPTypeRawPacket))
	require.False(t, got.TSO.QPTypes.Has(QPTypeRC))
	require.False(t, QPTypes(1<<31).Has(libibverbs.IBV_QPT_DRIVER))

	raw.PhysPortCntEx, raw.DeviceCapFlagsEx = 0, 0 // an older library
	raw.OrigAttr.DeviceCapFlags = 1<<31 | 1<<20
	got = deviceAttr(&raw)
	require.Equal(t, 6, got.Ports)
	require.Equal(t, 1<<31|DeviceXRC, got.Capabilities)
}

func TestDeviceCapsString(t *testing.T) {
	for caps, want := range map[DeviceCaps]string{
		0:                               "0",
		1:                               "IBV_DEVICE_RESIZE_MAX_WR",
		DeviceCCDMABounce:               "IBV_DEVICE_CC_DMA_BOUNCE",
		DevicePCIWriteEndPadding | 1:    "IBV_DEVICE_RESIZE_MAX_WR|IBV_DEVICE_PCI_WRITE_END_PADDING",
		DeviceRawScatterFCS | 1<<63:     "IBV_DEVICE_RAW_SCATTER_FCS|0x8000000000000000",
		DeviceRawScatterFCS | 1<<31:     "0x80000000|IBV_DEVICE_RAW_SCATTER_FCS",
		DeviceRawScatterFCS | 1<<31 | 1: "IBV_DEVICE_RESIZE_MAX_WR|0x80000000|IBV_DEVICE_RAW_SCATTER_FCS",
	} {
		require.Equal(t, want, caps.String())
	}
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
