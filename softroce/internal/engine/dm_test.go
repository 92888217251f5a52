// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// dmem allocates device memory.
func (d *node) dmem(size uint64) *DM {
	d.t.Helper()
	dm, err := d.AllocDM(size, 0)
	require.NoError(d.t, err)
	return dm
}

func TestAllocDM(t *testing.T) {
	for name, tt := range map[string]struct {
		all, size uint64
		logAlign  uint32
		want      error
	}{
		"a byte":                     {1 << 16, 1, 0, nil},
		"everything":                 {1 << 16, 1 << 16, 0, nil},
		"everything, an odd number":  {1000, 1000, 0, nil},
		"at a page":                  {1 << 16, 10, 12, nil},
		"the largest alignment":      {1 << 16, 10, 16, nil},
		"an alignment beyond all":    {1 << 16, 10, 17, syscall.EINVAL},
		"an alignment beyond 64 bit": {1 << 16, 10, 64, syscall.EINVAL},
		"the largest number":         {1 << 16, 10, math.MaxUint32, syscall.EINVAL},
		"nothing":                    {1 << 16, 0, 0, syscall.EINVAL},
		"more than all":              {1 << 16, 1<<16 + 1, 0, syscall.EINVAL},
		"the longest":                {1 << 16, math.MaxUint64, 0, syscall.EINVAL},
		"of a device without":        {0, 1, 0, syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			d := small(t, func(l *Limits) { l.DM = uint32(tt.all) })
			a, err := d.Attr()
			require.NoError(t, err)
			require.Equal(t, tt.all, a.MaxDmSize)
			dm, err := d.AllocDM(tt.size, tt.logAlign)
			require.ErrorIs(t, err, tt.want)
			if tt.want == nil {
				require.Len(t, dm.Bytes(), int(tt.size))
				require.Equal(t, len(dm.Bytes()), cap(dm.Bytes()))
				require.Zero(t, addressOf(dm.Bytes())%max(64, uint64(1)<<tt.logAlign))
				require.NoError(t, dm.Free())
			}
			require.Zero(t, d.dm)
		})
	}
}

// A flood takes what the device has, and no more.
func TestDMIsLimited(t *testing.T) {
	d := small(t, func(l *Limits) { l.DM = 1 << 12 })
	var all []*DM
	for {
		dm, err := d.AllocDM(1, 0)
		if err != nil {
			require.Equal(t, syscall.ENOMEM, err)
			break
		}
		all = append(all, dm)
	}
	require.Len(t, all, 1<<12/dmUnit)
	require.NoError(t, all[0].Free())
	_, err := d.AllocDM(dmUnit+1, 0)
	require.Equal(t, syscall.ENOMEM, err)
	d.dmem(dmUnit)
}

// Bytes of freed memory that is imported are not allocated again.
func TestImportsKeepDM(t *testing.T) {
	d := small(t, func(l *Limits) { l.DM = 1 << 12 })
	dm := d.dmem(1 << 12)
	dm.Import()
	dm.Import()
	dm.Unimport()
	require.NoError(t, dm.Free())
	_, err := d.AllocDM(1, 0)
	require.Equal(t, syscall.ENOMEM, err)
	dm.Unimport()
	require.Zero(t, d.dm)
}

func TestRegisterDM(t *testing.T) {
	d := newNode(t, 1)
	pd, dm := d.pd(), d.dmem(1000)
	const all = dmAccess &^ optionalAccess
	for name, tt := range map[string]struct {
		offset, length uint64
		access         libibverbs.AccessFlags
		want           error
	}{
		"everything":            {0, 1000, all, nil},
		"a part":                {8, 16, zeroBased | remoteRead, nil},
		"the last byte":         {999, 1, zeroBased, nil},
		"optional flags":        {0, 1, zeroBased | libibverbs.IBV_ACCESS_RELAXED_ORDERING, nil},
		"not zero based":        {0, 1000, localWrite, syscall.EINVAL},
		"nothing":               {0, 0, zeroBased, nil},
		"nothing, at the end":   {1000, 0, zeroBased, nil},
		"past the end":          {999, 2, zeroBased, syscall.EINVAL},
		"after the end":         {1001, 1, zeroBased, syscall.EINVAL},
		"around the top":        {math.MaxUint64, 2, zeroBased, syscall.EINVAL},
		"longest":               {2, math.MaxUint64 - 1, zeroBased, syscall.EINVAL},
		"write without local":   {0, 1, zeroBased | remoteWrite, syscall.EINVAL},
		"binding of windows":    {0, 1, zeroBased | libibverbs.IBV_ACCESS_MW_BIND, syscall.EINVAL},
		"on demand":             {0, 1, zeroBased | libibverbs.IBV_ACCESS_ON_DEMAND, syscall.EINVAL},
		"an unknown flag":       {0, 1, zeroBased | 1<<31, syscall.EINVAL},
		"flush":                 {0, 1, zeroBased | libibverbs.IBV_ACCESS_FLUSH_GLOBAL, syscall.EINVAL},
		"what the device lacks": {0, 1, zeroBased | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT, syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := pd.RegisterDM(dm, tt.offset, tt.length, tt.access)
			require.ErrorIs(t, err, tt.want)
			if tt.want != nil {
				require.Zero(t, dm.regions)
				return
			}
			require.Equal(t, syscall.EBUSY, dm.Free())
			b, status := d.slice(pd, 0, tt.length, m.Key(), 0)
			require.Equal(t, success, status)
			if tt.length > 0 {
				require.Same(t, &dm.memory[tt.offset], &b[0])
			}
			_, status = d.slice(pd, 0, tt.length+1, m.Key(), 0)
			require.Equal(t, locProt, status)
			require.Equal(t, syscall.EOPNOTSUPP, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, nil, 0, zeroBased))
			require.Equal(t, syscall.EOPNOTSUPP, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION, nil, page(8), 0, zeroBased))
			require.NoError(t, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_PD, d.pd(), nil, 0, 0))
			require.NoError(t, m.Deregister())
		})
	}
	_, err := newNode(t, 2).pd().RegisterDM(dm, 0, 1, zeroBased)
	require.Equal(t, syscall.EINVAL, err, "of another device")
	require.False(t, dm.Freed())
	require.NoError(t, dm.Free())
	require.True(t, dm.Freed())
	require.Equal(t, syscall.EINVAL, dm.Free())
	require.Zero(t, d.dm, "the memory is free once")
	_, err = pd.RegisterDM(dm, 0, 1, zeroBased)
	require.Equal(t, syscall.EINVAL, err, "freed")
}

