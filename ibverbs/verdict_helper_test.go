package ibverbs_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// verdict is how a request completes.
type verdict struct {
	spec ibverbs.WCStatus    // what the specification has
	rxe  [2]ibverbs.WCStatus // what Soft-RoCE has instead, before Linux 7.2 and since; 0: the same
}

// here returns the status that this device gives.
func (v verdict) here(t testing.TB, r *rig) ibverbs.WCStatus {
	t.Helper()
	since := 0
	if softRoCESince(t, 7, 2) {
		since = 1
	}
	if strings.HasPrefix(r.device.Name, "rxe") && v.rxe[since] != 0 {
		return v.rxe[since]
	}
	return v.spec
}

// The verdicts of most cases.
var (
	good         = verdict{spec: ibverbs.WCSuccess}
	remoteAccess = verdict{spec: ibverbs.WCRemoteAccess}
	// localProtection is of memory that the device writes.
	localProtection = verdict{spec: ibverbs.WCLocalProtection}
	// unsendable is of memory that the device reads. Soft-RoCE has one status
	// for all that it cannot send.
	unsendable = verdict{ibverbs.WCLocalProtection, [2]ibverbs.WCStatus{ibverbs.WCLocalQPOperation, ibverbs.WCFlushed}}
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
