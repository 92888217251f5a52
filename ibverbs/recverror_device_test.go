package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Receives that a message of 8 bytes does not fit into, or whose memory the
// device cannot write: both ends learn of it.
func TestBadReceives(t *testing.T) {
	r := open(t)
	closedAddr, closedLKey, _ := r.closedKeys()
	theirs := r.foreign()
	inaccessible := func(spoil func(s *libibverbs.Sge)) func(wr *libibverbs.RecvWr) {
		return func(wr *libibverbs.RecvWr) { spoil(wr.SgList) }
	}
	// Soft-RoCE has one status of each end for all of them.
	operation := verdict{spec: ibverbs.WCRemoteOperation}
	protection := verdict{ibverbs.WCLocalProtection, instead(ibverbs.WCLocalQPOperation)}
	tooLong := verdict{ibverbs.WCRemoteInvalidRequest, instead(ibverbs.WCRemoteOperation)}
	length := verdict{ibverbs.WCLocalLength, instead(ibverbs.WCLocalQPOperation)}
	for name, tt := range map[string]struct {
		spoil  func(wr *libibverbs.RecvWr)
		sender verdict
		recv   verdict
	}{
		"too small":      {inaccessible(func(s *libibverbs.Sge) { s.Length = 7 }), tooLong, length},
		"no segment":     {func(wr *libibverbs.RecvWr) { wr.SgList, wr.NumSge = nil, 0 }, tooLong, length},
		"wrong key":      {inaccessible(func(s *libibverbs.Sge) { s.Lkey ^= 0x5A }), operation, protection},
		"closed region":  {inaccessible(func(s *libibverbs.Sge) { s.Lkey, s.Addr = closedLKey, closedAddr }), operation, protection},
		"another domain": {inaccessible(func(s *libibverbs.Sge) { s.Lkey, s.Addr = theirs.LKey(), theirs.Remote().Addr }), operation, protection},
		"in front":       {inaccessible(func(s *libibverbs.Sge) { s.Addr -= 2048 }), operation, protection},
		"over the end":   {inaccessible(func(s *libibverbs.Sge) { s.Addr += mrSize - 1024 - 4 }), operation, protection},
		"beyond the region, more than the message needs": {inaccessible(func(s *libibverbs.Sge) { s.Length = mrSize }), good, good},
	} {
		for _, kind := range []string{"send", "send imm"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opPair(0, fullAccess)
				require.NoError(t, b.recv.Recv(2, b.mr.Sub(1024, 8)))
				tt.spoil(&ibverbs.RawRecvs(b.recv)[0])
				require.Equal(t, 1, must(b.qp.PostRecv(b.recv))(t))
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					err := requests[kind].add(s, ibverbs.RemoteBuffer{}, a.mr.Sub(64, 8))
					ibverbs.RawSends(s)[0].SendFlags |= uint32(ibverbs.SendSignaled)
					return err
				})
				requireVerdict(t, a.sendCQ, 1, a.qp, tt.sender, r)
				requireVerdict(t, b.recvCQ, 2, b.qp, tt.recv, r)
			})
		}
	}
}

// A write with immediate data that the peer refuses fails the peer's receive.
func TestRefusedWriteImm(t *testing.T) {
	r := open(t)
	a, b := r.opPair(0, fullAccess)
	requests["write imm"].spoiled(t, a, b, func(wr *libibverbs.SendWr) { wr.Wr.Rdma().Rkey ^= 0x5A })
	requireVerdict(t, a.sendCQ, 1, a.qp, remoteAccess, r)
	access := verdict{ibverbs.WCLocalAccess, instead(ibverbs.WCRemoteAccess)}
	requireVerdict(t, b.recvCQ, 2, b.qp, access, r)
}