// Every request reads and writes device memory, at both ends.
func TestRequestsOnDM(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	const size = 10000
	for _, e := range []*end{a, b} {
		dm := e.dmem(size)
		n.fillRandom(dm.memory)
		m, err := e.pd.RegisterDM(dm, 0, size, dmAccess)
		require.NoError(t, err)
		e.mr = m
	}
	from, to := a.mr.memory, b.mr.memory
	for name, tt := range map[string]struct {
		slot SendSlot
		size int
		want func(before []byte, old uint64)
	}{
		"write": {SendSlot{Opcode: write}, size - 8, func([]byte, uint64) { require.Equal(t, from[8:], to[:size-8]) }},
		"send":  {SendSlot{Opcode: send}, size - 8, func([]byte, uint64) { require.Equal(t, from[8:], to[8:]) }},
		"read":  {SendSlot{Opcode: read}, size - 8, func([]byte, uint64) { require.Equal(t, to[:size-8], from[8:]) }},
		"add": {SendSlot{Opcode: fetchAdd, CompareAdd: 3}, 8, func(before []byte, old uint64) {
			require.Equal(t, before[:8], from[8:16])
			require.Equal(t, old+3, binary.NativeEndian.Uint64(to))
		}},
		"swap that does not match": {SendSlot{Opcode: cmpSwap, CompareAdd: 1, Swap: 2}, 8, func(before []byte, _ uint64) {
			require.Equal(t, before[:8], from[8:16])
			require.Equal(t, before, to)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n.fillRandom(from)
			n.fillRandom(to)
			before := append([]byte{}, to...)
			if tt.slot.Opcode == send {
				b.postRecv(7, b.mr.sge(8, size-8))
			}
			a.post(tt.slot.remote(b, 0), a.mr.sge(8, tt.size))
			n.run()
			require.Equal(t, []result{ok(0)}, results(a.send))
			results(b.recv)
			tt.want(before, binary.NativeEndian.Uint64(before))
		})
	}
}

// Keys and offsets that do not belong to the request are refused.
func TestDMRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		length, align uint64 // of the region, and its offset in the memory
		addr, size    uint64 // of the request
		opcode        libibverbs.WrOpcode
		foreign       bool
		want          libibverbs.WcStatus
	}{
		"past the end":            {100, 0, 93, 8, write, false, remAccess},
		"around the top":          {100, 0, math.MaxUint64 - 3, 8, write, false, remAccess},
		"read past the end":       {100, 0, 100, 1, read, false, remAccess},
		"atomic past the end":     {100, 0, 96, 8, fetchAdd, false, remAccess},
		"key of another domain":   {100, 0, 0, 8, write, true, remAccess},
		"region not aligned":      {100, 4, 0, 8, fetchAdd, false, remInvalid},
		"an address not aligned":  {100, 4, 4, 8, fetchAdd, false, remInvalid},
		"a write at any address":  {100, 4, 3, 8, write, false, success},
		"an aligned word, atomic": {100, 0, 8, 8, fetchAdd, false, success},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			pd := b.pd
			if tt.foreign {
				pd = b.node.pd()
			}
			dm := b.dmem(200)
			m, err := pd.RegisterDM(dm, tt.align, tt.length, dmAccess)
			require.NoError(t, err)
			a.post(SendSlot{Opcode: tt.opcode, RemoteAddr: tt.addr, RKey: m.key}, a.mr.sge(0, int(tt.size)))
			n.run()
			require.Equal(t, []result{{0, tt.want}}, results(a.send))
			if tt.want != success {
				require.Equal(t, make([]byte, 200), dm.memory)
			}
		})
	}
}

// The bytes that an alignment takes count, too.
func TestDMAlignmentIsLimited(t *testing.T) {
	d := small(t, func(l *Limits) { l.DM = 1 << 12 })
	var all []*DM
	for range 4 {
		dm, err := d.AllocDM(1, 10)
		require.NoError(t, err)
		all = append(all, dm)
	}
	_, err := d.AllocDM(1, 0)
	require.Equal(t, syscall.ENOMEM, err)
	for _, dm := range all {
		require.NoError(t, dm.Free())
	}
	require.Zero(t, d.dm)
}
