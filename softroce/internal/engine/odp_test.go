// SPDX-License-Identifier: Apache-2.0

//go:build unix

package engine

import (
	"math"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const onDemand = libibverbs.IBV_ACCESS_ON_DEMAND

// reserved returns n bytes of addresses at which nothing is mapped, and a
// function that maps memory there.
func reserved(t testing.TB, n int) (b []byte, mapIt func()) {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(b)) })
	return b, func() { require.NoError(t, syscall.Mprotect(b, syscall.PROT_READ|syscall.PROT_WRITE)) }
}

// paged registers memory that is paged on demand.
func (e *end) paged(b []byte) *MR {
	e.t.Helper()
	m, err := e.pd.RegisterOnDemand(addressOf(b), uint64(len(b)), addressOf(b), allAccess|onDemand)
	require.NoError(e.t, err)
	return m
}

// implicit registers the whole address space.
func (e *end) implicit(access libibverbs.AccessFlags) *MR {
	e.t.Helper()
	m, err := e.pd.RegisterOnDemand(0, math.MaxUint64, 0, access|onDemand)
	require.NoError(e.t, err)
	return m
}

func TestRegisterOnDemand(t *testing.T) {
	const at = 1 << 40
	for name, tt := range map[string]struct {
		odp               uint32
		start, size, iova uint64
		access            libibverbs.AccessFlags
		want              error
	}{
		"memory that is not there":         {2, at, 100, at, onDemand, nil},
		"with huge pages":                  {2, at, 100, at, onDemand | libibverbs.IBV_ACCESS_HUGETLB, nil},
		"at another address":               {2, at + 8, 100, 8, onDemand | localWrite | remoteWrite, nil},
		"of a device without implicit":     {1, at, 100, at, onDemand, nil},
		"elsewhere in its page":            {2, at + 8, 100, 0, onDemand, syscall.EINVAL},
		"zero based":                       {2, at + 8, 100, 0, onDemand | zeroBased, nil},
		"nothing":                          {2, at, 0, at, onDemand, syscall.EINVAL},
		"past the last address":            {2, math.MaxUint64, 2, math.MaxUint64, onDemand, syscall.EINVAL},
		"iova past the last address":       {2, at, 2 << 12, math.MaxUint64 - 4095, onDemand, syscall.EINVAL},
		"not on demand":                    {2, at, 100, at, localWrite, syscall.EINVAL},
		"remote write without local":       {2, at, 100, at, onDemand | remoteWrite, syscall.EINVAL},
		"of a device without":              {0, at, 100, at, onDemand, syscall.EOPNOTSUPP},
		"everything":                       {2, 0, math.MaxUint64, 0, onDemand | localWrite | remoteWrite, nil},
		"everything, of a device without":  {1, 0, math.MaxUint64, 0, onDemand, syscall.EINVAL},
		"everything at another address":    {2, 0, math.MaxUint64, 4096, onDemand, syscall.EINVAL},
		"everything in huge pages":         {2, 0, math.MaxUint64, 0, onDemand | libibverbs.IBV_ACCESS_HUGETLB, syscall.EINVAL},
		"everything but the first page":    {2, 4096, math.MaxUint64, 4096, onDemand, syscall.EINVAL},
		"everything, and not on demand":    {2, 0, math.MaxUint64, 0, localWrite, syscall.EINVAL},
		"everything, of a device with odp": {0, 0, math.MaxUint64, 0, onDemand, syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			d := small(t, func(l *Limits) { l.ODP = tt.odp })
			pd := d.pd()
			m, err := pd.RegisterOnDemand(tt.start, tt.size, tt.iova, tt.access)
			require.ErrorIs(t, err, tt.want)
			if tt.want != nil {
				return
			}
			const some = libibverbs.IBV_REREG_MR_CHANGE_ACCESS
			require.Equal(t, syscall.EOPNOTSUPP, m.Rereg(some, nil, nil, 0, localWrite))
			require.Equal(t, syscall.EOPNOTSUPP, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION, nil, page(8), 0, 0))
			require.NoError(t, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_PD, d.pd(), nil, 0, 0))
			require.NoError(t, m.Deregister())
			require.NoError(t, pd.Destroy())
		})
	}
	pd := newNode(t, 1).pd()
	_, err := pd.RegisterMR(page(8), 0, onDemand)
	require.Equal(t, syscall.EINVAL, err)
	m, err := pd.RegisterMR(page(8), 0, localWrite)
	require.NoError(t, err)
	require.Equal(t, syscall.EOPNOTSUPP, m.Rereg(libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, page(8), 0, onDemand))
}

