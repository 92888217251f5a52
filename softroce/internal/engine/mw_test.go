// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// bindSlot returns the request to bind the window, with its next key, to length
// bytes at offset of the region.
func bindSlot(w *MW, m *MR, offset, length uint64, access libibverbs.AccessFlags) *SendSlot {
	return &SendSlot{
		Opcode: libibverbs.IBV_WR_BIND_MW, RemoteAddr: m.iova + offset, CompareAdd: length, Swap: w.Handle(),
		RKey: w.Key()&^0xFF | (w.Key()+1)&0xFF, BindLKey: m.Key(), BindAccess: uint32(access),
	}
}

func bindMW(q *QP, w *MW, m *MR, offset, length uint64, access libibverbs.AccessFlags) libibverbs.WcStatus {
	return q.bind(bindSlot(w, m, offset, length, access))
}

func (d *node) window(p *PD, kind libibverbs.MwType) *MW {
	w, err := p.AllocMW(kind)
	require.NoError(d.t, err)
	return w
}

var mwTypes = map[string]libibverbs.MwType{"type 1": libibverbs.IBV_MW_TYPE_1, "type 2": libibverbs.IBV_MW_TYPE_2}

func TestBind(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	pd := o.pd
	other := d.pd()
	foreignQP := d.qp(other, libibverbs.IBV_QPT_RC, o.cq, o.cq, nil)
	const bindable = libibverbs.IBV_ACCESS_MW_BIND
	plain, readOnly, foreign := d.memory(pd, 4096, localWrite), d.memory(pd, 4096, bindable), d.memory(other, 4096, allAccess)
	gone := d.memory(pd, 4096, allAccess)
	require.NoError(t, gone.Deregister())
	foreignMW := d.window(other, libibverbs.IBV_MW_TYPE_2)

	const bad = libibverbs.IBV_WC_MW_BIND_ERR
	for name, tt := range map[string]struct {
		change func(s *SendSlot)
		qp     *QP
		want   libibverbs.WcStatus
	}{
		"all": {},
		"everything but atomics on read-only": {func(s *SendSlot) {
			s.BindLKey = readOnly.key
			s.RemoteAddr = readOnly.iova
			s.BindAccess = uint32(remoteRead)
		}, nil, 0},
		"no rights":        {func(s *SendSlot) { s.BindAccess = 0 }, nil, 0},
		"zero based":       {func(s *SendSlot) { s.BindAccess |= uint32(zeroBased) }, nil, 0},
		"last byte":        {func(s *SendSlot) { s.RemoteAddr += 4095; s.CompareAdd = 1 }, nil, 0},
		"any tag":          {func(s *SendSlot) { s.RKey ^= 0x80 }, nil, 0},
		"past the end":     {func(s *SendSlot) { s.RemoteAddr++ }, nil, bad},
		"before":           {func(s *SendSlot) { s.RemoteAddr -= 4096 }, nil, bad},
		"huge":             {func(s *SendSlot) { s.CompareAdd = 1 << 63 }, nil, bad},
		"no window":        {func(s *SendSlot) { s.Swap = 0 }, nil, bad},
		"unknown window":   {func(s *SendSlot) { s.Swap |= 1 << 32 }, nil, bad},
		"another's key":    {func(s *SendSlot) { s.RKey ^= 1 << 8 }, nil, bad},
		"window elsewhere": {func(s *SendSlot) { s.Swap, s.RKey = foreignMW.Handle(), foreignMW.Key()+1 }, nil, bad},
		"no region":        {func(s *SendSlot) { s.BindLKey = 0 }, nil, bad},
		"wrong tag":        {func(s *SendSlot) { s.BindLKey ^= 1 }, nil, bad},
		"closed region":    {func(s *SendSlot) { s.BindLKey = gone.key }, nil, bad},
		"other domain":     {func(s *SendSlot) { s.BindLKey, s.RemoteAddr = foreign.key, foreign.iova }, nil, bad},
		"without bind":     {func(s *SendSlot) { s.BindLKey, s.RemoteAddr = plain.key, plain.iova }, nil, bad},
		"write to read-only": {func(s *SendSlot) {
			s.BindLKey, s.RemoteAddr, s.BindAccess = readOnly.key, readOnly.iova, uint32(remoteWrite)
		}, nil, bad},
		"atomic on read-only": {func(s *SendSlot) {
			s.BindLKey, s.RemoteAddr, s.BindAccess = readOnly.key, readOnly.iova, uint32(remoteAtomic)
		}, nil, bad},
		"local access": {func(s *SendSlot) { s.BindAccess |= uint32(localWrite | bindable | optionalAccess) }, nil, 0},
		"local access to read-only": {func(s *SendSlot) {
			s.BindLKey, s.RemoteAddr, s.BindAccess = readOnly.key, readOnly.iova, uint32(localWrite|remoteRead)
		}, nil, 0},
		"unknown access":               {func(s *SendSlot) { s.BindAccess |= 1 << 31 }, nil, bad},
		"queue pair of another domain": {nil, foreignQP, bad},
	} {
		for kindName, kind := range mwTypes {
			t.Run(name+"/"+kindName, func(t *testing.T) {
				w := d.window(pd, kind)
				before := *w
				s := bindSlot(w, o.mr, 0, 4096, remoteRead|remoteWrite)
				if tt.change != nil {
					tt.change(s)
				}
				q := o.qp
				if tt.qp != nil {
					q = tt.qp
				}
				require.Equal(t, tt.want, q.bind(s))
				if tt.want != libibverbs.IBV_WC_SUCCESS {
					require.True(t, before == *w)
				} else {
					require.Equal(t, s.RKey, w.Key())
					require.Equal(t, before.Handle(), w.Handle())
				}
				require.NoError(t, w.Dealloc())
				require.Zero(t, o.mr.windows)
				require.Zero(t, readOnly.windows)
			})
		}
	}
}

