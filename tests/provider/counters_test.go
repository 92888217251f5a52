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
	"github.com/verbena-go/verbena/ibverbs/flow"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestCounters(t *testing.T) {
	r := open(t)
	counters := must(flow.CreateCounters(r.c))(t)
	call := r.p.Only("ibv_create_counters")
	require.Equal(t, address(r.c.Raw()), call.Arg(0))
	require.Equal(t, libibverbs.CountersInitAttr{}, *fakelib.Struct[libibverbs.CountersInitAttr](call, 1))

	require.NoError(t, counters.Attach(3, flow.CounterBytes, nil))
	call = r.p.Only("ibv_attach_counters_point_flow")
	require.Equal(t, []int64{address(counters.Raw()), 0}, []int64{call.Arg(0), call.Arg(2)})
	require.Equal(t, libibverbs.CounterAttachAttr{CounterDesc: libibverbs.IBV_COUNTER_BYTES, Index: 3},
		*fakelib.Struct[libibverbs.CounterAttachAttr](call, 1))

	for cached, flags := range map[bool]int64{false: 0, true: 1} {
		read := [2]uint64{1<<63 + 2, 7}
		r.p.Next("ibv_read_counters").Writes(1, 0, fakelib.Bytes(&read))
		values := make([]uint64, 3)
		require.NoError(t, counters.Read(values, cached))
		require.Equal(t, []uint64{1<<63 + 2, 7, 0}, values)
		call = r.p.Only("ibv_read_counters")
		require.Equal(t, []int64{address(counters.Raw()), 3, flags}, []int64{call.Arg(0), call.Arg(2), call.Arg(3)})
	}
	require.NoError(t, counters.Read(nil, false))
	require.Empty(t, r.p.Names())

	raw := address(counters.Raw())
	require.NoError(t, counters.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_destroy_counters").Args())
	require.ErrorIs(t, counters.Read(make([]uint64, 1), false), os.ErrClosed)
}

// A rule that exists already depends on counters that are attached to it.
func TestCountersOfRule(t *testing.T) {
	r := open(t)
	counters := keep(t, must(flow.CreateCounters(r.c))(t))
	rule := keep(t, must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{}))(t))
	r.p.Forget()
	require.NoError(t, counters.Attach(0, flow.CounterPackets, rule))
	require.Equal(t, address(rule.Raw()), r.p.Only("ibv_attach_counters_point_flow").Arg(2))
	require.ErrorIs(t, counters.Close(), syscall.EBUSY)
	require.Empty(t, r.p.Names())
	require.NoError(t, rule.Close())
	require.NoError(t, counters.Close())
}

func TestCountersFail(t *testing.T) {
	r := open(t)
	counters := keep(t, must(flow.CreateCounters(r.c))(t))
	foreign := keep(t, must(flow.CreateCounters(keep(t, must(ibverbs.Open(""))(t))))(t))
	rule := keep(t, must(flow.Create(r.qp(ibverbs.QPTypeRawPacket), flow.Config{}))(t))
	r.p.Forget()
	require.ErrorIs(t, counters.Attach(-1, flow.CounterBytes, nil), syscall.EINVAL)
	require.ErrorIs(t, counters.Attach(0, flow.CounterBytes, &flow.Rule{}), os.ErrInvalid)
	require.ErrorContains(t, foreign.Attach(0, flow.CounterBytes, rule), "not of the same open device")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_attach_counters_point_flow").Returns(int64(syscall.ENOTSUP), 0)
	err := counters.Attach(1, flow.CounterBytes, rule)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "(IBV_COUNTER_BYTES at index 1 of counters of fake0)")
	r.p.Next("ibv_read_counters").Returns(int64(syscall.EIO), 0)
	require.ErrorIs(t, counters.Read(make([]uint64, 1), false), syscall.EIO)
	r.p.Next("ibv_destroy_counters").Returns(int64(syscall.EBUSY), 0)
	require.ErrorIs(t, counters.Close(), syscall.EBUSY, "no BusyError: the rule does not depend on them")
	r.p.Next("ibv_create_counters").Returns(0, syscall.EOPNOTSUPP)
	_, err = flow.CreateCounters(r.c)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