func TestODPCaps(t *testing.T) {
	type caps = libibverbs.OdpTransportCapBits
	const datagrams = libibverbs.IBV_ODP_SUPPORT_SEND | libibverbs.IBV_ODP_SUPPORT_RECV
	const unreliable = datagrams | libibverbs.IBV_ODP_SUPPORT_WRITE
	const srq = libibverbs.IBV_ODP_SUPPORT_SRQ_RECV
	const reads = libibverbs.IBV_ODP_SUPPORT_READ
	const written = libibverbs.IBV_ODP_SUPPORT_FLUSH | libibverbs.IBV_ODP_SUPPORT_ATOMIC_WRITE
	for name, tt := range map[string]struct {
		limit      func(*Limits)
		general    libibverbs.OdpGeneralCaps
		rc, uc, ud caps
	}{
		"largest": {
			func(*Limits) {}, libibverbs.IBV_ODP_SUPPORT | libibverbs.IBV_ODP_SUPPORT_IMPLICIT,
			unreliable | srq | reads | written | libibverbs.IBV_ODP_SUPPORT_ATOMIC, unreliable | srq, datagrams | srq,
		},
		"of regions": {
			func(l *Limits) { l.ODP, l.Atomics = 1, false }, libibverbs.IBV_ODP_SUPPORT,
			unreliable | srq | reads | written, unreliable | srq, datagrams | srq,
		},
		"little": {
			func(l *Limits) {
				l.SRQs, l.Reads, l.UC, l.UD, l.Flush, l.AtomicWrite = 0, 0, false, false, false, false
			},
			libibverbs.IBV_ODP_SUPPORT | libibverbs.IBV_ODP_SUPPORT_IMPLICIT, unreliable, 0, 0,
		},
		"none": {func(l *Limits) { l.ODP = 0 }, 0, 0, 0, 0},
	} {
		a, err := small(t, tt.limit).Attr()
		require.NoError(t, err)
		require.EqualValues(t, tt.general, a.OdpCaps.GeneralCaps, name)
		of := a.OdpCaps.PerTransportCaps
		require.Equal(t, [...]caps{tt.rc, tt.uc, tt.ud}, [...]caps{of.RcOdpCaps, of.UcOdpCaps, of.UdOdpCaps}, name)
		xrc := tt.rc
		if name == "little" {
			xrc = 0 // there is none without shared receive queues
		}
		require.Equal(t, xrc, a.XrcOdpCaps, name)
	}
}