// A region stays while windows are bound to it. A window of type 1 can be bound
// elsewhere and to nothing; one of type 2 has to be invalidated first.
func TestRebind(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	more := d.memory(o.pd, 100, allAccess)

	one := d.window(o.pd, libibverbs.IBV_MW_TYPE_1)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, one, o.mr, 0, 10, remoteRead))
	require.Equal(t, syscall.EBUSY, o.mr.Deregister())
	old := one.Key()
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, one, more, 0, 10, remoteRead))
	require.NotEqual(t, old, one.Key())
	require.Zero(t, o.mr.windows)
	require.False(t, o.qp.invalidate(one.Key(), 0), "only type 2")
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, one, &MR{}, 0, 0, 0), "to nothing")
	_, status := d.remoteSlice(o.qp, o.qp.pd, more.iova, 1, one.Key(), remoteRead)
	require.Equal(t, libibverbs.IBV_WC_REM_ACCESS_ERR, status)
	require.NoError(t, more.Deregister())

	two := o.mw
	require.Equal(t, libibverbs.IBV_WC_MW_BIND_ERR, bindMW(o.qp, two, &MR{}, 0, 0, 0))
	require.Equal(t, libibverbs.IBV_WC_MW_BIND_ERR, bindMW(o.qp, two, o.mr, 0, 0, remoteRead))
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, two, o.mr, 0, 10, remoteRead))
	require.Equal(t, libibverbs.IBV_WC_MW_BIND_ERR, bindMW(o.qp, two, o.mr, 0, 10, remoteRead))
	require.Equal(t, syscall.EBUSY, o.mr.Deregister())
	require.True(t, o.qp.invalidate(two.Key(), 0))
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, two, o.mr, 0, 10, remoteRead))
	require.NoError(t, two.Dealloc(), "although it is bound")
	require.NoError(t, o.mr.Deregister())
}

