// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"encoding/hex"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

func TestIBPath(t *testing.T) {
	all := IBPath{
		Flags: libibverbs.IBV_PATH_FLAG_ALTERNATE, ServiceID: 0x0102030405060708, SGID: ibverbs.GID{0xfe, 15: 1}, DGID: ibverbs.GID{0xfe, 15: 2},
		SLID: 0x1112, DLID: 0x1314, FlowLabel: 0xabcde, HopLimit: 0x3f, TrafficClass: 0x28, Reversible: true, NumPaths: 5,
		PKey: 0x8001, QoSClass: 0x123, SL: 4, MTU: ibverbs.MTU2048, Rate: libibverbs.IBV_RATE_100_GBPS,
		PacketLifetime: 4096 << 18, Preference: 9,
	}
	for name, tt := range map[string]struct {
		path, back IBPath
		record     string // as the InfiniBand specification lays it out
	}{
		"all": {all, all, "0102030405060708" + "fe000000000000000000000000000002" + "fe000000000000000000000000000001" +
			"1314" + "1112" + "0abcde3f" + "28" + "85" + "8001" + "1234" + "84" + "90" + "92" + "09" + "000000000000"},
		"defaults": {
			IBPath{},
			IBPath{Flags: ofConnection, PKey: ibverbs.PKeyDefault, PacketLifetime: 4096},
			strings.Repeat("00", 8+16+16+2+2+4+1+1) + "ffff" + "0000" + "80" + "80" + "80" + "00" + "000000000000",
		},
		"longest": {
			IBPath{PKey: 1, PacketLifetime: 1<<63 - 1},
			IBPath{Flags: ofConnection, PKey: 1, PacketLifetime: 4096 << maxLifetime},
			strings.Repeat("00", 8+16+16+2+2+4+1+1) + "0001" + "0000" + "80" + "80" + "b3" + "00" + "000000000000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tt.path.check())
			raw := tt.path.raw()
			record := unsafe.Slice((*byte)(unsafe.Pointer(&raw.Path)), unsafe.Sizeof(raw.Path))
			require.Equal(t, tt.record, hex.EncodeToString(record))
			require.Equal(t, tt.back, ibPath(&raw))
		})
	}
	require.Equal(t, uint8(1), lifetime(4097), "rounded up")
	require.Equal(t, 4096*time.Nanosecond, ibPath(new(libibverbs.PathData)).PacketLifetime)
}

func TestIBPathThatDoesNotFit(t *testing.T) {
	for name, path := range map[string]IBPath{
		"FlowLabel": {FlowLabel: 1 << 20}, "NumPaths": {NumPaths: 1 << 7}, "QoSClass": {QoSClass: 1 << 12}, "SL": {SL: 1 << 4},
		"MTU": {MTU: 1 << 6}, "Rate": {Rate: 1 << 6},
	} {
		err := path.check()
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "IBPath."+name+" is ")
	}
}
