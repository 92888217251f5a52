// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const (
	localWrite   = libibverbs.IBV_ACCESS_LOCAL_WRITE
	remoteWrite  = libibverbs.IBV_ACCESS_REMOTE_WRITE
	remoteRead   = libibverbs.IBV_ACCESS_REMOTE_READ
	remoteAtomic = libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	zeroBased    = libibverbs.IBV_ACCESS_ZERO_BASED
)

// page returns memory that begins with a page.
func page(n int) []byte {
	b := make([]byte, n+pageSize)
	return b[-uintptr(unsafe.Pointer(unsafe.SliceData(b)))%pageSize:][:n]
}

func TestRegister(t *testing.T) {
	d := newNode(t, 1)
	pd := d.pd()
	memory := page(2 * pageSize)
	const last = math.MaxUint64 - 2*pageSize + 1 // the region ends with the last address
	for name, tt := range map[string]struct {
		memory []byte
		iova   uint64
		access libibverbs.AccessFlags
		want   error
	}{
		"nothing permitted":          {memory, 0, 0, nil},
		"everything":                 {memory, 0, allAccess, nil},
		"remote read only":           {memory, 0, remoteRead, nil},
		"optional flags":             {memory, 0, libibverbs.IBV_ACCESS_RELAXED_ORDERING | 1<<29, nil},
		"nil":                        {nil, 0, 0, syscall.EINVAL},
		"empty":                      {memory[:0], 0, 0, syscall.EINVAL},
		"unknown flag":               {memory, 0, 1 << 31, syscall.EINVAL},
		"another unknown flag":       {memory, 0, 1 << 10, syscall.EINVAL},
		"remote write without local": {memory, 0, remoteWrite, syscall.EINVAL},
		"atomic without local":       {memory, 0, remoteAtomic | remoteRead, syscall.EINVAL},
		"huge pages":                 {memory, 0, libibverbs.IBV_ACCESS_HUGETLB, nil},
		"flush":                      {memory, 0, localWrite | libibverbs.IBV_ACCESS_FLUSH_GLOBAL, nil},
		"flush, persistent":          {memory, 0, localWrite | libibverbs.IBV_ACCESS_FLUSH_PERSISTENT, syscall.EOPNOTSUPP},
		"up to the last address":     {memory, last, 0, nil},
		"past the last address":      {memory, last + pageSize, 0, syscall.EINVAL},
		"elsewhere in its page":      {memory, 8, 0, syscall.EINVAL},
		"the same place in its page": {memory[8:], 8 + 5*pageSize, 0, nil},
		"zero based, from anywhere":  {memory[8:], 1, zeroBased, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := pd.RegisterMR(tt.memory, tt.iova, tt.access)
			if tt.want != nil {
				require.Equal(t, tt.want, err)
				return
			}
			require.NoError(t, err)
			start := tt.iova
			if tt.access&zeroBased != 0 {
				start = 0
			}
			n := uint64(len(tt.memory))
			b, status := d.slice(pd, start+n-1, 1, m.Key(), 0)
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, status)
			require.Same(t, &tt.memory[n-1], &b[0])
			require.NoError(t, m.Deregister())
			_, status = d.slice(pd, start, 1, m.Key(), 0)
			require.Equal(t, libibverbs.IBV_WC_LOC_PROT_ERR, status)
		})
	}
	require.Empty(t, d.mrs)
	require.NoError(t, pd.Destroy())
}

// slice returns length bytes from addr on, as a local request reaches them.
func (d *Device) slice(pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags) ([]byte, libibverbs.WcStatus) {
	if length == 0 {
		return nil, success
	}
	if m := d.local(pd, addr, length, key, access); m != nil {
		return m.bytes(addr, length), success
	}
	return nil, locProt
}

// remoteSlice returns length bytes from addr on, as a packet to q reaches them.
func (d *Device) remoteSlice(
	q *QP, pd *PD, addr, length uint64, key uint32, access libibverbs.AccessFlags,
) ([]byte, libibverbs.WcStatus) {
	at, status := d.remote(q, pd, addr, length, key, access)
	if status != success {
		return nil, status
	}
	return at.bytes(length), success
}