func TestWindowAccess(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	other := d.qp(o.pd, libibverbs.IBV_QPT_RC, o.cq, o.cq, nil)
	foreign := d.qp(d.pd(), libibverbs.IBV_QPT_RC, o.cq, o.cq, nil)
	for kindName, kind := range mwTypes {
		for baseName, base := range map[string]libibverbs.AccessFlags{"addresses": 0, "offsets": zeroBased} {
			t.Run(kindName+"/"+baseName, func(t *testing.T) {
				w := d.window(o.pd, kind)
				first := w.Key()
				require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, w, o.mr, 100, 50, remoteRead|remoteWrite|base))
				start := o.mr.iova + 100
				if base != 0 {
					start = 0
				}
				for name, tt := range map[string]struct {
					qp           *QP
					addr, length uint64
					key          uint32
					access       libibverbs.AccessFlags
					want         bool
				}{
					"all":              {o.qp, start, 50, w.Key(), remoteRead, true},
					"write":            {o.qp, start, 50, w.Key(), remoteWrite, true},
					"last byte":        {o.qp, start + 49, 1, w.Key(), remoteWrite, true},
					"no bytes":         {o.qp, 1, 0, 0, remoteAtomic, true},
					"atomic":           {o.qp, start, 8, w.Key(), remoteAtomic, false},
					"before":           {o.qp, start - 1, 1, w.Key(), remoteRead, false},
					"across the end":   {o.qp, start + 49, 2, w.Key(), remoteRead, false},
					"after":            {o.qp, start + 50, 1, w.Key(), remoteRead, false},
					"old key":          {o.qp, start, 1, first, remoteRead, false},
					"other domain":     {foreign, start, 1, w.Key(), remoteRead, false},
					"other connection": {other, start, 1, w.Key(), remoteRead, kind == libibverbs.IBV_MW_TYPE_1},
				} {
					b, status := d.remoteSlice(tt.qp, tt.qp.pd, tt.addr, tt.length, tt.key, tt.access)
					require.Equal(t, tt.want, status == libibverbs.IBV_WC_SUCCESS, name)
					if tt.want && tt.length > 0 {
						require.Same(t, &o.mr.memory[100+tt.addr-start], &b[0], name)
						require.Len(t, b, int(tt.length), name)
					}
				}
				_, status := d.slice(o.pd, start, 1, w.Key(), 0)
				require.Equal(t, libibverbs.IBV_WC_LOC_PROT_ERR, status, "its key is remote only")
				require.NoError(t, w.Dealloc())
				_, status = d.remoteSlice(o.qp, o.qp.pd, start, 1, w.Key(), remoteRead)
				require.Equal(t, libibverbs.IBV_WC_REM_ACCESS_ERR, status)
			})
		}
	}
}

func TestInvalidate(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	other := d.qp(o.pd, libibverbs.IBV_QPT_RC, o.cq, o.cq, nil)
	one := d.window(o.pd, libibverbs.IBV_MW_TYPE_1)
	require.False(t, o.qp.invalidate(o.mw.Key(), 0), "not bound")
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, o.mw, o.mr, 0, 10, remoteRead))
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, one, o.mr, 0, 10, remoteRead))
	for name, tt := range map[string]struct {
		qp  *QP
		key uint32
	}{
		"wrong tag":        {o.qp, o.mw.Key() ^ 1},
		"unknown":          {o.qp, 0xFFFFFF00},
		"0":                {o.qp, 0},
		"window of type 1": {o.qp, one.Key()},
		"region":           {o.qp, o.mr.Key()},
		"other queue pair": {other, o.mw.Key()},
	} {
		require.False(t, tt.qp.invalidate(tt.key, 0), name)
	}
	_, status := d.remoteSlice(o.qp, o.qp.pd, o.mr.iova, 1, o.mw.Key(), remoteRead)
	require.Equal(t, libibverbs.IBV_WC_SUCCESS, status)
	require.True(t, o.qp.invalidate(o.mw.Key(), 0))
	_, status = d.remoteSlice(o.qp, o.qp.pd, o.mr.iova, 1, o.mw.Key(), remoteRead)
	require.Equal(t, libibverbs.IBV_WC_REM_ACCESS_ERR, status)
	require.False(t, o.qp.invalidate(o.mw.Key(), 0), "again")
	require.Equal(t, 1, o.mr.windows)
}

// A message that finds no receive does not invalidate the window that it names.
func TestInvalidateWithoutReceive(t *testing.T) {
	n := newNetwork(t, 1)
	a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.qp.attr.RnrRetry, a.qp.requester.rnrRetries = 1, 1
	w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
	require.Equal(t, success, bindMW(b.qp, w, b.mr, 0, 64, remoteRead))
	a.post(SendSlot{ID: 1, Opcode: read, RemoteAddr: b.mr.iova, RKey: w.Key()}, a.mr.sge(0, 8))
	a.post(SendSlot{ID: 2, Opcode: sendInv, Imm: w.Key()})
	n.run()
	require.Equal(t, []result{ok(1), {2, libibverbs.IBV_WC_RNR_RETRY_EXC_ERR}}, results(a.send))
	_, status := b.remoteSlice(b.qp, b.qp.pd, b.mr.iova, 64, w.Key(), remoteRead)
	require.Equal(t, success, status)
}

