// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/counter"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestCounter(t *testing.T) {
	r := open(t)
	cc := must(counter.Create(r.c, counter.Bytes))(t)
	call := r.p.Only("ibv_create_comp_cntr")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.CompCntrInitAttr{Type: 1}, *fakelib.Struct[libibverbs.CompCntrInitAttr](call, 1))

	const value = 1<<63 + 5
	for name, write := range map[string]func(uint64) error{
		"ibv_set_comp_cntr": cc.Set, "ibv_set_err_comp_cntr": cc.SetErrors,
		"ibv_inc_comp_cntr": cc.Add, "ibv_inc_err_comp_cntr": cc.AddErrors,
	} {
		require.NoError(t, write(value))
		args := r.p.Only(name).Args()
		require.Equal(t, address(cc.Raw()), args[0])
		require.Equal(t, uint64(value), uint64(args[1]))
		r.p.Next(name, fakelib.Returns(int64(syscall.ENOTSUP), 0))
		err := write(1)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, name+" (completion counter ")
		r.p.Forget()
	}
	for name, read := range map[string]func() (uint64, error){
		"ibv_read_comp_cntr": cc.Read, "ibv_read_err_comp_cntr": cc.ReadErrors,
	} {
		written := uint64(value)
		r.p.Next(name, fakelib.Writes(1, 0, fakelib.Bytes(&written)))
		require.Equal(t, uint64(value), must(read())(t))
		require.Equal(t, address(cc.Raw()), r.p.Only(name).Arg(0))
		r.p.Next(name, fakelib.Returns(int64(syscall.EIO), 0))
		_, err := read()
		require.ErrorIs(t, err, syscall.EIO)
		r.p.Forget()
	}

	raw := address(cc.Raw())
	r.p.Next("ibv_destroy_comp_cntr", fakelib.Returns(int64(syscall.EBUSY), 0))
	require.ErrorIs(t, cc.Close(), syscall.EBUSY)
	require.NoError(t, cc.Close())
	require.Equal(t, []string{"ibv_destroy_comp_cntr", "ibv_destroy_comp_cntr"}, r.p.Names())
	require.Equal(t, []int64{raw}, r.p.Calls()[1].Args())
	_, err := cc.Read()
	require.ErrorIs(t, err, os.ErrClosed)

	r.p.Next("ibv_create_comp_cntr", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = counter.Create(r.c, counter.Requests)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestCounterCaps(t *testing.T) {
	r := open(t)
	r.p.Next("_ibv_query_comp_cntr_caps", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.CompCntrCaps{
		MaxValue: 1<<63 + 1, MaxCounters: 4095, SupportedQpAttachOps: 3,
	})))
	require.Equal(t, counter.Caps{
		MaxValue: 1<<63 + 1, MaxCounters: 4095, Ops: counter.Sends | counter.Recvs,
	}, must(counter.QueryCaps(r.c))(t))
	call := r.p.Only("_ibv_query_comp_cntr_caps")
	require.Equal(t, []int64{address(r.c.Raw()), 16}, []int64{call.Arg(0), call.Arg(2)})
	r.p.Next("_ibv_query_comp_cntr_caps", fakelib.Returns(int64(syscall.ENOTSUP), 0))
	_, err := counter.QueryCaps(r.c)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestAttachCounter(t *testing.T) {
	r := open(t)
	cc := keep(t, must(counter.Create(r.c, counter.Requests))(t))
	qp := r.qp(ibverbs.QPTypeRC)
	for _, ops := range []counter.Ops{counter.Sends | counter.RemoteWrites, counter.Reads} {
		require.NoError(t, cc.Attach(qp, ops))
		call := r.p.Only("ibv_qp_attach_comp_cntr")
		require.Equal(t, []int64{address(qp.Raw()), address(cc.Raw())}, call.Args()[:2])
		require.Equal(t, libibverbs.QpAttachCompCntrAttr{OpMask: ops},
			*fakelib.Struct[libibverbs.QpAttachCompCntrAttr](call, 2))
	}
	var busy *ibverbs.BusyError
	require.ErrorAs(t, cc.Close(), &busy)
	require.Len(t, busy.Children, 1)
	require.Empty(t, r.p.Names())
	require.NoError(t, qp.Close())
	require.NoError(t, cc.Close())
}

func TestAttachCounterFails(t *testing.T) {
	r := open(t)
	cc := keep(t, must(counter.Create(r.c, counter.Requests))(t))
	foreign := keep(t, must(counter.Create(keep(t, must(ibverbs.Open(""))(t)), counter.Requests))(t))
	qp := r.qp(ibverbs.QPTypeRC)
	require.ErrorIs(t, (*counter.Counter)(nil).Attach(qp, counter.Sends), os.ErrInvalid)
	require.ErrorIs(t, cc.Attach(qp, 0), syscall.EINVAL)
	require.ErrorContains(t, foreign.Attach(qp, counter.Sends), "belongs to another open device")
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_qp_attach_comp_cntr", fakelib.Returns(int64(syscall.EBUSY), 0))
	err := cc.Attach(qp, counter.Sends)
	require.ErrorIs(t, err, syscall.EBUSY)
	require.ErrorContains(t, err, "ibv_qp_attach_comp_cntr (completion counter ")
	require.NoError(t, cc.Close(), "the QP does not depend on it")
}
