// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

func somePath() AHAttr {
	return AHAttr{
		Port: 2, DLID: 0x1234, SL: 3, SrcPathBits: 5, StaticRate: libibverbs.IBV_RATE_100_GBPS,
		DGID: GID{0xFE, 0x80, 15: 9}, SGIDIndex: 7, FlowLabel: 0xABCDE, HopLimit: 64, TrafficClass: 0x68,
	}
}

func TestQPAttrBothWays(t *testing.T) {
	alt := somePath()
	alt.DGID, alt.SGIDIndex, alt.FlowLabel, alt.HopLimit, alt.TrafficClass = GID{}, 0, 0, 0, 0 // not global
	a := QPAttr{
		State: QPStateSQD, CurState: QPStateRTS, NotifyDrained: true, Access: AccessRemoteRead | AccessRemoteAtomic,
		Port: 2, PKeyIndex: 0x1FF, QKey: 0x11111111, Path: somePath(), PathMTU: MTU2048,
		DestQPNum: 0xABCDEF, RecvPSN: 0xFFFFFF, SendPSN: 0x123456, MinRNRTimer: 640 * time.Microsecond,
		Timeout: timeoutOf(14), RetryCount: 7, RNRRetryCount: 6, MaxReadAtomic: 16, MaxDestReadAtomic: 255,
		Migration: MigrationArmed, AltPath: alt, AltPKeyIndex: 3, AltTimeout: NoTimeout, RateLimit: 1000,
	}
	raw, err := a.raw(^libibverbs.IBV_QP_CAP)
	require.NoError(t, err)
	require.Equal(t, a, QPAttrFromRaw(&raw))
	require.EqualValues(t, 14, raw.Timeout)
	require.EqualValues(t, 12, raw.MinRnrTimer)
	require.EqualValues(t, 1, raw.AhAttr.IsGlobal)
	require.Zero(t, raw.AltAhAttr.IsGlobal)
	require.EqualValues(t, 2, raw.AltPortNum)

	raw.SqDraining = 1
	raw.Cap = libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 2, MaxSendSge: 3, MaxRecvSge: 4, MaxInlineData: 5}
	back := QPAttrFromRaw(&raw)
	require.True(t, back.Draining)
	require.Equal(t, QPCap{SendQueue: 1, RecvQueue: 2, SendSegments: 3, RecvSegments: 4, MaxInline: 5}, back.Cap)
}

func TestBadQPAttr(t *testing.T) {
	path := func(change func(*AHAttr)) QPAttr {
		p := somePath()
		change(&p)
		return QPAttr{Path: p, AltPath: p, AltTimeout: time.Second}
	}
	tests := []struct {
		bit  QPAttrMask
		attr QPAttr
		want string
	}{
		{QPAttrState, QPAttr{State: 7}, "state is 7, not from 0 to 6"},
		{QPAttrCurState, QPAttr{CurState: 8}, "current state is 8, not from 0 to 6"},
		{QPAttrPort, QPAttr{}, "port is 0, not from 1 to 255"},
		{QPAttrPKeyIndex, QPAttr{PKeyIndex: 1 << 16}, "P_Key index is 65536, not from 0 to 65535"},
		{QPAttrPKeyIndex, QPAttr{PKeyIndex: -1}, "P_Key index is -1, not from 0 to 65535"},
		{QPAttrPathMTU, QPAttr{}, "path MTU is 0, not from 1 to 5"},
		{QPAttrPathMTU, QPAttr{PathMTU: 1024}, "path MTU is 1024, not from 1 to 5"},
		{QPAttrDestQPNum, QPAttr{DestQPNum: 1 << 24}, "destination QP number is 16777216, not from 0 to 16777215"},
		{QPAttrRecvPSN, QPAttr{RecvPSN: 1 << 24}, "receive PSN is 16777216, not from 0 to 16777215"},
		{QPAttrSendPSN, QPAttr{SendPSN: 1 << 30}, "send PSN is 1073741824, not from 0 to 16777215"},
		{QPAttrRetryCount, QPAttr{RetryCount: 8}, "retry count is 8, not from 0 to 7"},
		{QPAttrRNRRetryCount, QPAttr{RNRRetryCount: -1}, "RNR retry count is -1, not from 0 to 7"},
		{QPAttrMaxReadAtomic, QPAttr{MaxReadAtomic: 256}, "number of reads and atomics under way is 256, not from 0 to 255"},
		{QPAttrMaxDestReadAtomic, QPAttr{MaxDestReadAtomic: -5}, "number of reads and atomics from the peer is -5, not from 0 to 255"},
		{QPAttrTimeout, QPAttr{}, "timeout is 0s, not positive"},
		{QPAttrMinRNRTimer, QPAttr{MinRNRTimer: time.Second}, "RNR timer is 1s, not from 0 to 655.36ms"},
		{libibverbs.IBV_QP_CAP, QPAttr{}, "the capacities cannot be modified"},
		{QPAttrPath, QPAttr{}, "path: port is 0, not from 1 to 255"},
		{QPAttrPath, path(func(p *AHAttr) { p.SL = 16 }), "path: service level is 16, not from 0 to 15"},
		{QPAttrPath, path(func(p *AHAttr) { p.SrcPathBits = 128 }), "path: source path bits is 128, not from 0 to 127"},
		{QPAttrPath, path(func(p *AHAttr) { p.StaticRate = 256 }), "path: static rate is 256, not from 0 to 255"},
		{QPAttrPath, path(func(p *AHAttr) { p.SGIDIndex = 256 }), "path: GID index is 256, not from 0 to 255"},
		{QPAttrPath, path(func(p *AHAttr) { p.FlowLabel = 1 << 20 }), "path: flow label is 1048576, not from 0 to 1048575"},
		{QPAttrAltPath, path(func(p *AHAttr) { p.Port = 300 }), "path: port is 300, not from 1 to 255"},
		{QPAttrAltPath, QPAttr{AltPath: somePath()}, "timeout is 0s, not positive"},
		{QPAttrAltPath, QPAttr{AltPath: somePath(), AltTimeout: 1, AltPKeyIndex: -1}, "alternate P_Key index is -1, not from 0 to 65535"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			_, err := tt.attr.raw(tt.bit)
			require.EqualError(t, err, tt.want)
			require.ErrorIs(t, err, syscall.EINVAL)
			_, err = tt.attr.raw(0)
			require.NoError(t, err, "what the mask does not name does not matter")
		})
	}
}