// The windows of type 2 that are bound through a queue pair go when it is reset
// or destroyed.
func TestWindowsGoWithQP(t *testing.T) {
	for name, end := range map[string]func(q *QP) error{
		"reset":   func(q *QP) error { return q.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE) },
		"destroy": (*QP).Destroy,
	} {
		t.Run(name, func(t *testing.T) {
			d := newNode(t, 1)
			o := d.objects()
			d.connect(o.qp, 2, 2<<16)
			one := d.window(o.pd, libibverbs.IBV_MW_TYPE_1)
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, o.mw, o.mr, 0, 10, remoteRead))
			require.Equal(t, libibverbs.IBV_WC_SUCCESS, bindMW(o.qp, one, o.mr, 0, 10, remoteRead))
			require.NoError(t, end(o.qp))
			require.Nil(t, o.mw.mr)
			require.NotNil(t, one.mr)
			require.Equal(t, 1, o.mr.windows)
		})
	}
}

func TestAllocMW(t *testing.T) {
	d := newNode(t, 1)
	pd := d.pd()
	for _, kind := range []libibverbs.MwType{0, 3, 1 << 31} {
		_, err := pd.AllocMW(kind)
		require.Equal(t, syscall.EINVAL, err)
	}
	require.NoError(t, pd.Destroy())
}

// Windows are bound and invalidated by requests, and a peer reads through them.
func TestWindowRequests(t *testing.T) {
	local := SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_LOCAL_INV}
	for name, tt := range map[string]struct {
		kind    libibverbs.MwType
		request func(b *end, w *MW) SendSlot // posted by the owner of a window that is bound
		done    []result                     // what the owner gets
		read    libibverbs.WcStatus
	}{
		"bound": {libibverbs.IBV_MW_TYPE_2, nil, nil, success},
		"another one bound, unsignaled": {libibverbs.IBV_MW_TYPE_2, func(b *end, _ *MW) SendSlot {
			return *bindSlot(b.window(b.pd, libibverbs.IBV_MW_TYPE_2), b.mr, 0, 64, remoteRead)
		}, nil, success},
		"invalidated": {libibverbs.IBV_MW_TYPE_2, func(b *end, w *MW) SendSlot {
			s := local
			s.Imm, s.Flags = w.Key(), uint32(libibverbs.IBV_SEND_SIGNALED)
			return s
		}, []result{ok(1)}, remAccess},
		"invalidated, unsignaled": {libibverbs.IBV_MW_TYPE_2, func(b *end, w *MW) SendSlot {
			s := local
			s.Imm = w.Key()
			return s
		}, nil, remAccess},
		"wrong key invalidated, unsignaled": {libibverbs.IBV_MW_TYPE_2, func(b *end, w *MW) SendSlot {
			s := local
			s.Imm = w.Key() + 1
			return s
		}, []result{{1, badBind}}, retryExc},
		"bound again": {libibverbs.IBV_MW_TYPE_2, func(b *end, w *MW) SendSlot {
			return *bindSlot(w, b.mr, 0, 64, remoteRead)
		}, []result{{0, badBind}}, retryExc},
		"type 1 bound again": {libibverbs.IBV_MW_TYPE_1, func(b *end, w *MW) SendSlot {
			return *bindSlot(w, b.mr, 0, 64, remoteRead)
		}, nil, success},
		"type 1 bound to nothing": {libibverbs.IBV_MW_TYPE_1, func(b *end, w *MW) SendSlot {
			return *bindSlot(w, &MR{}, 0, 0, 0)
		}, nil, remAccess},
		"type 1 bound to memory that is not registered": {libibverbs.IBV_MW_TYPE_1, func(b *end, w *MW) SendSlot {
			return *bindSlot(w, b.mr, 64, 1<<20, remoteRead)
		}, []result{{0, badBind}}, retryExc},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			n.fillRandom(b.mr.memory)
			w := b.window(b.pd, tt.kind)
			bind := *bindSlot(w, b.mr, 0, 64, remoteRead)
			bind.ID = 9
			b.post(bind)
			n.run()
			require.Equal(t, []result{ok(9)}, results(b.send))
			if tt.request != nil {
				b.postQuiet(tt.request(b, w))
			}
			n.run()
			require.Equal(t, tt.done, results(b.send))
			require.Equal(t, tt.read == retryExc, b.qp.attr.QpState == libibverbs.IBV_QPS_ERR)
			a.post(SendSlot{ID: 2, Opcode: read, RemoteAddr: b.mr.iova, RKey: w.Key()}, a.mr.sge(0, 64))
			n.run()
			require.Equal(t, []result{{2, tt.read}}, results(a.send))
			require.Equal(t, tt.read == success, bytes.Equal(a.mr.memory, b.mr.memory))
		})
	}
}