func TestSlice(t *testing.T) {
	d := newNode(t, 1)
	pd, other, cq := d.pd(), d.pd(), d.cq(1)
	q := d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil)
	memory := page(pageSize)
	const iova, top = 8 * pageSize, math.MaxUint64 - pageSize + 1
	register := func(pd *PD, iova uint64, access libibverbs.AccessFlags) uint32 {
		m, err := pd.RegisterMR(memory, iova, access)
		require.NoError(t, err)
		return m.Key()
	}
	all := register(pd, iova, allAccess)
	readable := register(pd, iova, remoteRead)
	writable := register(pd, iova, localWrite|remoteWrite)
	atTop := register(pd, top, allAccess)
	foreign := register(other, iova, allAccess)

	for name, tt := range map[string]struct {
		addr, length      uint64
		key               uint32
		local, remote     libibverbs.AccessFlags // that is asked for
		localOK, remoteOK bool
	}{
		"all":                    {iova, pageSize, all, localWrite, remoteWrite, true, true},
		"first byte":             {iova, 1, all, 0, remoteRead, true, true},
		"last byte":              {iova + pageSize - 1, 1, all, 0, remoteAtomic, true, true},
		"before":                 {iova - 1, 1, all, 0, remoteRead, false, false},
		"across the start":       {iova - 1, 2, all, 0, remoteRead, false, false},
		"across the end":         {iova + pageSize - 1, 2, all, 0, remoteRead, false, false},
		"after":                  {iova + pageSize, 1, all, 0, remoteRead, false, false},
		"address 0":              {0, 1, all, 0, remoteRead, false, false},
		"longest":                {iova, math.MaxUint64, all, 0, remoteRead, false, false},
		"around the top":         {math.MaxUint64, iova + 2, all, 0, remoteRead, false, false},
		"no bytes":               {12345, 0, 0, localWrite, remoteAtomic, true, true},
		"no key":                 {iova, 1, 0, 0, remoteRead, false, false},
		"other tag":              {iova, 1, all ^ 1, 0, remoteRead, false, false},
		"other index":            {iova, 1, all ^ 1<<31, 0, remoteRead, false, false},
		"other domain":           {iova, 1, foreign, 0, remoteRead, false, false},
		"without local write":    {iova, 1, readable, localWrite, remoteWrite, false, false},
		"what it may":            {iova, 1, readable, 0, remoteRead, true, true},
		"without remote read":    {iova, 1, writable, localWrite, remoteRead, true, false},
		"without atomic":         {iova, 1, writable, 0, remoteAtomic, true, false},
		"top":                    {top, pageSize, atTop, localWrite, remoteWrite, true, true},
		"last address":           {math.MaxUint64, 1, atTop, 0, remoteRead, true, true},
		"past the last address":  {math.MaxUint64, 2, atTop, 0, remoteRead, false, false},
		"0 in the region at top": {0, 1, atTop, 0, remoteRead, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			requireSlice := func(want bool, failure libibverbs.WcStatus, b []byte, status libibverbs.WcStatus) {
				if !want {
					require.Equal(t, failure, status)
					require.Nil(t, b)
					return
				}
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, status)
				require.Len(t, b, int(tt.length))
				require.Equal(t, len(b), cap(b))
			}
			b, status := d.slice(pd, tt.addr, tt.length, tt.key, tt.local)
			requireSlice(tt.localOK, libibverbs.IBV_WC_LOC_PROT_ERR, b, status)
			b, status = d.remoteSlice(q, q.pd, tt.addr, tt.length, tt.key, tt.remote)
			requireSlice(tt.remoteOK, libibverbs.IBV_WC_REM_ACCESS_ERR, b, status)
		})
	}
}

// Keys come back late and differ.
func TestKeys(t *testing.T) {
	d := newNode(t, 1)
	pd := d.pd()
	memory := make([]byte, 8)
	seen := map[uint32]bool{0: true}
	for i := range 5000 {
		m, err := pd.RegisterMR(memory, 0, zeroBased)
		require.NoError(t, err)
		require.False(t, seen[m.Key()])
		require.NotZero(t, m.Key()>>8)
		seen[m.Key()] = true
		if i%2 == 0 {
			require.NoError(t, m.Deregister())
		}
	}
	// An index that is in use is passed over, and so is 0.
	taken, err := pd.RegisterMR(memory, 0, zeroBased)
	require.NoError(t, err)
	window := d.window(pd, libibverbs.IBV_MW_TYPE_1)
	d.config.Random = rand.New(&numbers{0x7F, taken.Key() ^ 1, window.Key() ^ 2, 0x12345678})
	require.Equal(t, uint32(0x12345678), d.newKey())
}

// numbers is a source of the numbers that rand.Rand.Uint32 is to return.
type numbers []uint32

func (n *numbers) Uint64() uint64 {
	next := uint64((*n)[0]) << 32
	*n = (*n)[1:]
	return next
}

// Keys and numbers of queue pairs do not tell the next ones: none of a few
// simple rules gives one from those before it.
func TestNumbersAreNotGuessed(t *testing.T) {
	d := New(Config{FirstQPN: 1 << 16, QPNs: 1 << 16})
	keys, qpns := map[uint32]int{}, map[uint32]int{}
	var lastKey, lastQPN uint32
	for range 1000 {
		key, qpn := d.newKey(), d.newQPN()
		keys[(key-lastKey)>>8]++
		qpns[qpn-lastQPN]++
		lastKey, lastQPN = key, qpn
	}
	for step, times := range keys {
		require.LessOrEqual(t, times, 3, "keys with a distance of %#x", step)
	}
	for step, times := range qpns {
		require.LessOrEqual(t, times, 5, "numbers with a distance of %#x", step)
	}
}

