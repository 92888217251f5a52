// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

func TestCreateQP(t *testing.T) {
	d, elsewhere := newNode(t, 1), newNode(t, 2)
	pd, cq := d.pd(), d.cq(8)
	foreignCQ, foreignSRQ := elsewhere.cq(8), elsewhere.srq(elsewhere.pd(), 1)
	otherSRQ, xrcSRQ := d.srq(d.pd(), 4), d.xrcSRQ(d.xrcd(), d.pd(), 4)
	const (
		hasPD    = libibverbs.IBV_QP_INIT_ATTR_PD
		hasFlags = libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS
		hasOps   = libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
	)
	kind := func(k libibverbs.QpType) func(*QPConfig) {
		return func(c *QPConfig) { c.Attr.QpType = k }
	}
	capacity := func(change func(*libibverbs.QpCap)) func(*QPConfig) {
		return func(c *QPConfig) { change(&c.Attr.Cap) }
	}
	ops := func(k libibverbs.QpType, ops libibverbs.QpCreateSendOpsFlags) func(*QPConfig) {
		return func(c *QPConfig) {
			c.Attr.QpType, c.Attr.CompMask, c.Attr.SendOpsFlags = k, hasPD|hasOps, uint64(ops)
		}
	}
	masked := func(m libibverbs.QpInitAttrMask) func(*QPConfig) {
		return func(c *QPConfig) { c.Attr.CompMask = hasPD | m }
	}
	for name, tt := range map[string]struct {
		change func(*QPConfig)
		want   error
	}{
		"RC":              {kind(libibverbs.IBV_QPT_RC), nil},
		"UC":              {kind(libibverbs.IBV_QPT_UC), nil},
		"UD":              {kind(libibverbs.IBV_QPT_UD), nil},
		"all signaled":    {func(c *QPConfig) { c.Attr.SqSigAll = 1 }, nil},
		"SRQ":             {func(c *QPConfig) { c.SRQ = otherSRQ }, nil},
		"no flags":        {masked(hasFlags), nil},
		"RC's operations": {ops(libibverbs.IBV_QPT_RC, 0x3FF), nil},
		"UC's operations": {ops(libibverbs.IBV_QPT_UC, ucOps), nil},
		"UD's operations": {ops(libibverbs.IBV_QPT_UD, udOps), nil},
		"largest": {capacity(func(c *libibverbs.QpCap) {
			*c = libibverbs.QpCap{MaxSendWr: maxWR, MaxRecvWr: maxWR, MaxSendSge: maxSGE, MaxRecvSge: maxSGE, MaxInlineData: maxInline}
		}), nil},
		"nothing":           {capacity(func(c *libibverbs.QpCap) { *c = libibverbs.QpCap{} }), nil},
		"sends":             {capacity(func(c *libibverbs.QpCap) { c.MaxSendWr = maxWR + 1 }), syscall.EINVAL},
		"receives":          {capacity(func(c *libibverbs.QpCap) { c.MaxRecvWr = 1 << 31 }), syscall.EINVAL},
		"send segments":     {capacity(func(c *libibverbs.QpCap) { c.MaxSendSge = maxSGE + 1 }), syscall.EINVAL},
		"receive segments":  {capacity(func(c *libibverbs.QpCap) { c.MaxRecvSge = maxSGE + 1 }), syscall.EINVAL},
		"inline":            {capacity(func(c *libibverbs.QpCap) { c.MaxInlineData = maxInline + 1 }), syscall.EINVAL},
		"raw packets":       {kind(libibverbs.IBV_QPT_RAW_PACKET), syscall.EOPNOTSUPP},
		"XRC receive":       {kind(libibverbs.IBV_QPT_XRC_RECV), syscall.EINVAL},
		"XRC send with SRQ": {func(c *QPConfig) { c.Attr.QpType, c.SRQ = libibverbs.IBV_QPT_XRC_SEND, otherSRQ }, syscall.EINVAL},
		"SRQ for XRC":       {func(c *QPConfig) { c.SRQ = xrcSRQ }, syscall.EINVAL},
		"driver's":          {kind(libibverbs.IBV_QPT_DRIVER), syscall.EOPNOTSUPP},
		"no type":           {kind(0), syscall.EINVAL},
		"unknown type":      {kind(77), syscall.EINVAL},
		"flags":             {func(c *QPConfig) { masked(hasFlags)(c); c.Attr.CreateFlags = 0x100 }, syscall.EOPNOTSUPP},
		"source number": {func(c *QPConfig) {
			masked(hasFlags)(c)
			c.Attr.CreateFlags = libibverbs.IBV_QP_CREATE_SOURCE_QPN
		}, syscall.EOPNOTSUPP},
		"TSO":               {masked(libibverbs.IBV_QP_INIT_ATTR_MAX_TSO_HEADER), syscall.EOPNOTSUPP},
		"XRC domain":        {masked(libibverbs.IBV_QP_INIT_ATTR_XRCD), syscall.EOPNOTSUPP},
		"table":             {masked(libibverbs.IBV_QP_INIT_ATTR_IND_TABLE | libibverbs.IBV_QP_INIT_ATTR_RX_HASH), syscall.EOPNOTSUPP},
		"unknown attribute": {masked(1 << 20), syscall.EOPNOTSUPP},
		"flush":             {ops(libibverbs.IBV_QPT_RC, libibverbs.IBV_QP_EX_WITH_FLUSH|libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE), nil},
		"UC flush":          {ops(libibverbs.IBV_QPT_UC, libibverbs.IBV_QP_EX_WITH_FLUSH), syscall.EOPNOTSUPP},
		"UD atomic write":   {ops(libibverbs.IBV_QPT_UD, libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE), syscall.EOPNOTSUPP},
		"UC read":           {ops(libibverbs.IBV_QPT_UC, libibverbs.IBV_QP_EX_WITH_RDMA_READ), syscall.EOPNOTSUPP},
		"UD write":          {ops(libibverbs.IBV_QPT_UD, libibverbs.IBV_QP_EX_WITH_RDMA_WRITE), syscall.EOPNOTSUPP},
		"no send CQ":        {func(c *QPConfig) { c.SendCQ = nil }, syscall.EINVAL},
		"no receive CQ":     {func(c *QPConfig) { c.RecvCQ = nil }, syscall.EINVAL},
		"foreign send CQ":   {func(c *QPConfig) { c.SendCQ = foreignCQ }, syscall.EINVAL},
		"foreign recv CQ":   {func(c *QPConfig) { c.RecvCQ = foreignCQ }, syscall.EINVAL},
		"foreign SRQ":       {func(c *QPConfig) { c.SRQ = foreignSRQ }, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			c := QPConfig{SendCQ: cq, RecvCQ: cq, Send: newSendQueue(16, 3, 64), Recv: newRecvQueue(8, 2)}
			c.Attr.QpType = libibverbs.IBV_QPT_RC
			c.Attr.Cap = libibverbs.QpCap{MaxSendWr: 16, MaxRecvWr: 8, MaxSendSge: 3, MaxRecvSge: 2, MaxInlineData: 64}
			tt.change(&c)
			q, err := pd.CreateQP(c)
			if tt.want != nil {
				require.Equal(t, tt.want, err)
				require.Empty(t, d.qps)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, q.Number(), q.send.Owner)
			init := q.InitAttr()
			require.Equal(t, c.Attr.QpType, init.QpType)
			require.Equal(t, c.Attr.SqSigAll, init.SqSigAll)
			want := libibverbs.QpCap{MaxSendWr: 16, MaxRecvWr: 8, MaxSendSge: 3, MaxRecvSge: 2, MaxInlineData: 64}
			if c.SRQ != nil {
				want.MaxRecvWr, want.MaxRecvSge = 0, 0
				require.Same(t, otherSRQ.pd, q.recvPD)
			}
			require.Equal(t, want, init.Cap)
			a, err := q.Attr()
			require.NoError(t, err)
			require.Equal(t, libibverbs.QpAttr{Cap: want}, a)
			require.NoError(t, q.Destroy())
		})
	}
	require.Zero(t, otherSRQ.users)
	require.NoError(t, cq.Destroy())
	require.NoError(t, pd.Destroy())
}

