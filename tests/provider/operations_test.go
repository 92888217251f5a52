// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/tag"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/internal/testutil/racing"
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

// tagged returns a queue with a tag list, and its completion queue.
func (r *rig) tagged() (*ibverbs.SRQ, *ibverbs.CQ) {
	r.t.Helper()
	cq := keep(r.t, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8, Fields: ibverbs.WCStandard | ibverbs.WCWithTMInfo}))(r.t))
	r.p.Forget()
	srq := keep(r.t, must(r.pd.CreateSRQ(ibverbs.SRQConfig{
		Type: ibverbs.SRQTypeTagMatching, RecvQueue: 8, CQ: cq, MaxTags: 4, MaxTagOps: 3,
	}))(r.t))
	attr := fakelib.Struct[libibverbs.SrqInitAttrEx](r.p.Only("ibv_create_srq_ex"), 1)
	require.Equal(r.t, libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: 8, MaxSge: 1}, SrqType: libibverbs.IBV_SRQT_TM, Pd: r.pd.Raw(), Cq: cq.Raw(),
		TmCap: libibverbs.TmCap{MaxNumTags: 4, MaxOps: 3},
		CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD |
			libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM,
	}, *attr)
	require.ErrorIs(r.t, cq.Close(), syscall.EBUSY)
	return srq, cq
}

// C sees the whole list, and the handle that it gives an added receive is the
// one that it gets back to delete it.
func TestTagOps(t *testing.T) {
	r := open(t)
	srq, _ := r.tagged()
	mr := keep(t, must(r.pd.Alloc(64, ibverbs.AccessLocalWrite))(t))
	batch := must(tag.NewBatch(3, 2))(t)
	require.Zero(t, must(tag.Post(srq, batch))(t))
	op := tag.Op{ID: 1, Flags: tag.OpSignaled}
	require.NoError(t, batch.Add(op, tag.Recv{Tag: 0x1234, Mask: 0xFFFF, ID: 10}, mr.Sub(0, 8), mr.Sub(8, 16)))
	require.NoError(t, batch.Add(tag.Op{ID: 2, Flags: tag.OpSync, Unexpected: 5}, tag.Recv{ID: 20}))
	require.NoError(t, batch.Sync(tag.Op{ID: 3, Unexpected: 6}))
	r.p.Forget()
	require.Equal(t, 3, must(tag.Post(srq, batch))(t))

	call := r.p.Only("ibv_post_srq_ops")
	require.Equal(t, address(srq.Raw()), call.Arg(0))
	first := fakelib.Struct[libibverbs.OpsWr](call, 1)
	require.Equal(t, []libibverbs.Sge{
		{Addr: mr.Remote().Addr, Length: 8, Lkey: mr.LKey()}, {Addr: mr.Remote().Addr + 8, Length: 16, Lkey: mr.LKey()},
	}, fakelib.Follow[libibverbs.Sge](call, &first.Tm.Add.SgList, 2))
	second := &fakelib.Follow[libibverbs.OpsWr](call, &first.Next, 1)[0]
	third := &fakelib.Follow[libibverbs.OpsWr](call, &second.Next, 1)[0]
	require.Equal(t, libibverbs.OpsWr{
		WrId: 1, Opcode: libibverbs.IBV_WR_TAG_ADD, Flags: libibverbs.IBV_OPS_SIGNALED,
		Tm: libibverbs.OpsWrTm{Add: libibverbs.OpsWrTmAdd{RecvWrId: 10, NumSge: 2, Tag: 0x1234, Mask: 0xFFFF}},
	}, *first)
	require.Equal(t, libibverbs.OpsWr{
		WrId: 2, Opcode: libibverbs.IBV_WR_TAG_ADD, Flags: libibverbs.IBV_OPS_TM_SYNC,
		Tm: libibverbs.OpsWrTm{UnexpectedCnt: 5, Add: libibverbs.OpsWrTmAdd{RecvWrId: 20}},
	}, *second)
	require.Equal(t, libibverbs.OpsWr{
		WrId: 3, Opcode: libibverbs.IBV_WR_TAG_SYNC, Flags: libibverbs.IBV_OPS_TM_SYNC,
		Tm: libibverbs.OpsWrTm{UnexpectedCnt: 6},
	}, *third)

	one, two := must(batch.Handle(0))(t), must(batch.Handle(1))(t)
	require.NotEqual(t, one, two)
	_, err := batch.Handle(2)
	require.ErrorIs(t, err, syscall.EINVAL, "is no receive")

	// The double gives numbers that count up.
	batch.Reset()
	require.NoError(t, batch.Delete(op, one))
	require.NoError(t, batch.Delete(op, two))
	require.Equal(t, 2, must(tag.Post(srq, batch))(t))
	call = r.p.Only("ibv_post_srq_ops")
	first = fakelib.Struct[libibverbs.OpsWr](call, 1)
	second = &fakelib.Follow[libibverbs.OpsWr](call, &first.Next, 1)[0]
	handle := first.Tm.Handle
	require.NotZero(t, handle)
	for i, wr := range []*libibverbs.OpsWr{first, second} {
		require.Equal(t, libibverbs.OpsWr{
			WrId: 1, Opcode: libibverbs.IBV_WR_TAG_DEL, Flags: libibverbs.IBV_OPS_SIGNALED,
			Tm: libibverbs.OpsWrTm{Handle: handle + uint32(i)},
		}, *wr)
	}
	if !racing.Enabled { // as in TestPostToWQ
		require.Zero(t, testing.AllocsPerRun(100, func() {
			batch.Reset()
			if errors.Join(batch.Add(op, tag.Recv{}, mr.Sub(0, 8)), batch.Delete(op, two)) != nil {
				panic("the batch is too small")
			}
			_, _ = tag.Post(srq, batch)
		}))
	}
}