// Memory need not be mapped when it is registered, and a request finds what is
// mapped when it is executed. A request for memory that is not mapped fails as
// on Linux, at the end that lacks the memory.
func TestOnDemand(t *testing.T) {
	for name, tt := range map[string]struct {
		opcode libibverbs.WrOpcode
		local  bool // whether the requester's memory is paged on demand, or else the responder's
		sender libibverbs.WcStatus
		recv   libibverbs.WcStatus
	}{
		"send from it":    {send, true, locProt, noRecv},
		"write from it":   {write, true, locProt, noRecv},
		"read into it":    {read, true, locProt, noRecv},
		"atomic into it":  {fetchAdd, true, locProt, noRecv},
		"receive into it": {send, false, remOp, locProt},
		"write into it":   {write, false, remAccess, flushed},
		"read from it":    {read, false, remAccess, flushed},
		"atomic on it":    {fetchAdd, false, remAccess, flushed},
		"swap on it":      {cmpSwap, false, remAccess, flushed},
	} {
		for kind, implicit := range map[string]bool{"region": false, "everything": true} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				l, a, b := newLoop(t, 1<<16) // whose packets hold the program's memory itself
				memory, mapIt := reserved(t, 1<<14)
				of := b
				if tt.local {
					of = a
				}
				paged := of.paged(memory)
				if implicit {
					paged = of.implicit(allAccess)
				}
				size := 10000
				if tt.opcode == fetchAdd || tt.opcode == cmpSwap {
					size = 8
				}
				request := func(id uint64) {
					from, to := a.mr.sge(0, size), b.mr.sge(0, size)
					sge := libibverbs.Sge{Addr: addressOf(memory), Length: uint32(size), Lkey: paged.key}
					if tt.local {
						from = sge
					} else {
						to = sge
					}
					b.postRecv(id, to)
					a.post(SendSlot{ID: id, Opcode: tt.opcode, RemoteAddr: to.Addr, RKey: to.Lkey}, from)
					settleAll(l)
				}
				mapIt()
				pattern(memory, 1)
				pattern(a.mr.memory, 2)
				pattern(b.mr.memory, 3)
				was := append([]byte{}, memory...)
				request(1)
				require.Equal(t, []result{ok(1)}, results(a.send))
				if size > 8 {
					require.Equal(t, a.bytesAt(tt.local, memory, size), b.bytesAt(!tt.local, memory, size))
				} else if tt.local {
					require.NotEqual(t, was, memory)
				}
				results(b.recv)

				require.NoError(t, syscall.Mprotect(memory[1<<12:], syscall.PROT_NONE))
				if size == 8 {
					require.NoError(t, syscall.Mprotect(memory[:1<<12], syscall.PROT_NONE))
				}
				request(2)
				require.Equal(t, []result{{2, tt.sender}}, results(a.send))
				got := results(b.recv)
				if tt.recv == noRecv {
					return
				}
				require.Contains(t, got, result{got[len(got)-1].id, tt.recv})
			})
		}
	}
}

// bytesAt returns the end's memory, or that which is paged on demand.
func (e *end) bytesAt(paged bool, memory []byte, n int) []byte {
	if paged {
		return memory[:n]
	}
	return e.mr.memory[:n]
}

// settleAll carries packets until nothing is left to do, timers included.
func settleAll(l *loop) {
	for now := time.Duration(0); now != Never; {
		now = l.Advance(now)
		inbox := l.inbox
		l.inbox = nil
		for _, p := range inbox {
			l.Receive(p)
		}
		if len(inbox) > 0 {
			now = l.Device.now
		}
	}
}

// A peer may ask for any address in a region of the whole address space. It
// learns that there is nothing, or gets the bytes, and the process lives, also
// while its garbage is collected.
func TestPeerChoosesTheAddress(t *testing.T) {
	free := make([]byte, 64<<20) // whose addresses remain Go's
	hole := addressOf(free)
	free = nil
	runtime.GC()
	memory, _ := reserved(t, 1<<13)
	there := page(1 << 13)
	for name, tt := range map[string]struct {
		addr uint64
		want bool
	}{
		"0": {0, false}, "8": {8, false}, "the first page": {4095, false}, "the second page": {4096, false},
		"memory": {addressOf(there), true}, "a page that is not mapped": {addressOf(memory), false},
		"top of user space": {1<<47 - 4096, false}, "across it": {1<<47 - 8, false}, "beyond it": {1 << 47, false},
		"a non-canonical address": {1 << 56, false}, "the kernel's": {0xFFFF888000000000, false}, "the last": {math.MaxUint64 - 64, false},
		"memory that was freed": {hole + 1<<20, true}, // mapped still, or not
	} {
		t.Run(name, func(t *testing.T) {
			for _, op := range []libibverbs.WrOpcode{read, write, fetchAdd} {
				l, a, b := newLoop(t, 1<<13)
				m := b.implicit(remoteRead)
				if op != read {
					if name == "memory that was freed" {
						continue // a peer that may write everywhere can do anything
					}
					m = b.implicit(allAccess)
				}
				size := 8
				if op == read {
					size = 1 << 13
				}
				a.post(SendSlot{ID: 1, Opcode: op, RemoteAddr: tt.addr, RKey: m.key}, a.mr.sge(0, size))
				runtime.GC()
				settleAll(l)
				runtime.GC()
				got := results(a.send)
				require.Len(t, got, 1)
				switch {
				case name == "memory that was freed":
				case tt.want:
					require.Equal(t, ok(1), got[0])
				case op == fetchAdd && tt.addr%8 != 0:
					require.Equal(t, remInvalid, got[0].status)
				default:
					require.Equal(t, remAccess, got[0].status, "opcode %d", op)
				}
			}
		})
	}
	runtime.KeepAlive(there)
}

