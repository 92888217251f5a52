// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"bytes"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

func TestWCFields(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WC, 1)
	one := func(fields WCFields, s fakeverbs.Script) *WC {
		t.Helper()
		f.fields.queue.Fields = f.fields.queue.Fields&^uint64(fakeFields) | uint64(fields)
		s.Completions = 1
		f.Set(s)
		n, err := f.fields.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return &wcs[0]
	}
	all := fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH}
	checkAll := func(wc *WC) {
		t.Helper()
		require.NoError(t, wc.Err())
		require.Equal(t, WCRecv, wc.Opcode())
		require.True(t, wc.HasGRH())
		require.Equal(t, 64, wc.ByteLen())
		require.EqualValues(t, 17, wc.QPNum())
		require.EqualValues(t, 18, wc.SrcQPNum())
		require.EqualValues(t, 0xF0013, wc.SLID())
		require.EqualValues(t, 20, wc.SL())
		require.EqualValues(t, 21, wc.DLIDPathBits())
		require.EqualValues(t, 22, wc.Timestamp())
		require.EqualValues(t, 23, wc.CVLAN())
		require.EqualValues(t, 24, wc.FlowTag())
		require.EqualValues(t, 25, wc.Time().UnixNano())
		tag, data := wc.TMInfo()
		require.EqualValues(t, 26, tag)
		require.EqualValues(t, 27, data)
		imm, ok := wc.Imm()
		require.True(t, ok)
		require.Equal(t, libibverbs.Be32(0x01020304).Host(), imm)
	}
	checkAll(one(fakeFields, all))

	wc := one(0, all) // what there is without asking
	require.Equal(t, WCRecv, wc.Opcode())
	require.True(t, wc.HasGRH())
	bare := WC{}
	bare.raw.Opcode, bare.raw.WcFlags = WCRecv, all.WCFlags
	require.Equal(t, bare, *wc)

	wc = one(fakeFields, fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_INV})
	key, ok := wc.InvalidatedRKey()
	require.True(t, ok)
	require.EqualValues(t, 0x01020304, key)
	_, ok = wc.Imm()
	require.False(t, ok)

	wc = one(fakeFields, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR})
	failed := WC{}
	failed.raw.Status, failed.raw.QpNum, failed.raw.VendorErr = libibverbs.IBV_WC_RETRY_EXC_ERR, 17, 0x99
	require.Equal(t, failed, *wc)
	require.ErrorIs(t, wc.Err(), WCRetryExceeded)

	// A provider may lack any reader.
	cq := f.CQ()
	cq.ReadOpcode, cq.ReadVendorErr, cq.ReadByteLen, cq.ReadImmData, cq.ReadQpNum, cq.ReadSrcQp = nil, nil, nil, nil, nil, nil
	cq.ReadWcFlags, cq.ReadSlid, cq.ReadSl, cq.ReadDlidPathBits, cq.ReadCompletionTs, cq.ReadCvlan = nil, nil, nil, nil, nil, nil
	cq.ReadFlowTag, cq.ReadTmInfo, cq.ReadCompletionWallclockNs = nil, nil, nil
	f.fields.queue = datapath.NewQueueEx(cq, fakeFields)
	require.Zero(t, f.fields.queue.Fields&uint64(fakeFields))
	require.Equal(t, WC{}, *one(0, all))
	failed.raw.QpNum, failed.raw.VendorErr = 0, 0
	require.Equal(t, failed, *one(0, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR}))
}

// A queue without fields gives what ibv_poll_cq does, each completion in its
// place, and nothing that was in the memory before.
func TestWCWithoutFields(t *testing.T) {
	f := newFakeDevice(t)
	for n := range 20 {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			const room = 16
			wcs := make([]WC, room+1)
			for i := range wcs {
				*(*[unsafe.Sizeof(WC{})]byte)(unsafe.Pointer(&wcs[i])) = [unsafe.Sizeof(WC{})]byte(bytes.Repeat([]byte{0xA5}, int(unsafe.Sizeof(WC{}))))
			}
			behind := wcs[room]
			f.Set(fakeverbs.Script{Completions: n, WCFlags: libibverbs.IBV_WC_GRH})
			got, err := f.cq.Poll(wcs[:room])
			require.NoError(t, err)
			require.Equal(t, min(n, room), got)
			require.Equal(t, behind, wcs[room], "not ours")
			for i := range wcs[:got] {
				wc := &wcs[i]
				require.EqualValues(t, i, wc.ID())
				require.NoError(t, wc.Err())
				require.Equal(t, WCRecv, wc.Opcode())
				require.Equal(t, 64, wc.ByteLen())
				require.EqualValues(t, 17, wc.QPNum())
				require.Equal(t, WCFlagGRH, wc.Flags())
				tag, data := wc.TMInfo()
				require.Equal(t, []any{uint64(0), time.Time{}, uint16(0), uint32(0), uint64(0), uint32(0)},
					[]any{wc.Timestamp(), wc.Time(), wc.CVLAN(), wc.FlowTag(), tag, data})
				require.EqualValues(t, 0xA5A5, wc.SLID(), "which the device has not written")
			}
		})
	}
}