// The error names the operation that C refused; those before it were posted.
func TestTagOpsFail(t *testing.T) {
	r := open(t)
	srq, _ := r.tagged()
	batch := must(tag.NewBatch(3, 0))(t)
	for id := range uint64(3) {
		require.NoError(t, batch.Add(tag.Op{ID: id + 7}, tag.Recv{}))
	}
	require.Equal(t, 3, must(tag.Post(srq, batch))(t))
	bad := uintptr(r.p.Only("ibv_post_srq_ops").Arg(1)) + 2*unsafe.Sizeof(libibverbs.OpsWr{})
	r.p.Next("ibv_post_srq_ops", fakelib.Returns(int64(syscall.ENOMEM), 0), fakelib.Writes(2, 0, fakelib.Bytes(&bad)))
	n, err := tag.Post(srq, batch)
	var post *ibverbs.PostError
	require.ErrorAs(t, err, &post)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_post_srq_ops (SRQ ")
	require.Equal(t, []any{2, 2, uint64(9), false}, []any{n, post.Index, post.ID, post.None})
	for i, posted := range []bool{true, true, false} {
		_, err := batch.Handle(i)
		require.Equal(t, posted, err == nil, i)
	}

	r.p.Next("ibv_post_srq_ops", fakelib.Returns(int64(syscall.EOPNOTSUPP), 0)) // and not a word of the operation
	n, err = tag.Post(srq, batch)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorAs(t, err, &post)
	require.Equal(t, []any{0, 0, uint64(7)}, []any{n, post.Index, post.ID})
	_, err = batch.Handle(0)
	require.ErrorIs(t, err, syscall.EINVAL)
}

// What C would believe never reaches it.
func TestTagOpsRefused(t *testing.T) {
	r := open(t)
	srq, _ := r.tagged()
	other, _ := r.tagged()
	plain := r.srq()
	batch := must(tag.NewBatch(2, 0))(t)
	require.NoError(t, batch.Add(tag.Op{ID: 4}, tag.Recv{}))
	require.Equal(t, 1, must(tag.Post(other, batch))(t))
	handle := must(batch.Handle(0))(t)
	require.NoError(t, batch.Delete(tag.Op{ID: 5}, handle))
	r.p.Forget()

	n, err := tag.Post(srq, batch)
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "request 1 of the batch (ID 5), none was posted: ibv_post_srq_ops (SRQ ")
	require.ErrorContains(t, err, "): the handle belongs to another queue, SRQ ")
	n, err = tag.Post(plain, batch)
	require.Zero(t, n)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "request 0 of the batch (ID 4), none was posted: ibv_post_srq_ops (SRQ ")
	for _, none := range []*tag.Batch{nil, {}} {
		n, err = tag.Post(srq, none)
		require.Zero(t, n)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	n, err = tag.Post(nil, batch)
	require.Zero(t, n)
	require.ErrorIs(t, err, os.ErrInvalid)
	require.Empty(t, r.p.Names())

	gone, _ := r.tagged()
	require.NoError(t, gone.Close())
	_, err = tag.Post(gone, batch)
	require.ErrorIs(t, err, os.ErrClosed)
}

