package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
		{24, "unknown", WCClassOther, false},
		{1<<32 - 1, "unknown", WCClassOther, false},
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
		WCClassFlushed: "flushed", WCClassOther: "other", -1: "other", 99: "other",
	} {
		require.Equal(t, want, class.String())
	}
}
