package ibverbs_test

import (
	"bytes"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// Peers and this program name a region by the address that it was given.
func TestRegisterIOVA(t *testing.T) {
	r := open(t)
	const page = 4096
	memory := r.alloc(3*page, 0).Bytes() // that begins a page
	for name, tt := range map[string]struct {
		memory []byte
		start  uint64 // that is asked for
		access ibverbs.AccessFlags
		want   uint64
	}{
		"iova":          {memory, 16 * page, anyAccess, 16 * page},
		"high iova":     {memory[:page], math.MaxUint64 - page + 1, anyAccess, math.MaxUint64 - page + 1},
		"inside a page": {memory[100:], 5*page + 100, anyAccess, 5*page + 100},
		"zero":          {memory, 0, anyAccess, 0},
		"zero based":    {memory, 5 * page, anyAccess | ibverbs.AccessZeroBased, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.pair(nil)
			mr := must(r.pd.Register(tt.memory, tt.access, ibverbs.WithIOVA(tt.start)))(t)
			r.cleanup(mr)
			n := uint64(len(tt.memory))
			require.Equal(t, ibverbs.RemoteBuffer{Addr: tt.want, RKey: mr.RKey(), Len: n}, mr.Remote())
			require.Equal(t, tt.access, mr.Access())
			require.Same(t, &tt.memory[0], &mr.Bytes()[0])

			want := bytes.Clone(pattern(a.mr.Sub(0, int(n)).Bytes(), 3))
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(1, mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, int(n)))
			})
			collectOK(t, a.sendCQ, 1)
			require.True(t, bytes.Equal(want, tt.memory), "from the peer")

			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(2, b.mr.Remote(), ibverbs.SendSignaled|ibverbs.SendInline, mr.Sub(8, inline))
			})
			collectOK(t, a.sendCQ, 1)
			require.Equal(t, want[8:8+inline], b.mr.Sub(0, inline).Bytes(), "inline")

			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return s.Write(3, b.mr.Remote(), ibverbs.SendSignaled, mr.Sub(8, int(n)-8))
			})
			collectOK(t, a.sendCQ, 1)
			require.Equal(t, want[8:], b.mr.Sub(0, int(n)-8).Bytes(), "to the peer")

			a.postSend(t, func(s *ibverbs.SendBatch) error { // around the end
				return s.Write(4, mr.Remote().Sub(n-4, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8))
			})
			requireWC(t, collect(t, a.sendCQ, 1)[0], 4, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
		})
	}
}

func TestRegisterIOVARefused(t *testing.T) {
	r := open(t)
	two := r.alloc(2*4096, 0).Bytes()
	memory := two[:4096]
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"elsewhere in a page":     {second(r.pd.Register(memory, 0, ibverbs.WithIOVA(8))), "memory at 0x0 of a page for address 0x8, at 0x8 of one"},
		"zero based, no page":     {second(r.pd.Register(memory[1:], ibverbs.AccessZeroBased)), "memory at 0x1 of a page for address 0x0"},
		"beyond the last address": {second(r.pd.Register(two, 0, ibverbs.WithIOVA(math.MaxUint64-4095))), "8192 bytes at address 0xfffffffffffff000"},
		"huge pages, not paged":   {second(r.pd.Register(memory, ibverbs.AccessHugeTLB)), "): AccessHugeTLB without AccessOnDemand"},
		"unknown flags":           {second(r.pd.Alloc(64, 1<<31)), "): unknown access flags 0x80000000"},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
	}
}