// A window on memory that is paged on demand, and a region whose addresses are
// not the program's.
func TestOnDemandThroughWindow(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	memory := page(1 << 13)
	m, err := b.pd.RegisterOnDemand(addressOf(memory), 1<<13, 1<<20, allAccess|onDemand)
	require.NoError(t, err)
	w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
	require.Equal(t, success, bindMW(b.qp, w, m, 100, 50, remoteWrite))
	n.fillRandom(a.mr.memory)
	a.post(SendSlot{ID: 1, Opcode: write, RemoteAddr: 1<<20 + 110, RKey: w.key}, a.mr.sge(0, 40))
	n.run()
	require.Equal(t, []result{ok(1)}, results(a.send))
	require.Equal(t, a.mr.memory[:40], memory[110:150])
	a.post(SendSlot{ID: 2, Opcode: write, RemoteAddr: 1<<20 + 110, RKey: w.key}, a.mr.sge(0, 41))
	n.run()
	require.Equal(t, []result{{2, remAccess}}, results(a.send))
}

func TestPrefetch(t *testing.T) {
	d := newNode(t, 1)
	pd, other := d.pd(), d.pd()
	memory := page(2 * pageSize)
	register := func(pd *PD, access libibverbs.AccessFlags) uint32 {
		m, err := pd.RegisterOnDemand(addressOf(memory), 2*pageSize, 1<<20, access|onDemand)
		require.NoError(t, err)
		return m.key
	}
	key, readable, foreign := register(pd, localWrite), register(pd, 0), register(other, localWrite)
	plain := d.memory(pd, 100, allAccess)
	all, err := pd.RegisterOnDemand(0, math.MaxUint64, 0, onDemand)
	require.NoError(t, err)
	null, err := pd.AllocNullMR()
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		addr, length uint64
		key          uint32
		write        bool
		start        uint64 // 0: EFAULT
	}{
		"all":               {1 << 20, 2 * pageSize, key, true, addressOf(memory)},
		"a part":            {1<<20 + 5, 6, key, false, addressOf(memory) + 5},
		"to read":           {1 << 20, 2 * pageSize, readable, false, addressOf(memory)},
		"not to be written": {1 << 20, 2 * pageSize, readable, true, 0},
		"too long":          {1 << 20, 2*pageSize + 1, key, false, 0},
		"before":            {1<<20 - 1, 1, key, false, 0},
		"around the top":    {1 << 20, math.MaxUint64, key, false, 0},
		"foreign":           {1 << 20, 1, foreign, false, 0},
		"no key":            {1 << 20, 1, key ^ 1, false, 0},
		"not on demand":     {plain.iova, 1, plain.key, false, 0},
		"null":              {0, 1, null.key, false, 0},
		"everything":        {1 << 30, math.MaxUint32, all.key, false, 1 << 30},
		"kernel's memory":   {0xFFFF888000000000, 1, all.key, false, 0},
	} {
		start, err := pd.Prefetch(tt.addr, tt.length, tt.key, tt.write)
		if tt.start == 0 {
			require.Equal(t, syscall.EFAULT, err, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, tt.start, start, name)
	}
}

