package ibverbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Keys that do not name a region of the queue pair's domain.
func TestWrongKeys(t *testing.T) {
	r := open(t)
	closedAddr, closedLKey, closedRKey := r.closedKeys()
	theirs := r.foreign()
	badLocal := map[string]func(*libibverbs.Sge){
		"wrong local key":              func(s *libibverbs.Sge) { s.Lkey ^= 0x5A },
		"local key of a closed region": func(s *libibverbs.Sge) { s.Lkey, s.Addr = closedLKey, closedAddr },
		"local key of another domain":  func(s *libibverbs.Sge) { s.Lkey, s.Addr = theirs.LKey(), theirs.Remote().Addr },
		"local key 0":                  func(s *libibverbs.Sge) { s.Lkey = 0 },
	}
	badRemote := map[string]func(addr *uint64, rkey *uint32){
		"wrong remote key":              func(_ *uint64, rkey *uint32) { *rkey ^= 0x5A },
		"remote key of a closed region": func(addr *uint64, rkey *uint32) { *addr, *rkey = closedAddr, closedRKey },
		"remote key of another domain":  func(addr *uint64, rkey *uint32) { *addr, *rkey = theirs.Remote().Addr, theirs.RKey() },
		"remote key 0":                  func(_ *uint64, rkey *uint32) { *rkey = 0 },
	}
	untouched := make([]byte, 2048)
	check := func(t *testing.T, k request, v verdict, spoil func(*libibverbs.SendWr)) {
		r := r.sub(t)
		a, b := r.opPair(0, fullAccess)
		k.spoiled(t, a, b, spoil)
		requireVerdict(t, a.sendCQ, 1, a.qp, v, r)
		require.Equal(t, ibverbs.QPStateError, must(a.qp.State())(t))
		require.Equal(t, untouched, a.mr.Bytes()[:len(untouched)])
		if !k.atomic || v.spec == ibverbs.WCRemoteAccess { // an atomic's result has no place here, but the peer has done it
			require.Equal(t, untouched, b.mr.Bytes()[:len(untouched)])
		}
	}
	for name, k := range requests {
		local := unsendable
		if k.result {
			local = localProtection
		}
		for what, bad := range badLocal {
			t.Run(name+"/"+what, func(t *testing.T) {
				check(t, k, local, func(wr *libibverbs.SendWr) { bad(sge(wr)) })
			})
		}
		if !k.remote {
			continue
		}
		for what, bad := range badRemote {
			t.Run(name+"/"+what, func(t *testing.T) {
				check(t, k, remoteAccess, func(wr *libibverbs.SendWr) { bad(k.remoteOf(wr)) })
			})
		}
		both := local // this side looks first when it sends
		if k.result {
			both = remoteAccess
		}
		t.Run(name+"/both keys wrong", func(t *testing.T) {
			check(t, k, both, func(wr *libibverbs.SendWr) {
				_, rkey := k.remoteOf(wr)
				sge(wr).Lkey, *rkey = sge(wr).Lkey^0x5A, *rkey^0x5A
			})
		})
	}
}
