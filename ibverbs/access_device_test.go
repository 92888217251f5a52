package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// What a region does not allow, and what its queue pair does not.
func TestMissingPermissions(t *testing.T) {
	const (
		local  = ibverbs.AccessLocalWrite
		write  = ibverbs.AccessRemoteWrite
		read   = ibverbs.AccessRemoteRead
		atomic = ibverbs.AccessRemoteAtomic
		all    = local | write | read | atomic
	)
	invalid := verdict{spec: ibverbs.WCRemoteInvalidRequest}
	noRecv := verdict{spec: ibverbs.WCRemoteOperation}
	r := open(t)
	for name, tt := range map[string]struct {
		requests []string
		a, b, qp ibverbs.AccessFlags // of both regions, and of the peer's queue pair
		want     verdict
	}{
		"from a region without local write":      {requests: []string{"send", "send imm", "write", "write imm"}, b: all, qp: all, want: good},
		"into a region without local write":      {requests: []string{"read", "fetch and add", "compare and swap"}, a: 0, b: all, qp: all, want: localProtection},
		"receive without local write":            {requests: []string{"send", "send imm"}, a: all, b: read, qp: all, want: noRecv},
		"region without remote write":            {requests: []string{"write", "write imm"}, a: all, b: all &^ write, qp: all, want: remoteAccess},
		"region without remote read":             {requests: []string{"read"}, a: all, b: all &^ read, qp: all, want: remoteAccess},
		"region without remote atomic":           {requests: []string{"fetch and add", "compare and swap"}, a: all, b: all &^ atomic, qp: all, want: remoteAccess},
		"atomics alone":                          {requests: []string{"fetch and add", "compare and swap"}, a: local, b: local | atomic, qp: atomic, want: good},
		"remote flags do not matter to messages": {requests: []string{"send", "send imm"}, a: 0, b: local, qp: 0, want: good},
		"queue pair without remote write":        {requests: []string{"write", "write imm"}, a: all, b: all, qp: all &^ write, want: invalid},
		"queue pair without remote read":         {requests: []string{"read"}, a: all, b: all, qp: all &^ read, want: invalid},
		"queue pair without remote atomic":       {requests: []string{"fetch and add", "compare and swap"}, a: all, b: all, qp: all &^ atomic, want: invalid},
	} {
		for _, kind := range tt.requests {
			t.Run(name+"/"+kind, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opEnd(0, tt.a), r.opEnd(0, tt.b)
				r.connect(a, linkTo(b.qp))
				r.connect(b, linkTo(a.qp))
				require.NoError(t, b.qp.Modify(ibverbs.QPAttr{Access: tt.qp}, ibverbs.QPAttrAccess))
				k := requests[kind]
				// The batch refuses a region that the device may not write to, unless it
				// knows the key only.
				raw := func(mr *ibverbs.MR) ibverbs.Segment {
					return ibverbs.RawSegment(mr.Remote().Addr, mr.Len(), mr.LKey())
				}
				if k.receive {
					b.postRecv(t, 2, raw(b.mr).Sub(1024, 8))
				}
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := k.add(s, b.mr.Remote().Sub(64, 8), raw(a.mr).Sub(64, 8))
					ibverbs.RawSends(s)[0].SendFlags |= uint32(ibverbs.SendSignaled)
					return err
				})
				requireVerdict(t, a.sendCQ, 1, a.qp, tt.want, r)
			})
		}
	}
}