// Numbers are of the device's range and come back late; when they are used up
// there is no queue pair more.
func TestQPNumbers(t *testing.T) {
	d := New(Config{FirstQPN: 100, QPNs: 4})
	pd, err := d.CreatePD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(newCompletions(1))
	require.NoError(t, err)
	create := func() (*QP, error) {
		c := QPConfig{SendCQ: cq, RecvCQ: cq, Send: newSendQueue(1, 1, 0), Recv: newRecvQueue(1, 1)}
		c.Attr.QpType = libibverbs.IBV_QPT_RC
		return pd.CreateQP(c)
	}
	seen := map[uint32]*QP{}
	for range 4 {
		q, err := create()
		require.NoError(t, err)
		require.GreaterOrEqual(t, q.Number(), uint32(100))
		require.Less(t, q.Number(), uint32(104))
		require.NotContains(t, seen, q.Number())
		seen[q.Number()] = q
	}
	_, err = create()
	require.Equal(t, syscall.ENOMEM, err)
	require.NoError(t, seen[102].Destroy())
	require.NoError(t, seen[103].Destroy())
	first, err := create()
	require.NoError(t, err)
	require.NoError(t, first.Destroy())
	next, err := create()
	require.NoError(t, err)
	require.NotEqual(t, first.Number(), next.Number(), "it has just been used")

	// Where most are taken, those that are left are found.
	d = New(Config{FirstQPN: 100, QPNs: 1 << 12, MaxQPs: 1<<12 - 1})
	pd, err = d.CreatePD()
	require.NoError(t, err)
	cq, err = d.CreateCQ(newCompletions(1))
	require.NoError(t, err)
	for range 1<<12 - 1 {
		_, err := create()
		require.NoError(t, err)
	}
	_, err = create()
	require.Equal(t, syscall.ENOMEM, err)
	attr, err := d.Attr()
	require.NoError(t, err)
	require.EqualValues(t, 1<<12-1, attr.OrigAttr.MaxQp)
}

