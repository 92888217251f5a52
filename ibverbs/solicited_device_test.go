package ibverbs_test

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// What comes without SendSolicited is there, and wakes nobody.
func TestSolicitedEvents(t *testing.T) {
	r := open(t)
	recvCQ := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: depth, Channel: r.channel(), SolicitedOnly: true}))(t)
	r.cleanup(recvCQ)
	a, b := r.end(nil), r.withCQs(r.cq(depth, nil), recvCQ, depth)
	require.NoError(t, b.qp.ToReset()) // it was connected with itself
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, waitErr(done, recvCQ), context.Canceled, "armed, with nothing there")
	event := func() error {
		cq, _, err := libibverbs.GetCqEvent(recvCQ.Raw().Channel)
		if err != nil {
			return err
		}
		return libibverbs.AckCqEvents(cq, 1) // without it, Close would wait for ever
	}
	for id, tt := range []struct {
		flags ibverbs.SendFlags
		want  error
	}{
		{0, syscall.EAGAIN},
		{ibverbs.SendSolicited, nil},
	} {
		b.postRecv(t, uint64(id))
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(0, ibverbs.SendSignaled|tt.flags) })
		collectOK(t, a.sendCQ, 1) // so that the receive is complete, too
		require.ErrorIs(t, event(), tt.want)
	}
	for id, wc := range collectOK(t, recvCQ, 2) {
		require.EqualValues(t, id, wc.ID())
	}
}