// A window of type 2 is its queue pair's: others neither reach memory through
// it nor bind or invalidate it. One of type 1 is for all.
func TestWindowOfAnotherQueuePair(t *testing.T) {
	for kindName, kind := range mwTypes {
		t.Run(kindName, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			other := func() *QP {
				q := b.node.qp(b.pd, libibverbs.IBV_QPT_RC, b.send, b.recv, nil)
				b.connect(q, a.number(), a.qp.number)
				return q
			}
			owner, binder, invalidator := other(), other(), other()
			w := b.window(b.pd, kind)
			require.Equal(t, success, bindMW(owner, w, b.mr, 0, 64, remoteRead))
			a.post(SendSlot{ID: 1, Opcode: read, RemoteAddr: b.mr.iova, RKey: w.Key()}, a.mr.sge(0, 64))
			n.run()
			want, bound := remAccess, badBind
			if kind == libibverbs.IBV_MW_TYPE_1 {
				want, bound = success, success
			}
			require.Equal(t, []result{{1, want}}, results(a.send))
			results(b.send)
			postSend(t, invalidator.send, SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_LOCAL_INV, Imm: w.Key()})
			b.Ring(invalidator.send)
			n.run()
			require.Equal(t, []result{{2, badBind}}, results(b.send))
			s := *bindSlot(w, b.mr, 0, 32, remoteRead)
			s.ID, s.Flags = 3, uint32(libibverbs.IBV_SEND_SIGNALED)
			postSend(t, binder.send, s)
			b.Ring(binder.send)
			n.run()
			require.Equal(t, []result{{3, bound}}, results(b.send))
		})
	}
}

// In the error state, requests to bind are flushed.
func TestBindAfterFailure(t *testing.T) {
	for kindName, kind := range mwTypes {
		t.Run(kindName, func(t *testing.T) {
			n := newNetwork(t, 1)
			_, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			require.NoError(t, b.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_ERR}, libibverbs.IBV_QP_STATE))
			w := b.window(b.pd, kind)
			before := w.Key()
			b.post(*bindSlot(w, b.mr, 0, 64, remoteRead))
			n.run()
			require.Equal(t, []result{{0, flushed}}, results(b.send))
			require.Equal(t, before, w.Key())
			require.Zero(t, b.mr.windows)
		})
	}
}

// The program chooses 8 bits of a key; the others tell windows apart.
func TestWindowKeysDiffer(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	seen := map[uint32]bool{}
	for range 4096 {
		w := d.window(o.pd, libibverbs.IBV_MW_TYPE_2)
		s := bindSlot(w, o.mr, 0, 1, remoteRead)
		s.RKey = w.Key()&^0xFF | 0x77
		require.Equal(t, success, o.qp.bind(s))
		require.EqualValues(t, 0x77, w.Key()&0xFF)
		require.False(t, seen[w.Key()], "%#x", w.Key())
		seen[w.Key()] = true
	}
}

// Windows go away while a peer reads through them: reads fail from then on, and
// only for that reason.
func TestWindowGoesWhileRead(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(b *end, w *MW)
		want libibverbs.WcStatus
	}{
		"invalidated": {func(b *end, w *MW) { b.post(SendSlot{Opcode: libibverbs.IBV_WR_LOCAL_INV, Imm: w.Key()}) }, remAccess},
		"freed":       {func(b *end, w *MW) { require.NoError(b.t, w.Dealloc()) }, remAccess},
		"bound again": {func(b *end, w *MW) { b.post(*bindSlot(w, b.mr, 0, 64, remoteRead)) }, retryExc},
	} {
		t.Run(name, func(t *testing.T) {
			const reads = 40
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			w := b.window(b.pd, libibverbs.IBV_MW_TYPE_2)
			require.Equal(t, success, bindMW(b.qp, w, b.mr, 0, 64, remoteRead))
			for i := range uint64(reads) {
				a.post(SendSlot{ID: i, Opcode: read, RemoteAddr: b.mr.iova, RKey: w.Key()}, a.mr.sge(0, 64))
			}
			answers := 0
			n.filter = func(p *wire.Packet) bool {
				if p.Opcode.IsReadResponse() {
					answers++
				}
				return true
			}
			for answers < 10 && n.step() {
			}
			tt.end(b, w)
			n.run()
			got := results(a.send)
			require.Len(t, got, reads)
			failed := slices.IndexFunc(got, func(r result) bool { return r.status != success })
			require.GreaterOrEqual(t, failed, 9)
			require.Equal(t, tt.want, got[failed].status)
			for i, r := range got[failed+1:] {
				require.Equal(t, result{uint64(failed + 1 + i), flushed}, r)
			}
		})
	}
}
