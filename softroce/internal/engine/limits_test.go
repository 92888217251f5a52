// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// small returns a device whose limits differ from the largest.
func small(t testing.TB, change func(l *Limits)) *node {
	l := Largest()
	change(&l)
	d := &node{t: t, Device: New(Config{Limits: &l, FirstQPN: 16, QPNs: 1 << 12})}
	require.NoError(t, d.SetGID(0, GIDEntry{GID: testGID(1), NetDev: 1}))
	return d
}

// The device reports its limits.
func TestLimitsAreReported(t *testing.T) {
	d := small(t, func(l *Limits) {
		*l = Limits{
			SGE: 1, ReadSGE: 2, Reads: 3, WR: 4, SRQWR: 5, CQE: 6, QPs: 7, CQs: 8, SRQs: 9, PDs: 10, MRs: 11, MWs: 12, AHs: 13, Groups: 14,
			MTU: libibverbs.IBV_MTU_512, Atomics: true,
		}
	})
	a, err := d.Attr()
	require.NoError(t, err)
	o := a.OrigAttr
	require.Equal(t, [...]int32{1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 21}, [...]int32{
		o.MaxSge, o.MaxSgeRd, o.MaxQpRdAtom, o.MaxQpInitRdAtom, o.MaxQpWr, o.MaxSrqWr, o.MaxCqe, o.MaxQp, o.MaxCq, o.MaxSrq, o.MaxPd,
		o.MaxMr, o.MaxMw, o.MaxAh, o.MaxMcastGrp, o.MaxResRdAtom,
	})
	require.Equal(t, libibverbs.IBV_ATOMIC_HCA, o.AtomicCap)
	p, err := d.PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, [...]libibverbs.Mtu{libibverbs.IBV_MTU_512, libibverbs.IBV_MTU_512}, [...]libibverbs.Mtu{p.MaxMtu, p.ActiveMtu})

	a, err = small(t, func(l *Limits) { *l = Limits{MTU: libibverbs.IBV_MTU_256} }).Attr()
	require.NoError(t, err)
	o = a.OrigAttr
	require.Equal(t, libibverbs.IBV_ATOMIC_NONE, o.AtomicCap)
	require.Zero(t, o.MaxSrqSge+o.MaxMcastQpAttach)
	const missing = libibverbs.IBV_DEVICE_MEM_WINDOW | libibverbs.IBV_DEVICE_MEM_WINDOW_TYPE_2B |
		libibverbs.IBV_DEVICE_MEM_MGT_EXTENSIONS | libibverbs.IBV_DEVICE_SRQ_RESIZE
	require.Zero(t, o.DeviceCapFlags&missing)
	require.Zero(t, libibverbs.DeviceCapFlags(a.DeviceCapFlagsEx)&missing)
}

// A device is not larger than its range of queue pair numbers, and its network
// may have a smaller MTU than the limit.
func TestLimitsBelowTheConfig(t *testing.T) {
	l := Largest()
	d := New(Config{Limits: &l, QPNs: 100, MTU: libibverbs.IBV_MTU_1024})
	a, err := d.Attr()
	require.NoError(t, err)
	require.EqualValues(t, 100, a.OrigAttr.MaxQp)
	p, err := d.PortAttr(1)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_MTU_1024, p.ActiveMtu)
	require.Equal(t, libibverbs.IBV_MTU_4096, p.MaxMtu)
}

