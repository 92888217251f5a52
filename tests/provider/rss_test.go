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
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func (r *rig) table() *ibverbs.IndirectionTable {
	r.t.Helper()
	table := keep(r.t, must(r.c.CreateIndirectionTable([]*ibverbs.WQ{r.wq()}))(r.t))
	r.p.Forget()
	return table
}

func TestIndirectionTable(t *testing.T) {
	r := open(t)
	a, b := r.wq(), r.wq()
	table := must(r.c.CreateIndirectionTable([]*ibverbs.WQ{a, b, b, a}))(t)
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

	one := must(r.c.CreateIndirectionTable([]*ibverbs.WQ{a}))(t)
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
		_, err := r.c.CreateIndirectionTable(wqs)
		require.ErrorIs(t, err, syscall.EINVAL, n)
		require.ErrorContains(t, err, "no power of two", n)
	}
	_, err := r.c.CreateIndirectionTable([]*ibverbs.WQ{wq, nil})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = other.CreateIndirectionTable([]*ibverbs.WQ{wq})
	require.ErrorContains(t, err, "not of the same open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_rwq_ind_table").Returns(0, syscall.EOPNOTSUPP)
	_, err = r.c.CreateIndirectionTable([]*ibverbs.WQ{wq})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestRSSQP(t *testing.T) {
	r := open(t)
	table := r.table()
	key := bytes.Repeat([]byte{0x6d, 0x5a}, ibverbs.RSSKeyLen/2)
	mask := libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_IND_TABLE | libibverbs.IBV_QP_INIT_ATTR_RX_HASH
	for _, tt := range []struct {
		name   string
		config ibverbs.RSSConfig
		want   libibverbs.QpInitAttrEx
	}{
		{"least", ibverbs.RSSConfig{}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeRawPacket, CompMask: uint32(mask),
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40},
		}},
		{"all", ibverbs.RSSConfig{
			Type: ibverbs.QPTypeUD, Function: ibverbs.RSSToeplitz,
			Fields: ibverbs.RSSSrcIPv6 | ibverbs.RSSDstPortUDP | ibverbs.RSSInner,
			Flags:  libibverbs.IBV_QP_CREATE_CVLAN_STRIPPING,
		}, libibverbs.QpInitAttrEx{
			QpType: ibverbs.QPTypeUD, CompMask: uint32(mask | libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS), CreateFlags: 1 << 9,
			RxHashConf: libibverbs.RxHashConf{RxHashFunction: 1, RxHashKeyLen: 40, RxHashFieldsMask: 0x80000084},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.config.Table, tt.config.Key = table, key
			tt.want.Pd, tt.want.RwqIndTbl = r.pd.Raw(), table.Raw()
			qp := must(r.pd.CreateRSSQP(tt.config))(t)
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
	key := make([]byte, ibverbs.RSSKeyLen)
	table := r.table()
	other := keep(t, must(keep(t, must(ibverbs.Open(""))(t)).AllocPD())(t))
	r.p.Forget()
	for _, tt := range []struct {
		config ibverbs.RSSConfig
		want   string
	}{
		{ibverbs.RSSConfig{Table: table}, "a key of 0 bytes, not 40"},
		{ibverbs.RSSConfig{Table: table, Key: key[1:]}, "a key of 39 bytes, not 40"},
		{ibverbs.RSSConfig{Table: table, Key: make([]byte, 256)}, "a key of 256 bytes, not 40"},
		{ibverbs.RSSConfig{Table: table, Key: key, Type: ibverbs.QPTypeRC}, "type IBV_QPT_RC"},
		{ibverbs.RSSConfig{Table: table, Key: key, Function: 2}, "hash function 0x2"},
		{ibverbs.RSSConfig{Table: table, Key: key, Function: 0x101}, "hash function IBV_RX_HASH_FUNC_TOEPLITZ|0x100"},
	} {
		_, err := r.pd.CreateRSSQP(tt.config)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, tt.want)
	}
	_, err := r.pd.CreateRSSQP(ibverbs.RSSConfig{Key: key})
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = other.CreateRSSQP(ibverbs.RSSConfig{Table: table, Key: key})
	require.ErrorContains(t, err, "not of the same open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_create_qp_ex").Returns(0, syscall.EOPNOTSUPP)
	_, err = r.pd.CreateRSSQP(ibverbs.RSSConfig{Table: table, Key: key})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
