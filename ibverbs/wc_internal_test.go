// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
)

// C writes completions over these.
func TestWCIsWhatCWrites(t *testing.T) {
	require.Equal(t, unsafe.Sizeof(datapath.WC{}), unsafe.Sizeof(WC{}))
	require.Equal(t, unsafe.Alignof(datapath.WC{}), unsafe.Alignof(WC{}))
}

func TestWCAccessors(t *testing.T) {
	wc := WC{datapath.WC{Wc: libibverbs.Wc{
		WrId: 1<<63 + 5, Status: libibverbs.IBV_WC_SUCCESS, Opcode: libibverbs.IBV_WC_RECV,
		VendorErr: 0x1234, ByteLen: 1<<31 - 1, QpNum: 0xABCDEF, SrcQp: 0xFEDCBA,
	}}}
	*wc.raw.ImmData() = libibverbs.NewBe32(0x01020304)

	require.Equal(t, uint64(1<<63+5), wc.ID())
	require.Equal(t, WCSuccess, wc.Status())
	require.Equal(t, WCRecv, wc.Opcode())
	require.EqualValues(t, 0x1234, wc.VendorError())
	require.Equal(t, 1<<31-1, wc.ByteLen())
	require.EqualValues(t, 0xABCDEF, wc.QPNum())
	require.EqualValues(t, 0xFEDCBA, wc.SrcQPNum())
	require.NoError(t, wc.Err())
	wc.raw.Slid = 0xF013
	require.EqualValues(t, 0xF013, wc.SLID(), "from ibv_poll_cq")
	wc.raw.SLID = 0x2F013
	require.EqualValues(t, 0x2F013, wc.SLID(), "from ibv_wc_read_slid")

	_, ok := wc.Imm()
	require.False(t, ok, "without the flag the bytes mean something else")
	wc.raw.WcFlags = libibverbs.IBV_WC_WITH_IMM | libibverbs.IBV_WC_GRH
	imm, ok := wc.Imm()
	require.True(t, ok)
	require.EqualValues(t, 0x01020304, imm)
	require.Equal(t, [4]byte{1, 2, 3, 4}, *(*[4]byte)(unsafe.Pointer(wc.raw.ImmData())), "network order")
}

func TestWCError(t *testing.T) {
	for name, tt := range map[string]struct {
		raw   libibverbs.Wc
		class WCClass
		want  string
	}{
		"all parts": {
			raw:   libibverbs.Wc{WrId: 7, QpNum: 17, Status: libibverbs.IBV_WC_RETRY_EXC_ERR, VendorErr: 0x81},
			class: WCClassTransport,
			want: "work request 7 on QP 17: transport retry counter exceeded (vendor error 0x81): " +
				"the peer did not answer: it is gone, or packets are lost",
		},
		"no vendor error": {
			raw:   libibverbs.Wc{WrId: 7, QpNum: 17, Status: libibverbs.IBV_WC_RNR_RETRY_EXC_ERR},
			class: WCClassTransport,
			want:  "work request 7 on QP 17: RNR retry counter exceeded: the peer had no receive posted",
		},
		"no hint": {
			raw:   libibverbs.Wc{Status: libibverbs.IBV_WC_TM_ERR},
			class: WCClassOther,
			want:  "work request 0 on QP 0: TM error",
		},
		"status of the future": {
			raw:   libibverbs.Wc{Status: 99},
			class: WCClassOther,
			want:  "work request 0 on QP 0: unknown (99)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			wc := WC{datapath.WC{Wc: tt.raw}}
			err := wc.Err()
			require.EqualError(t, err, tt.want)
			require.ErrorIs(t, err, wc.Status())
			var wcErr *WCError
			require.ErrorAs(t, err, &wcErr)
			require.Equal(t, tt.class, wcErr.Class())
			require.Equal(t, WCError{WCStatus(tt.raw.Status), tt.raw.WrId, tt.raw.QpNum, tt.raw.VendorErr}, *wcErr)
			require.False(t, errors.Is(err, WCFlushed))
		})
	}
}

func TestWCStatus(t *testing.T) {
	for i, tt := range []struct {
		status WCStatus
		text   string // what ibv_wc_status_str says
		class  WCClass
		hint   bool
	}{
		{WCSuccess, "success", WCClassSuccess, false},
		{WCLocalLength, "local length error", WCClassLocalProgramming, true},
		{WCLocalQPOperation, "local QP operation error", WCClassLocalProgramming, true},
		{WCLocalEECOperation, "local EE context operation error", WCClassLocalProgramming, false},
		{WCLocalProtection, "local protection error", WCClassLocalResource, true},
		{WCFlushed, "Work Request Flushed Error", WCClassFlushed, true},
		{WCMemoryWindowBind, "memory management operation error", WCClassLocalProgramming, false},
		{WCBadResponse, "bad response error", WCClassRemote, false},
		{WCLocalAccess, "local access error", WCClassLocalResource, false},
		{WCRemoteInvalidRequest, "remote invalid request error", WCClassRemote, true},
		{WCRemoteAccess, "remote access error", WCClassRemote, true},
		{WCRemoteOperation, "remote operation error", WCClassRemote, true},
		{WCRetryExceeded, "transport retry counter exceeded", WCClassTransport, true},
		{WCRNRRetryExceeded, "RNR retry counter exceeded", WCClassTransport, true},
		{WCLocalRDDViolation, "local RDD violation error", WCClassLocalProgramming, false},
		{WCRemoteInvalidRD, "remote invalid RD request", WCClassRemote, false},
		{WCRemoteAborted, "aborted error", WCClassRemote, false},
		{WCInvalidEECN, "invalid EE context number", WCClassLocalProgramming, false},
		{WCInvalidEECState, "invalid EE context state", WCClassLocalProgramming, false},
		{WCFatal, "fatal error", WCClassLocalResource, false},
		{WCResponseTimeout, "response timeout error", WCClassTransport, false},
		{WCGeneral, "general error", WCClassOther, false},
		{WCTagMatching, "TM error", WCClassOther, false},
		{WCTagMatchingRendezvous, "TM software rendezvous", WCClassOther, false},
		{24, "unknown (24)", WCClassOther, false},
		{1<<32 - 1, "unknown (4294967295)", WCClassOther, false},
	} {
		if i <= 24 {
			require.EqualValues(t, i, tt.status, "the table has them all")
		}
		require.Equal(t, tt.text, tt.status.String())
		require.EqualError(t, tt.status, tt.text)
		require.Equal(t, tt.class, tt.status.Class(), tt.text)
		require.Equal(t, tt.hint, tt.status.Hint() != "", tt.text)
		require.NotContains(t, tt.status.Hint(), "\n")
	}
}

func TestWCClassString(t *testing.T) {
	for class, want := range map[WCClass]string{
		WCClassSuccess: "success", WCClassLocalProgramming: "local programming",
		WCClassLocalResource: "local resource", WCClassRemote: "remote", WCClassTransport: "transport",
		WCClassFlushed: "flushed", WCClassOther: "other", -1: "WCClass(-1)", 99: "WCClass(99)",
	} {
		require.Equal(t, want, class.String())
	}
}