// What exceeds the limits is refused, and what is within them is not.
func TestLimitsHold(t *testing.T) {
	const hasOps = libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
	qp := func(a libibverbs.QpInitAttrEx) func(*node) error {
		if a.QpType == 0 {
			a.QpType = libibverbs.IBV_QPT_RC
		}
		return func(d *node) error { return d.CheckQP(&a) }
	}
	size := func(c libibverbs.QpCap) func(*node) error { return qp(libibverbs.QpInitAttrEx{Cap: c}) }
	ops := func(ops libibverbs.QpCreateSendOpsFlags) func(*node) error {
		return qp(libibverbs.QpInitAttrEx{CompMask: hasOps, SendOpsFlags: uint64(ops)})
	}
	srq := func(a libibverbs.SrqAttr) func(*node) error {
		return func(d *node) error { return d.CheckSRQ(&libibverbs.SrqInitAttrEx{Attr: a}) }
	}
	for name, tt := range map[string]struct {
		limit      func(*Limits)
		ok, beyond func(*node) error
		want       error
	}{
		"sends":    {func(l *Limits) { l.WR = 4 }, size(libibverbs.QpCap{MaxSendWr: 4}), size(libibverbs.QpCap{MaxSendWr: 5}), syscall.EINVAL},
		"receives": {func(l *Limits) { l.WR = 4 }, size(libibverbs.QpCap{MaxRecvWr: 4}), size(libibverbs.QpCap{MaxRecvWr: 5}), syscall.EINVAL},
		"segments": {func(l *Limits) { l.SGE = 1 }, size(libibverbs.QpCap{MaxSendSge: 1}), size(libibverbs.QpCap{MaxSendSge: 2}), syscall.EINVAL},
		"segments of receives": {
			func(l *Limits) { l.SGE = 1 }, size(libibverbs.QpCap{MaxRecvSge: 1}), size(libibverbs.QpCap{MaxRecvSge: 2}), syscall.EINVAL,
		},
		"inline": {func(l *Limits) { l.Inline = 0 }, size(libibverbs.QpCap{}), size(libibverbs.QpCap{MaxInlineData: 1}), syscall.EINVAL},
		"UC": {
			func(l *Limits) { l.UC = false }, qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_UD}),
			qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_UC}), syscall.EOPNOTSUPP,
		},
		"UD": {
			func(l *Limits) { l.UD = false }, qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_UC}),
			qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_UD}), syscall.EOPNOTSUPP,
		},
		"XRC": {
			func(l *Limits) { l.XRC = false }, size(libibverbs.QpCap{}),
			qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_XRC_SEND}), syscall.EOPNOTSUPP,
		},
		"XRC without SRQs": {
			func(l *Limits) { l.SRQs = 0 }, size(libibverbs.QpCap{}),
			qp(libibverbs.QpInitAttrEx{QpType: libibverbs.IBV_QPT_XRC_RECV}), syscall.EOPNOTSUPP,
		},
		"XRC domains": {func(l *Limits) { l.XRC = false }, size(libibverbs.QpCap{}), func(d *node) error {
			_, err := d.CreateXRCD()
			return err
		}, syscall.EOPNOTSUPP},
		"SRQs for XRC": {func(l *Limits) { l.XRC = false }, srq(libibverbs.SrqAttr{MaxWr: 1}), func(d *node) error {
			return d.CheckSRQ(xrcAttr(1))
		}, syscall.EOPNOTSUPP},
		"atomics": {
			func(l *Limits) { l.Atomics = false }, ops(libibverbs.IBV_QP_EX_WITH_RDMA_READ),
			ops(libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD), syscall.EOPNOTSUPP,
		},
		"atomics without reads": {
			func(l *Limits) { l.Reads = 0 }, ops(libibverbs.IBV_QP_EX_WITH_RDMA_WRITE),
			ops(libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP), syscall.EOPNOTSUPP,
		},
		"reads": {
			func(l *Limits) { l.Reads = 0 }, ops(libibverbs.IBV_QP_EX_WITH_RDMA_WRITE), ops(libibverbs.IBV_QP_EX_WITH_RDMA_READ), syscall.EOPNOTSUPP,
		},
		"immediate data of writes": {
			func(l *Limits) { l.Imm = false }, ops(libibverbs.IBV_QP_EX_WITH_RDMA_WRITE),
			ops(libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM), syscall.EOPNOTSUPP,
		},
		"immediate data of sends": {
			func(l *Limits) { l.Imm = false }, ops(libibverbs.IBV_QP_EX_WITH_SEND), ops(libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM), syscall.EOPNOTSUPP,
		},
		"binding": {
			func(l *Limits) { l.MWs = 0 }, ops(libibverbs.IBV_QP_EX_WITH_SEND), ops(libibverbs.IBV_QP_EX_WITH_BIND_MW), syscall.EOPNOTSUPP,
		},
		"completions": {
			func(l *Limits) { l.CQE = 4 }, func(d *node) error { return d.CheckCQE(4) }, func(d *node) error { return d.CheckCQE(5) }, syscall.EINVAL,
		},
		"no SRQ":          {func(l *Limits) { l.SRQs = 0 }, size(libibverbs.QpCap{}), srq(libibverbs.SrqAttr{MaxWr: 1}), syscall.EOPNOTSUPP},
		"receives of SRQ": {func(l *Limits) { l.SRQWR = 4 }, srq(libibverbs.SrqAttr{MaxWr: 4}), srq(libibverbs.SrqAttr{MaxWr: 5}), syscall.EINVAL},
		"segments of SRQ": {
			func(l *Limits) { l.SGE = 1 }, srq(libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}), srq(libibverbs.SrqAttr{MaxWr: 1, MaxSge: 2}), syscall.EINVAL,
		},
		"no windows": {func(l *Limits) { l.MWs = 0 }, size(libibverbs.QpCap{}), func(d *node) error {
			_, err := d.pd().AllocMW(libibverbs.IBV_MW_TYPE_1)
			return err
		}, syscall.EOPNOTSUPP},
		"no handles": {func(l *Limits) { l.AHs = 0 }, size(libibverbs.QpCap{}), func(d *node) error {
			_, err := d.pd().CreateAH(ahAttr(2))
			return err
		}, syscall.EOPNOTSUPP},
		"no groups": {func(l *Limits) { l.Groups = 0 }, size(libibverbs.QpCap{}), func(d *node) error {
			q := d.qp(d.pd(), libibverbs.IBV_QPT_UD, d.cq(4), d.cq(4), nil)
			return q.Attach(groupGID)
		}, syscall.EOPNOTSUPP},
	} {
		t.Run(name, func(t *testing.T) {
			d := small(t, tt.limit)
			require.NoError(t, tt.ok(d))
			require.ErrorIs(t, tt.beyond(d), tt.want)
			require.NoError(t, small(t, func(*Limits) {}).check())
			require.NoError(t, tt.beyond(small(t, func(*Limits) {})), "the largest device has it")
		})
	}
}

