//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

func TestWCExFields(t *testing.T) {
	f := newFakeDevice(t)
	wcs := make([]WCEx, 1)
	one := func(fields WCFields, s fakeverbs.Script) *WCEx {
		t.Helper()
		f.cq.extended.Fields = f.cq.extended.Fields&^uint64(fakeFields) | uint64(fields)
		s.Completions = 1
		f.Set(s)
		n, err := f.cq.PollEx(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		return &wcs[0]
	}
	all := fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH}
	checkAll := func(wc *WCEx) {
		t.Helper()
		require.NoError(t, wc.Err())
		require.Equal(t, WCRecv, wc.Opcode())
		require.True(t, wc.HasGRH())
		require.Equal(t, 64, wc.ByteLen())
		require.EqualValues(t, 17, wc.QPNum())
		require.EqualValues(t, 18, wc.SrcQPNum())
		require.EqualValues(t, 0xF0013, wc.SLID())
		require.EqualValues(t, 0x13, wc.WC.SLID(), "what fits")
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
	bare := WCEx{}
	bare.raw.Opcode, bare.raw.WcFlags = WCRecv, uint32(all.WCFlags)
	require.Equal(t, bare, *wc)

	wc = one(fakeFields, fakeverbs.Script{WCFlags: libibverbs.IBV_WC_WITH_INV})
	key, ok := wc.InvalidatedRKey()
	require.True(t, ok)
	require.EqualValues(t, 0x01020304, key)
	_, ok = wc.Imm()
	require.False(t, ok)

	wc = one(fakeFields, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR})
	failed := WCEx{}
	failed.raw.Status, failed.raw.QpNum, failed.raw.VendorErr = libibverbs.IBV_WC_RETRY_EXC_ERR, 17, 0x99
	require.Equal(t, failed, *wc)
	require.ErrorIs(t, wc.Err(), WCRetryExceeded)

	// A provider may lack any reader.
	cq := f.CQ()
	cq.ReadOpcode, cq.ReadVendorErr, cq.ReadByteLen, cq.ReadImmData, cq.ReadQpNum, cq.ReadSrcQp = nil, nil, nil, nil, nil, nil
	cq.ReadWcFlags, cq.ReadSlid, cq.ReadSl, cq.ReadDlidPathBits, cq.ReadCompletionTs, cq.ReadCvlan = nil, nil, nil, nil, nil, nil
	cq.ReadFlowTag, cq.ReadTmInfo, cq.ReadCompletionWallclockNs = nil, nil, nil
	f.cq.extended = datapath.NewQueueEx(cq, fakeFields)
	require.Zero(t, f.cq.extended.Fields&uint64(fakeFields))
	require.Equal(t, WCEx{}, *one(0, all))
	failed.raw.QpNum, failed.raw.VendorErr = 0, 0
	require.Equal(t, failed, *one(0, fakeverbs.Script{Status: libibverbs.IBV_WC_RETRY_EXC_ERR}))
}

func TestPollExNeedsFields(t *testing.T) {
	f := newFakeDevice(t)
	f.cq.fields = 0
	_, err := f.cq.PollEx(make([]WCEx, 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "(fake CQ): the queue was made without CQConfig.Fields")
	_, err = f.cq.WaitEx(t.Context(), make([]WCEx, 1))
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