func TestTimeoutCodes(t *testing.T) {
	for code := range uint8(32) {
		d := timeoutOf(code)
		back, err := timeoutCode(d)
		require.NoError(t, err)
		require.Equal(t, code, back)
		if code == 0 {
			continue
		}
		back, err = timeoutCode(d - 1)
		require.NoError(t, err)
		require.Equal(t, code, back, "rounded up")
	}
	require.Equal(t, 8192*time.Nanosecond, timeoutOf(1))
	require.Equal(t, 67108864*time.Nanosecond, timeoutOf(14))
	require.Equal(t, 67108864*time.Nanosecond, timeoutOf(14|32), "C has 5 bits")
	for d, want := range map[time.Duration]uint8{
		1: 1, 8192: 1, 8193: 2, time.Millisecond: 8, time.Second: 18, 2 * time.Hour: 31, NoTimeout: 0,
	} {
		code, err := timeoutCode(d)
		require.NoError(t, err)
		require.Equal(t, want, code, d)
	}
	for d, text := range map[time.Duration]string{
		0:                    "timeout is 0s, not positive",
		-time.Second:         "timeout is -1s, not positive",
		math.MinInt64:        "timeout is -2562047h47m16.854775808s, not positive",
		timeoutUnit<<31 + 1:  "timeout is 2h26m36.093022209s, more than 2h26m36.093022208s",
		math.MaxInt64 - 1000: "timeout is 2562047h47m16.854774807s, more than 2h26m36.093022208s",
	} {
		_, err := timeoutCode(d)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// The table of the InfiniBand specification, in milliseconds.
func TestRNRTimerCodes(t *testing.T) {
	for code, ms := range []float64{
		655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	} {
		d := rnrTimerOf(uint8(code))
		require.InDelta(t, ms, d.Seconds()*1000, 1e-9)
		for _, less := range []time.Duration{0, 1} {
			back, err := rnrTimerCode(d - less)
			require.NoError(t, err)
			require.EqualValues(t, code, back)
		}
	}
	shortest, err := rnrTimerCode(0)
	require.NoError(t, err)
	require.EqualValues(t, 1, shortest)
	for d, text := range map[time.Duration]string{
		-1:                                  "RNR timer is -1ns, not from 0 to 655.36ms",
		655*time.Millisecond + 360*1000 + 1: "RNR timer is 655.360001ms, not from 0 to 655.36ms",
	} {
		_, err := rnrTimerCode(d)
		require.EqualError(t, err, text)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}