// There are no more objects than the limits say, and those that are destroyed
// do not count.
func TestLimitsOfObjects(t *testing.T) {
	d := small(t, func(l *Limits) { l.PDs, l.CQs, l.SRQs, l.MRs, l.MWs, l.AHs, l.QPs = 2, 2, 2, 2, 2, 2, 2 })
	pd := d.pd()
	cq := d.cq(4)
	memory := make([]byte, 64)
	for name, tt := range map[string]struct {
		create func() (destroy func() error, err error)
		more   int
	}{
		"domain": {func() (func() error, error) { p, err := d.CreatePD(); return p.Destroy, err }, 1},
		"queue": {func() (func() error, error) {
			q, err := d.CreateCQ(newCompletions(4))
			return q.Destroy, err
		}, 1},
		"shared receive queue": {func() (func() error, error) {
			s, err := pd.CreateSRQ(&libibverbs.SrqInitAttrEx{Attr: libibverbs.SrqAttr{MaxWr: 1}}, newRecvQueue(1, 1), nil, nil)
			return s.Destroy, err
		}, 2},
		"region": {func() (func() error, error) {
			m, err := pd.RegisterMR(memory, 0, libibverbs.IBV_ACCESS_ZERO_BASED)
			return m.Deregister, err
		}, 2},
		"window": {func() (func() error, error) { w, err := pd.AllocMW(libibverbs.IBV_MW_TYPE_1); return w.Dealloc, err }, 2},
		"handle": {func() (func() error, error) { a, err := pd.CreateAH(ahAttr(2)); return a.Destroy, err }, 2},
		"queue pair": {func() (func() error, error) {
			c := QPConfig{SendCQ: cq, RecvCQ: cq, Send: newSendQueue(1, 1, 0), Recv: newRecvQueue(1, 1)}
			c.Attr.QpType = libibverbs.IBV_QPT_RC
			q, err := pd.CreateQP(c)
			return q.Destroy, err
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var destroy []func() error
			for range tt.more {
				f, err := tt.create()
				require.NoError(t, err)
				destroy = append(destroy, f)
			}
			_, err := tt.create()
			require.ErrorIs(t, err, syscall.ENOMEM)
			require.NoError(t, destroy[0]())
			f, err := tt.create()
			require.NoError(t, err)
			destroy[0] = f
			for _, f := range destroy {
				require.NoError(t, f())
			}
		})
	}
}

// A queue pair has no more reads in flight, in either direction, than the
// limit.
func TestLimitOfReads(t *testing.T) {
	n := newNetwork(t, 1)
	a, _ := n.pair(libibverbs.IBV_QPT_RC, 64)
	a.limits.Reads = 1
	require.NoError(t, a.qp.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_SQD}, libibverbs.IBV_QP_STATE))
	for _, mask := range []libibverbs.QpAttrMask{libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC} {
		require.NoError(t, a.qp.Modify(&libibverbs.QpAttr{MaxRdAtomic: 1, MaxDestRdAtomic: 1}, mask))
		require.ErrorIs(t, a.qp.Modify(&libibverbs.QpAttr{MaxRdAtomic: 2, MaxDestRdAtomic: 2}, mask), syscall.EINVAL)
	}
}