// A reset queue pair is like a new one.
func TestReset(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	q := o.qp
	for range 2 {
		d.connect(q, 2, 2<<16)
		postSend(t, q.send, SendSlot{ID: 1})
		postRecv(t, q.recv, 2)
		require.NoError(t, q.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE))
		require.Zero(t, q.send.Posted)
		require.Zero(t, q.recv.Posted)
		require.Equal(t, uint32(libibverbs.IBV_QPS_RESET), q.recv.State)
		a, err := q.Attr()
		require.NoError(t, err)
		require.Equal(t, libibverbs.QpAttr{Cap: a.Cap}, a)
		require.Equal(t, path{}, q.path)
		require.NoError(t, q.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_STATE), "again")
	}
	d.requireEvents()
}

// The last receive of a shared receive queue is told of once, however the queue
// pair gets into the error state.
func TestLastWQEReached(t *testing.T) {
	toError := func(q *QP) error {
		return q.Modify(&libibverbs.QpAttr{QpState: libibverbs.IBV_QPS_ERR}, libibverbs.IBV_QP_STATE)
	}
	for name, end := range map[string]func(q *QP) error{
		"asked for": toError,
		"failed":    func(q *QP) error { q.fail(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := newNode(t, 1)
			o := d.objects()
			for _, q := range []*QP{o.qp, o.onSRQ} {
				d.connect(q, 2, 2<<16)
				require.NoError(t, end(q))
				require.Equal(t, uint32(libibverbs.IBV_QPS_ERR), q.send.State)
				require.NoError(t, end(q))
				require.NoError(t, toError(q))
			}
			d.requireEvents(AsyncEvent{libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED, o.onSRQ})
		})
	}
	d := newNode(t, 1)
	o := d.objects()
	o.onSRQ.fail()
	require.Equal(t, libibverbs.IBV_QPS_RESET, o.onSRQ.attr.QpState, "nothing can fail there")
}

func TestLimits(t *testing.T) {
	d := newNode(t, 1)
	o := d.objects()
	memory := page(8)
	for name, tt := range map[string]struct {
		create func() (destroy func() error, err error)
		most   int
	}{
		"protection domains": {func() (func() error, error) { p, err := d.CreatePD(); return p.Destroy, err }, maxPDs - d.pds},
		"completion queues": {func() (func() error, error) {
			q, err := d.CreateCQ(&CompletionQueue{Max: 1})
			return q.Destroy, err
		}, maxCQs - d.cqs},
		"shared receive queues": {func() (func() error, error) {
			s, err := o.pd.CreateSRQ(srqAttr(1), nil, nil, nil)
			return s.Destroy, err
		}, maxSRQs - d.srqs},
		"address handles": {func() (func() error, error) {
			a, err := o.pd.CreateAH(ahAttr(2))
			return a.Destroy, err
		}, maxAHs - len(d.ahs)},
		"memory regions": {func() (func() error, error) {
			m, err := o.pd.RegisterMR(memory, 0, 0)
			return m.Deregister, err
		}, maxMRs - len(d.mrs)},
		"memory windows": {func() (func() error, error) {
			w, err := o.pd.AllocMW(libibverbs.IBV_MW_TYPE_1)
			return w.Dealloc, err
		}, maxMWs - len(d.mws)},
	} {
		t.Run(name, func(t *testing.T) {
			all := make([]func() error, 0, tt.most)
			for range tt.most {
				destroy, err := tt.create()
				if err != nil {
					require.NoError(t, err)
				}
				all = append(all, destroy)
			}
			_, err := tt.create()
			require.Equal(t, syscall.ENOMEM, err)
			require.NoError(t, all[0]())
			again, err := tt.create()
			require.NoError(t, err)
			all[0] = again
			for _, destroy := range all {
				if err := destroy(); err != nil {
					require.NoError(t, err)
				}
			}
		})
	}
	o.destroy(t)
	requireEmpty(t, d.Device)
}