// A null region discards what is written and has zeros, as a part of a list of
// segments. Peers cannot use it, nor can windows.
func TestNullMR(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 1<<14)
	null, err := a.pd.AllocNullMR()
	require.NoError(t, err)
	other, err := b.pd.AllocNullMR()
	require.NoError(t, err)
	const part = 5000
	nothing := func(m *MR, length uint32) libibverbs.Sge {
		return libibverbs.Sge{Addr: uint64(n.random.Uint32()) << 31, Length: length, Lkey: m.key}
	}
	fill := func() { n.fillRandom(a.mr.memory); n.fillRandom(b.mr.memory) }
	run := func(name string, s SendSlot, sges ...libibverbs.Sge) {
		a.post(s, sges...)
		n.run()
		require.Equal(t, []result{ok(0)}, results(a.send), name)
		results(b.recv)
	}

	fill()
	run("write", SendSlot{Opcode: write}.remote(b, 0), a.mr.sge(0, 3), nothing(null, part), a.mr.sge(3, 4))
	require.Equal(t, a.mr.memory[:3], b.mr.memory[:3])
	require.Equal(t, make([]byte, part), b.mr.memory[3:][:part])
	require.Equal(t, a.mr.memory[3:7], b.mr.memory[3+part:][:4])

	fill()
	was := append([]byte{}, a.mr.memory...)
	run("read", SendSlot{Opcode: read}.remote(b, 0), a.mr.sge(0, 3), nothing(null, part), a.mr.sge(3, 4))
	require.Equal(t, b.mr.memory[:3], a.mr.memory[:3])
	require.Equal(t, b.mr.memory[3+part:][:4], a.mr.memory[3:7])
	require.Equal(t, was[7:], a.mr.memory[7:])

	fill()
	was = append([]byte{}, b.mr.memory...)
	b.postRecv(1, nothing(other, part), b.mr.sge(0, 10))
	run("send", SendSlot{Opcode: send}, a.mr.sge(0, part+10))
	require.Equal(t, a.mr.memory[part:][:10], b.mr.memory[:10])
	require.Equal(t, was[10:], b.mr.memory[10:])

	run("atomic", SendSlot{Opcode: fetchAdd, CompareAdd: 1}.remote(b, 0), nothing(null, 8))
	require.Equal(t, make([]byte, pageSize), zeros[:], "nothing is written to it")

	require.Equal(t, libibverbs.IBV_WC_MW_BIND_ERR, bindMW(a.qp, a.window(a.pd, libibverbs.IBV_MW_TYPE_1), null, 0, 10, remoteRead))
	for _, flags := range []libibverbs.ReregMrFlags{libibverbs.IBV_REREG_MR_CHANGE_PD, libibverbs.IBV_REREG_MR_CHANGE_ACCESS} {
		require.Equal(t, syscall.EINVAL, null.Rereg(flags, a.node.pd(), nil, 0, 0))
	}
	a.post(SendSlot{ID: 1, Opcode: write, RKey: other.key}, a.mr.sge(0, 8))
	n.run()
	require.Equal(t, []result{{1, remAccess}}, results(a.send), "for the peer, it is not there")
	require.NoError(t, null.Deregister())

	_, err = small(t, func(l *Limits) { l.NullMR = false }).pd().AllocNullMR()
	require.Equal(t, syscall.EOPNOTSUPP, err)
}

// The null region of another domain is not there either.
func TestNullMROfAnotherDomain(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	foreign, err := a.node.pd().AllocNullMR()
	require.NoError(t, err)
	a.post(SendSlot{ID: 1, Opcode: write}.remote(b, 0), libibverbs.Sge{Addr: 0, Length: 8, Lkey: foreign.key})
	n.run()
	require.Equal(t, []result{{1, locProt}}, results(a.send))
}