// On iWARP, the memory into which an RDMA read goes needs remote write access.
func TestReadOnIWARP(t *testing.T) {
	for name, tt := range map[string]struct {
		iwarp  bool
		access libibverbs.AccessFlags
		want   libibverbs.WcStatus
	}{
		"RoCE":                      {false, localWrite, libibverbs.IBV_WC_SUCCESS},
		"iWARP":                     {true, localWrite, libibverbs.IBV_WC_LOC_PROT_ERR},
		"iWARP, remote write":       {true, localWrite | libibverbs.IBV_ACCESS_REMOTE_WRITE, libibverbs.IBV_WC_SUCCESS},
		"iWARP, remote read":        {true, localWrite | libibverbs.IBV_ACCESS_REMOTE_READ, libibverbs.IBV_WC_LOC_PROT_ERR},
		"RoCE, without local write": {false, libibverbs.IBV_ACCESS_REMOTE_READ, libibverbs.IBV_WC_LOC_PROT_ERR},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
			a.limits.IWARP = tt.iwarp
			m := a.memory(a.pd, 64, tt.access)
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(b, 0), m.sge(0, 64))
			n.run()
			require.Equal(t, []result{{1, tt.want}}, results(a.send))
		})
	}
}

// Where the client speaks first, a server's request fails until a message of
// the client has arrived, of whatever kind.
func TestClientFirst(t *testing.T) {
	for name, op := range map[string]libibverbs.WrOpcode{
		"send": libibverbs.IBV_WR_SEND, "write": libibverbs.IBV_WR_RDMA_WRITE, "read": libibverbs.IBV_WR_RDMA_READ,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			client, server := n.pair(libibverbs.IBV_QPT_RC, 64)
			server.limits.ClientFirst = true
			server.qp.HearFirst()
			server.postRecv(1, server.mr.sge(0, 8))
			client.post(SendSlot{ID: 2, Opcode: op}.remote(server, 0), client.mr.sge(0, 8))
			n.run()
			client.postRecv(3, client.mr.sge(0, 8))
			server.post(SendSlot{ID: 4, Opcode: libibverbs.IBV_WR_SEND}, server.mr.sge(0, 8))
			n.run()
			require.Equal(t, []result{{4, libibverbs.IBV_WC_SUCCESS}}, results(server.send))
		})
	}
	t.Run("server sends first", func(t *testing.T) {
		n := newNetwork(t, 1)
		client, server := n.pair(libibverbs.IBV_QPT_RC, 64)
		server.limits.ClientFirst = true
		server.qp.HearFirst()
		client.postRecv(1, client.mr.sge(0, 8))
		server.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, server.mr.sge(0, 8))
		n.run()
		require.Equal(t, []result{{2, libibverbs.IBV_WC_LOC_QP_OP_ERR}}, results(server.send))
		require.Equal(t, libibverbs.IBV_QPS_ERR, server.qp.attr.QpState)
	})
	t.Run("no such rule", func(t *testing.T) {
		n := newNetwork(t, 1)
		client, server := n.pair(libibverbs.IBV_QPT_RC, 64)
		server.qp.HearFirst()
		client.postRecv(1, client.mr.sge(0, 8))
		server.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_SEND}, server.mr.sge(0, 8))
		n.run()
		require.Equal(t, []result{{2, libibverbs.IBV_WC_SUCCESS}}, results(server.send))
	})
}

// On iWARP, a queue pair has no timer for messages without a receive.
func TestNotReadyOnIWARP(t *testing.T) {
	for want, iwarp := range map[uint8]bool{0: false, iwarpRNR: true} {
		n := newNetwork(t, 1)
		a, b := n.pair(libibverbs.IBV_QPT_RC, 64)
		b.limits.IWARP = iwarp
		b.qp.attr.MinRnrTimer = 0
		var got []uint8
		n.filter = func(p *wire.Packet) bool {
			if p.Opcode == wire.RCAck && p.Syndrome.IsRNR() {
				got = append(got, p.Syndrome.RNRTimer())
				b.postRecv(2, b.mr.sge(0, 8))
			}
			return true
		}
		a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_SEND}, a.mr.sge(0, 8))
		n.run()
		require.Equal(t, []uint8{want}, got)
		require.Equal(t, []result{ok(1)}, results(a.send))
	}
}

func TestLacks(t *testing.T) {
	l := Largest()
	require.Zero(t, l.Lacks())
	l.Atomics, l.Imm = false, false
	require.Equal(t, uint32(1<<libibverbs.IBV_WR_ATOMIC_CMP_AND_SWP|1<<libibverbs.IBV_WR_ATOMIC_FETCH_AND_ADD|
		1<<libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM|1<<libibverbs.IBV_WR_SEND_WITH_IMM), l.Lacks())
}