// A completion of each kind, with the fields that only tag matching has.
func TestTagCompletions(t *testing.T) {
	r := open(t)
	_, cq := r.tagged()
	wcs := make([]ibverbs.WC, 2)
	for name, tt := range map[string]struct {
		status ibverbs.WCStatus
		opcode ibverbs.WCOpcode
		flags  ibverbs.WCFlags
		tag    libibverbs.WcTmInfo
	}{
		"added":      {opcode: ibverbs.WCTagAdd, flags: ibverbs.WCFlagTagSync},
		"deleted":    {opcode: ibverbs.WCTagDelete},
		"synced":     {opcode: ibverbs.WCTagSync},
		"matched":    {opcode: ibverbs.WCTagRecv, flags: ibverbs.WCFlagTagMatched | ibverbs.WCFlagTagData, tag: libibverbs.WcTmInfo{Tag: 1<<63 + 1, Priv: 1<<31 + 2}},
		"unexpected": {opcode: ibverbs.WCTagRecv, tag: libibverbs.WcTmInfo{Tag: 5, Priv: 6}},
		"no tag":     {opcode: ibverbs.WCNoTagRecv},
		"rendezvous": {
			ibverbs.WCTagMatchingRendezvous, ibverbs.WCTagRecv, ibverbs.WCFlagTagMatched | ibverbs.WCFlagTagData,
			libibverbs.WcTmInfo{Tag: 7, Priv: 8},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.completes(cq, 42, tt.status)
			r.p.Next("ibv_wc_read_opcode", fakelib.Returns(int64(tt.opcode), 0))
			r.p.Next("ibv_wc_read_wc_flags", fakelib.Returns(int64(tt.flags), 0))
			r.p.Next("ibv_wc_read_tm_info", fakelib.Writes(1, 0, fakelib.Bytes(&tt.tag)))
			require.Equal(t, 1, must(cq.Poll(wcs))(t))
			wc := &wcs[0]
			require.Equal(t, []any{uint64(42), tt.opcode, tt.flags, tt.status}, []any{wc.ID(), wc.Opcode(), wc.Flags(), wc.Status()})
			tag, data := wc.TMInfo()
			require.Equal(t, tt.tag, libibverbs.WcTmInfo{Tag: tag, Priv: data})
			if tt.status == ibverbs.WCSuccess {
				require.NoError(t, wc.Err())
			} else {
				require.ErrorIs(t, wc.Err(), tt.status)
			}
			r.p.Forget()
		})
	}

	// A failed deletion has its ID alone.
	r.completes(cq, 43, ibverbs.WCTagMatching)
	require.Equal(t, 1, must(cq.Poll(wcs))(t))
	require.EqualValues(t, 43, wcs[0].ID())
	require.ErrorIs(t, wcs[0].Err(), ibverbs.WCTagMatching)
	require.NotContains(t, r.p.Names(), "ibv_wc_read_tm_info")
}

// completes plans a completion of an extended queue. What is in it beside its
// ID and status is for the caller to plan.
func (r *rig) completes(cq *ibverbs.CQ, id uint64, status ibverbs.WCStatus) {
	r.t.Helper()
	var raw libibverbs.CqEx
	raw.Status, raw.WrId = libibverbs.WcStatus(status), id
	from := unsafe.Offsetof(raw.Status)
	to := unsafe.Offsetof(raw.WrId) + unsafe.Sizeof(raw.WrId)
	r.p.Next("ibv_start_poll", fakelib.Returns(0, 0), fakelib.Writes(0, from, fakelib.Bytes(&raw)[from:to]))
}
