package ibverbs_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// What is more than the device has is refused with the call and the object;
// TestTooMuch has the sizes of queues.
func TestAboveTheDevicesLimits(t *testing.T) {
	r := open(t)
	attr := must(r.c.QueryDevice())(t)
	cq := r.cq(1, nil)
	qp := func(c ibverbs.QPConfig) error {
		c.SendCQ, c.RecvCQ = cq, cq
		return closing(r.pd.CreateQP(c))
	}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"segments of receives": {qp(ibverbs.QPConfig{MaxRecvWR: 1, MaxRecvSGE: attr.MaxSGE + 1}), "ibv_create_qp (PD "},
		"receives of UD":       {qp(ibverbs.QPConfig{Type: ibverbs.QPTypeUD, MaxRecvWR: attr.MaxQPWR + 1}), "ibv_create_qp (PD "},
		"extended QP": {
			qp(ibverbs.QPConfig{MaxSendWR: attr.MaxQPWR + 1, SendOps: libibverbs.IBV_QP_EX_WITH_SEND}), "ibv_create_qp_ex (PD ",
		},
		"interrupt vector": {closing(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: 1 << 20})), "): Vector is 1048576, and the device has 0 to "},
		"extended CQ": {
			closing(r.c.CreateCQ(ibverbs.CQConfig{Entries: attr.MaxCQE + 1, Fields: ibverbs.WCStandard})), "ibv_create_cq_ex (",
		},
		"extended CQ without entries": {closing(r.c.CreateCQ(ibverbs.CQConfig{Fields: ibverbs.WCStandard})), "): Entries is 0, not from 1 to "},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, r.c.Name(), name)
	}
}

// What the tables of transitions cannot know, the device refuses, and the queue
// pair stays in its state.
func TestModifyRefusedByDevice(t *testing.T) {
	r := open(t)
	ports := must(r.c.QueryDevice())(t).Ports
	for name, tt := range map[string]struct {
		from ibverbs.QPState
		move func(e *end) error
		want error
	}{
		"port": {ibverbs.QPStateReset, func(e *end) error {
			init := e.rig.init(ibverbs.QPTypeRC)
			init.Port = ports + 1
			return e.qp.ToInit(init)
		}, syscall.EINVAL},
		"port of the path": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.Port = ports + 1
			return e.qp.ToRTR(rtr)
		}, syscall.EINVAL},
		"empty entry of the GID table": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.SGIDIndex = 200
			return e.qp.ToRTR(rtr)
		}, syscall.ENODATA},
		"no GID": {ibverbs.QPStateInit, func(e *end) error {
			rtr := e.rig.rtr(ibverbs.QPTypeRC, 5)
			rtr.Path.DGID = ibverbs.GID{}
			return e.qp.ToRTR(rtr)
		}, syscall.EINVAL},
		"reads under way": {ibverbs.QPStateRTR, func(e *end) error {
			rts := e.rig.rts(ibverbs.QPTypeRC)
			rts.MaxReadAtomic = 255
			return e.qp.ToRTS(rts)
		}, syscall.EINVAL},
		"unknown attribute": {ibverbs.QPStateInit, func(e *end) error {
			return e.qp.ModifyRaw(&libibverbs.QpAttr{}, 1<<30)
		}, syscall.EINVAL},
		"unknown state": {ibverbs.QPStateInit, func(e *end) error {
			return e.qp.ModifyRaw(&libibverbs.QpAttr{QpState: 9}, libibverbs.IBV_QP_STATE)
		}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			e := r.sub(t).typedEnd(ibverbs.QPConfig{})
			if tt.from != ibverbs.QPStateReset {
				r.bring(e.qp, 5, tt.from)
			}
			err := tt.move(e)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, "ibv_modify_qp (QP ")
			require.Equal(t, tt.from, must(e.qp.State())(t))
		})
	}
}

// Ports and indices that the device does not have.
func TestQueryOutside(t *testing.T) {
	r := open(t)
	const noPort, noIndex = 77, 1 << 15
	for name, tt := range map[string]struct {
		err  error
		want error
	}{
		"port":                {second(r.c.QueryPort(noPort)), syscall.EINVAL},
		"GID of a port":       {second(r.c.QueryGID(noPort, 0)), syscall.EINVAL},
		"GID index":           {second(r.c.QueryGID(r.device.Port, noIndex)), syscall.EINVAL},
		"GID entry of a port": {second(r.c.QueryGIDEntry(noPort, 0)), syscall.EINVAL},
		"GID entry index":     {second(r.c.QueryGIDEntry(r.device.Port, noIndex)), syscall.EINVAL},
		"GIDs of a port":      {second(r.c.QueryPortGIDs(noPort)), syscall.EINVAL},
		"best GID of a port":  {second(r.c.BestGID(noPort, ibverbs.GIDOptions{})), syscall.EINVAL},
		"interface of a port": {second(r.c.NetDev(noPort)), syscall.EINVAL},
		"P_Key of a port":     {second(r.c.QueryPKey(noPort, 0)), syscall.ENOENT},
		"P_Key index":         {second(r.c.QueryPKey(r.device.Port, noIndex)), syscall.ENOENT},
		"P_Keys of a port":    {second(r.c.QueryPKeyTable(noPort)), syscall.EINVAL},
		"find a P_Key":        {second(r.c.PKeyIndex(noPort, 0xFFFF)), ibverbs.ErrNoPKey},
	} {
		require.ErrorIs(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, r.c.Name()+" port ", name)
	}
}
