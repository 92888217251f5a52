//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// The device has every operation of every table.
func TestEveryOperation(t *testing.T) {
	r := open(t)
	vctx := verbsContext(r.c)
	require.Equal(t, uint64(unsafe.Sizeof(*vctx)), vctx.Sz)
	qp := r.qp(ibverbs.QPTypeRC)
	qpx := must(libibverbs.QpToQpEx(qp.Raw()))(t)
	cqx := (*libibverbs.CqEx)(unsafe.Pointer(r.cq().Raw()))
	for _, table := range []any{vctx, &r.c.Raw().Ops, qpx, cqx} {
		v := reflect.ValueOf(table).Elem()
		for i := range v.NumField() {
			name, field := v.Type().Field(i).Name, v.Field(i)
			switch {
			case field.Kind() != reflect.UnsafePointer, name == "CqContext":
			case strings.HasPrefix(name, "Compat"), strings.HasPrefix(name, "ABI"), name == "Priv":
			default:
				require.NotZero(t, field.Pointer(), "%T has no %s", table, name)
			}
		}
	}
}

// Objects that the tests above do not make have what providers fill in, and
// are gone after their destroy call, which OpenProvider looks at.
func TestOtherObjects(t *testing.T) {
	r := open(t)
	c, pd := r.c.Raw(), r.pd.Raw()

	xrcd := must(libibverbs.OpenXrcd(c, &libibverbs.XrcdInitAttr{Fd: -1, CompMask: 3}))(t)
	require.Equal(t, libibverbs.XrcdInitAttr{Fd: -1, CompMask: 3},
		*fakelib.Struct[libibverbs.XrcdInitAttr](r.p.Only("ibv_open_xrcd"), 1))
	cq := r.cq()
	srq := must(libibverbs.CreateSrqEx(c, &libibverbs.SrqInitAttrEx{
		SrqType: libibverbs.IBV_SRQT_TM, Pd: pd, Xrcd: xrcd, Cq: cq.Raw(), CompMask: 0x1f, TmCap: libibverbs.TmCap{MaxNumTags: 3},
	}))(t)
	attr := fakelib.Struct[libibverbs.SrqInitAttrEx](r.p.Only("ibv_create_srq_ex"), 1)
	require.Equal(t, []any{xrcd, uint32(3)}, []any{attr.Xrcd, attr.TmCap.MaxNumTags})
	require.Same(t, pd, srq.Pd)
	require.Equal(t, srq.Handle, must(libibverbs.GetSrqNum(srq))(t))
	require.NoError(t, libibverbs.DestroySrq(srq))
	require.NoError(t, libibverbs.CloseXrcd(xrcd))

	mw := must(libibverbs.AllocMw(pd, libibverbs.IBV_MW_TYPE_2))(t)
	require.Equal(t, []any{pd, c, libibverbs.IBV_MW_TYPE_2}, []any{mw.Pd, mw.Context, mw.Type})
	require.NotZero(t, mw.Rkey)
	require.NoError(t, libibverbs.DeallocMw(mw))

	dm := must(libibverbs.AllocDm(c, &libibverbs.AllocDmAttr{Length: 64}))(t)
	r.p.Forget()
	data := [4]byte{1, 2, 3, 4}
	require.NoError(t, libibverbs.MemcpyToDm(dm, 8, unsafe.Pointer(&data), 4))
	call := r.p.Only("ibv_memcpy_to_dm")
	require.Equal(t, []int64{address(dm), 8, 4}, []int64{call.Arg(0), call.Arg(1), call.Arg(3)})
	require.Equal(t, data[:], fakelib.Slice[byte](call, 2, 4))
	mr := must(libibverbs.RegDmMr(pd, dm, 8, 16, 1))(t)
	require.Equal(t, uint64(16), mr.Length)
	require.NoError(t, libibverbs.DeregMr(mr))
	require.NoError(t, libibverbs.FreeDm(dm))

	td := must(libibverbs.AllocTd(c, &libibverbs.TdInitAttr{}))(t)
	parent := must(libibverbs.AllocParentDomain(c, &libibverbs.ParentDomainInitAttr{Pd: pd, Td: td}))(t)
	require.Equal(t, pd.Handle, parent.Handle)
	require.NotSame(t, pd, parent)
	require.NoError(t, libibverbs.DeallocPd(parent))
	require.NoError(t, libibverbs.DeallocTd(td))
}