func TestRereg(t *testing.T) {
	const (
		translation = libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION
		domain      = libibverbs.IBV_REREG_MR_CHANGE_PD
		access      = libibverbs.IBV_REREG_MR_CHANGE_ACCESS
	)
	d, elsewhere := newNode(t, 1), newNode(t, 2)
	foreign := elsewhere.pd()
	for name, tt := range map[string]struct {
		flags  libibverbs.ReregMrFlags
		pd     *PD // nil: another one
		length int
		iova   uint64
		access libibverbs.AccessFlags
		was    libibverbs.AccessFlags
		want   error
	}{
		"translation":                  {flags: translation, length: 100, iova: 0x5000},
		"domain":                       {flags: domain},
		"access":                       {flags: access, access: localWrite | remoteWrite},
		"translation and domain":       {flags: translation | domain, length: 10},
		"translation and access":       {flags: translation | access, length: 10, iova: 0x1000, access: remoteRead},
		"domain and access":            {flags: domain | access, access: remoteRead | libibverbs.IBV_ACCESS_RELAXED_ORDERING},
		"everything":                   {flags: translation | domain | access, length: 1, iova: 0x2000, access: allAccess},
		"to zero based":                {flags: translation | access, length: 10, iova: 0x1000, access: zeroBased},
		"zero based":                   {flags: translation, length: 10, iova: 0x1001, was: zeroBased},
		"from zero based":              {flags: translation | access, length: 10, iova: 0x1000, was: zeroBased},
		"nothing":                      {flags: 0, want: syscall.EINVAL},
		"unknown flag":                 {flags: 8 | access, want: syscall.EINVAL},
		"no memory":                    {flags: translation | domain, want: syscall.EINVAL},
		"elsewhere in its page":        {flags: translation, length: 10, iova: 8, want: syscall.EINVAL},
		"past the last address":        {flags: translation, length: pageSize + 1, iova: math.MaxUint64 - pageSize + 1, want: syscall.EINVAL},
		"another device's domain":      {flags: domain | access, pd: foreign, want: syscall.EINVAL},
		"remote write without local":   {flags: access, access: remoteWrite, want: syscall.EINVAL},
		"unsupported access":           {flags: translation | access, length: 10, access: libibverbs.IBV_ACCESS_ON_DEMAND, want: syscall.EOPNOTSUPP},
		"to zero based, same memory":   {flags: access, access: zeroBased, want: syscall.EINVAL},
		"from zero based, same memory": {flags: access, was: zeroBased, want: syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			pd, other := d.pd(), d.pd()
			old, memory := page(8), page(2 * pageSize)[:tt.length]
			m, err := pd.RegisterMR(old, 0x7000, tt.was)
			require.NoError(t, err)
			before := *m
			if tt.pd == nil {
				tt.pd = other
			}
			require.Equal(t, tt.want, m.Rereg(tt.flags, tt.pd, memory, tt.iova, tt.access))
			want := before
			if tt.want == nil {
				if tt.flags&domain != 0 {
					want.pd = other
				}
				if tt.flags&access != 0 {
					want.access = tt.access &^ libibverbs.IBV_ACCESS_RELAXED_ORDERING
				}
				if tt.flags&translation != 0 {
					want.memory, want.iova = memory, tt.iova
					if want.access&zeroBased != 0 {
						want.iova = 0
					}
				}
			}
			require.True(t, want.pd == m.pd && want.key == m.key && want.iova == m.iova && want.access == m.access)
			require.Same(t, &want.memory[0], &m.memory[0])
			require.Len(t, m.memory, len(want.memory))
			require.ErrorIs(t, m.pd.Destroy(), syscall.EBUSY)
			require.NoError(t, m.Deregister())
			require.NoError(t, pd.Destroy())
			require.NoError(t, other.Destroy())
		})
	}
	t.Run("no domain", func(t *testing.T) {
		m := d.memory(d.pd(), 1, 0)
		require.Equal(t, syscall.EINVAL, m.Rereg(domain, nil, nil, 0, 0))
	})
	t.Run("window", func(t *testing.T) {
		o := d.objects()
		require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, o.mw, o.mr, 0, 10, remoteRead))
		require.Equal(t, syscall.EBUSY, o.mr.Rereg(access, nil, nil, 0, 0))
		require.True(t, o.qp.invalidate(o.mw.Key(), 0))
		require.NoError(t, o.mr.Rereg(access, nil, nil, 0, 0))
	})
}
