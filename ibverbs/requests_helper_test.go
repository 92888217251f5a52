package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// request is a kind of send request on 8 bytes of this side and of the peer's.
type request struct {
	add     func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error
	remote  bool // it names the peer's memory
	result  bool // the device writes the local memory
	atomic  bool
	receive bool // it takes a receive of the peer's
}

// requests are all kinds of reliable connections, with ID 1 and not signaled: a
// failure completes all the same.
var requests = map[string]request{
	"send": {receive: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Send(1, 0, local)
	}},
	"send imm": {receive: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.SendImm(1, 7, 0, local)
	}},
	"write": {remote: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Write(1, remote, 0, local)
	}},
	"write imm": {remote: true, receive: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.WriteImm(1, remote, 7, 0, local)
	}},
	"read": {remote: true, result: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Read(1, remote, 0, local)
	}},
	"fetch and add": {remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.FetchAdd(1, remote, 1, 0, local)
	}},
	"compare and swap": {remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.CompareSwap(1, remote, 0, 1, 0, local)
	}},
}

// remoteOf returns the address and the key of the peer's memory.
func (k request) remoteOf(wr *libibverbs.SendWr) (addr *uint64, rkey *uint32) {
	if k.atomic {
		return &wr.Wr.Atomic().RemoteAddr, &wr.Wr.Atomic().Rkey
	}
	return &wr.Wr.Rdma().RemoteAddr, &wr.Wr.Rdma().Rkey
}

// spoiled posts a good request of the kind after spoil changed what C is given.
func (k request) spoiled(t testing.TB, a, b *end, spoil func(wr *libibverbs.SendWr)) {
	t.Helper()
	if k.receive {
		b.postRecv(t, 2, b.mr.Sub(1024, 8))
	}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		err := k.add(s, b.mr.Remote().Sub(64, 8), a.mr.Sub(64, 8))
		spoil(&ibverbs.RawSends(s)[0])
		return err
	})
}

// closedKeys returns the keys of a region that was closed.
func (r *rig) closedKeys() (addr uint64, lkey, rkey uint32) {
	r.t.Helper()
	mr := must(r.pd.Alloc(64, fullAccess))(r.t)
	remote, lkey := mr.Remote(), mr.LKey()
	require.NoError(r.t, mr.Close())
	return remote.Addr, lkey, remote.RKey
}

// foreign returns a region of another protection domain.
func (r *rig) foreign() *ibverbs.MR {
	r.t.Helper()
	pd := must(r.c.AllocPD())(r.t)
	r.cleanup(pd)
	mr := must(pd.Alloc(64, fullAccess))(r.t)
	r.cleanup(mr)
	return mr
}
