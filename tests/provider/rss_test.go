//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func (r *rig) table() *flow.IndirectionTable {
	r.t.Helper()
	table := keep(r.t, must(flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{r.wq()}))(r.t))
	r.p.Forget()
	return table
}

func TestIndirectionTable(t *testing.T) {
	r := open(t)
	a, b := r.wq(), r.wq()
	table := must(flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{a, b, b, a}))(t)
	call := r.p.Only("ibv_create_rwq_ind_table")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	attr := fakelib.Struct[libibverbs.RwqIndTableInitAttr](call, 1)
	require.Equal(t, []*libibverbs.Wq{a.Raw(), b.Raw(), b.Raw(), a.Raw()}, fakelib.Follow[*libibverbs.Wq](call, &attr.IndTbl, 4))
	require.Equal(t, libibverbs.RwqIndTableInitAttr{LogIndTblSize: 2}, *attr)
	require.Equal(t, int(table.Raw().IndTblNum), table.Num())
	require.NotZero(t, table.Num())
	require.ErrorIs(t, a.Close(), syscall.EBUSY)
	require.Empty(t, r.p.Names())

	raw := address(table.Raw())
	require.NoError(t, table.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_rwq_ind_table").Args())

	one := must(flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{a}))(t)
	require.Zero(t, fakelib.Struct[libibverbs.RwqIndTableInitAttr](r.p.Only("ibv_create_rwq_ind_table"), 1).LogIndTblSize)
	require.NoError(t, one.Close())
}

func TestIndirectionTableFails(t *testing.T) {
	r := open(t)
	wq := r.wq()
	other := keep(t, must(ibverbs.Open(""))(t))
	r.p.Forget()
	for _, n := range []int{0, 3, 5, 6, 7} {
		wqs := make([]*ibverbs.WQ, n)
		for i := range wqs {
			wqs[i] = wq
		}
		_, err := flow.CreateIndirectionTable(r.c, wqs)
		require.ErrorIs(t, err, syscall.EINVAL, n)
		require.ErrorContains(t, err, "no power of two", n)
	}
	_, err := flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{wq, nil})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = flow.CreateIndirectionTable(other, []*ibverbs.WQ{wq})
	require.ErrorContains(t, err, "not of the same open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_rwq_ind_table").Returns(0, syscall.EOPNOTSUPP)
	_, err = flow.CreateIndirectionTable(r.c, []*ibverbs.WQ{wq})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestRSSQP(t *testing.T) {
	r := open(t)
	table := r.table()
	key := bytes.Repeat([]byte{0x6d, 0x5a}, flow.RSSKeyLen/2)
	mask := libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_IND_TABLE | libibverbs.IBV_QP_INIT_ATTR_RX_HASH
	for _, tt := range []struct {
		name   string
		config flow.RSSConfig
		want   libibverbs.QpInitAttrEx
	}{
		{"least", flow.RSSConfig{}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeRawPacket, CompMask: uint32(mask),
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40},
		}},
		{"all", flow.RSSConfig{
			Type: ibverbs.QPTypeUD, Function: flow.RSSToeplitz,
			Fields: flow.RSSSrcIPv6 | flow.RSSDstPortUDP | flow.RSSInner,
			Flags:  libibverbs.IBV_QP_CREATE_CVLAN_STRIPPING,
		}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeUD, CompMask: uint32(mask | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS), CreateFlags: 1 << 9,
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40, RxHashFieldsMask: 0x80000084},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Table, tt.config.Key = table, key
			tt.want.Pd, tt.want.RwqIndTbl = r.pd.Raw(), table.Raw()
			qp := must(flow.CreateRSSQP(r.pd, tt.config))(t)
			call := r.p.Only("ibv_create_qp_ex")
			require.Equal(t, address(r.c.Raw()), call.Arg(0))
			attr := fakelib.Struct[libibverbs.QpInitAttrEx](call, 1)
			require.Equal(t, key, fakelib.Follow[byte](call, &attr.RxHashConf.RxHashKey, 40))
			require.Equal(t, tt.want, *attr)
			require.Equal(t, tt.want.QpType, qp.Type())
			require.Equal(t, r.pd, qp.PD())
			require.ErrorIs(t, table.Close(), syscall.EBUSY)
			raw := address(qp.Raw())
			require.NoError(t, qp.Close())
			require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_qp").Args())
		})
	}
}

func TestRSSQPFails(t *testing.T) {
	r := open(t)
	key := make([]byte, flow.RSSKeyLen)
	table := r.table()
	other := keep(t, must(keep(t, must(ibverbs.Open(""))(t)).AllocPD())(t))
	r.p.Forget()
	for _, tt := range []struct {
		config flow.RSSConfig
		want   string
	}{
		{flow.RSSConfig{Table: table}, "a key of 0 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: key[1:]}, "a key of 39 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: make([]byte, 256)}, "a key of 256 bytes, not 40"},
		{flow.RSSConfig{Table: table, Key: key, Type: ibverbs.QPTypeRC}, "type IBV_QPT_RC"},
		{flow.RSSConfig{Table: table, Key: key, Function: 2}, "hash function 0x2"},
		{flow.RSSConfig{Table: table, Key: key, Function: 0x101}, "hash function IBV_RX_HASH_FUNC_TOEPLITZ|0x100"},
	} {
		_, err := flow.CreateRSSQP(r.pd, tt.config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, tt.want)
	}
	_, err := flow.CreateRSSQP(r.pd, flow.RSSConfig{Key: key})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = flow.CreateRSSQP(other, flow.RSSConfig{Table: table, Key: key})
	require.ErrorContains(t, err, "not of the same open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_qp_ex").Returns(0, syscall.EOPNOTSUPP)
	_, err = flow.CreateRSSQP(r.pd, flow.RSSConfig{Table: table, Key: key})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
