package ibverbs_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// instead is for a verdict's rxe.
func instead(statuses ...ibverbs.WCStatus) []ibverbs.WCStatus { return statuses }

// verdict is how a request completes.
type verdict struct {
	spec ibverbs.WCStatus   // what the specification has
	rxe  []ibverbs.WCStatus // what Soft-RoCE has instead, if it does; a second one since Linux 6.4
}

// here returns the status that this device gives.
func (v verdict) here(t testing.TB, r *rig) ibverbs.WCStatus {
	t.Helper()
	switch {
	case len(v.rxe) == 0 || !strings.HasPrefix(r.device.Name, "rxe"):
		return v.spec
	case softRoCEFlushes(t):
		return v.rxe[len(v.rxe)-1]
	}
	return v.rxe[0]
}

// softRoCEFlushes reports whether Soft-RoCE flushes a request that it cannot
// send, with those behind it, and so forgets why: since Linux 6.4 its requester
// puts the queue pair into the error state before the completer has told.
func softRoCEFlushes(t testing.TB) bool {
	t.Helper()
	return softRoCESince(t, 6, 4)
}

// The verdicts of most cases.
var (
	good         = verdict{spec: ibverbs.WCSuccess}
	remoteAccess = verdict{spec: ibverbs.WCRemoteAccess}
	// localProtection is of memory that the device writes.
	localProtection = verdict{spec: ibverbs.WCLocalProtection}
	// unsendable is of memory that the device reads. Soft-RoCE has one status
	// for all that it cannot send.
	unsendable = verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation, ibverbs.WCFlushed)}
)

// requireVerdict collects the only completion of a queue.
func requireVerdict(t testing.TB, cq *ibverbs.CQ, id uint64, qp *ibverbs.QP, v verdict, r *rig) {
	t.Helper()
	want := v.here(t, r)
	wc := collect(t, cq, 1)[0]
	if want == ibverbs.WCSuccess {
		require.NoError(t, wc.Err())
		require.Equal(t, id, wc.ID())
		return
	}
	requireWC(t, wc, id, qp, want, want.Class())
}

// sge is what C is given for the first segment of a request.
func sge(wr *libibverbs.SendWr) *libibverbs.Sge { return wr.SgList }
