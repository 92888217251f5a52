// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

var groupGID = wire.GID{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}

// ahAttr returns the path to testGID(peer).
func ahAttr(peer byte) *libibverbs.AhAttr {
	a := &libibverbs.AhAttr{PortNum: 1, IsGlobal: 1}
	*a.Grh.Dgid.Raw() = testGID(peer)
	return a
}

func TestAH(t *testing.T) {
	d := newNode(t, 1)
	pd := d.pd()
	six := wire.GID{0: 0x20, 1: 0x01, 15: 1}
	require.NoError(t, d.SetGID(5, GIDEntry{GID: six}))
	dgid := func(g wire.GID) func(*libibverbs.AhAttr) {
		return func(a *libibverbs.AhAttr) { *a.Grh.Dgid.Raw() = g }
	}
	for name, tt := range map[string]struct {
		change func(*libibverbs.AhAttr)
		want   error
	}{
		"plain":           {func(*libibverbs.AhAttr) {}, nil},
		"group":           {dgid(groupGID), nil},
		"itself":          {dgid(testGID(1)), nil},
		"IPv6":            {func(a *libibverbs.AhAttr) { a.Grh.SgidIndex = 5; *a.Grh.Dgid.Raw() = six }, nil},
		"highest":         {func(a *libibverbs.AhAttr) { a.Grh.FlowLabel, a.Sl = 1<<20-1, 15 }, nil},
		"no port":         {func(a *libibverbs.AhAttr) { a.PortNum = 0 }, syscall.EINVAL},
		"other port":      {func(a *libibverbs.AhAttr) { a.PortNum = 2 }, syscall.EINVAL},
		"not global":      {func(a *libibverbs.AhAttr) { a.IsGlobal = 0 }, syscall.EINVAL},
		"no destination":  {dgid(wire.GID{}), syscall.EINVAL},
		"another family":  {dgid(six), syscall.EINVAL},
		"service level":   {func(a *libibverbs.AhAttr) { a.Sl = 16 }, syscall.EINVAL},
		"empty GID entry": {func(a *libibverbs.AhAttr) { a.Grh.SgidIndex = 1 }, noData},
		"last GID entry":  {func(a *libibverbs.AhAttr) { a.Grh.SgidIndex = 255 }, noData},
	} {
		t.Run(name, func(t *testing.T) {
			a := ahAttr(2)
			tt.change(a)
			ah, err := pd.CreateAH(a)
			if tt.want != nil {
				require.Equal(t, tt.want, err)
				return
			}
			require.NoError(t, err)
			require.Same(t, ah, d.ahs[ah.Handle()])
			require.Equal(t, wire.GID(*a.Grh.Dgid.Raw()), ah.path.dgid)
			require.Equal(t, d.gids[a.Grh.SgidIndex].GID, ah.path.sgid)
			require.NotZero(t, ah.path.hopLimit)
			require.NoError(t, ah.Destroy())
			require.Nil(t, d.ahs[ah.Handle()])
		})
	}
	require.NoError(t, pd.Destroy())
}

// Of a flow label that is too large, the packets have the bits that fit, as
// with drivers.
func TestAHFlowLabel(t *testing.T) {
	pd := newNode(t, 1).pd()
	attr := ahAttr(2)
	attr.Grh.FlowLabel = 0xFFF12345
	ah, err := pd.CreateAH(attr)
	require.NoError(t, err)
	require.Equal(t, uint32(0x12345), ah.path.flowLabel)
}

func TestMulticast(t *testing.T) {
	d := newNode(t, 1)
	pd, cq := d.pd(), d.cq(1)
	a, b := d.qp(pd, libibverbs.IBV_QPT_UD, cq, cq, nil), d.qp(pd, libibverbs.IBV_QPT_UD, cq, cq, nil)
	rc := d.qp(pd, libibverbs.IBV_QPT_RC, cq, cq, nil)
	six := wire.GID{0: 0xff, 1: 0x0e, 15: 1}
	for name, err := range map[string]error{
		"unicast":             a.Attach(testGID(1)),
		"none":                a.Attach(wire.GID{}),
		"IPv4 in other words": a.Attach(wire.GID{12: 239, 15: 1}),
		"RC":                  rc.Attach(groupGID),
		"detach, not in it":   a.Detach(groupGID),
		"detach of none":      a.Detach(wire.GID{}),
	} {
		require.Equal(t, syscall.EINVAL, err, name)
	}
	for range 2 {
		require.NoError(t, a.Attach(groupGID), "twice is once")
	}
	require.NoError(t, b.Attach(groupGID))
	require.NoError(t, a.Attach(six))
	require.True(t, slices.Equal([]*QP{a, b}, d.groups[groupGID]))
	require.True(t, slices.Equal([]*QP{a}, d.groups[six]))
	require.Equal(t, syscall.EBUSY, a.Destroy())
	require.NoError(t, a.Detach(groupGID))
	require.Equal(t, syscall.EINVAL, a.Detach(groupGID))
	require.True(t, slices.Equal([]*QP{b}, d.groups[groupGID]))
	require.Equal(t, syscall.EBUSY, a.Destroy())
	require.NoError(t, a.Detach(six))
	require.NoError(t, a.Destroy())
	require.NoError(t, b.Detach(groupGID))
	require.Empty(t, d.groups)
}

func TestMulticastLimits(t *testing.T) {
	d := newNode(t, 1)
	pd, cq := d.pd(), d.cq(1)
	q := d.qp(pd, libibverbs.IBV_QPT_UD, cq, cq, nil)
	for i := range maxGroupQPs {
		m := d.qp(pd, libibverbs.IBV_QPT_UD, cq, cq, nil)
		require.NoError(t, m.Attach(groupGID), i)
	}
	require.Equal(t, syscall.ENOMEM, q.Attach(groupGID))
	for i := range maxGroups - 1 {
		require.NoError(t, q.Attach(wire.GID{0: 0xff, 14: byte(i >> 8), 15: byte(i)}))
	}
	require.Equal(t, syscall.ENOMEM, q.Attach(wire.GID{0: 0xff, 1: 1}))
	require.NoError(t, q.Detach(wire.GID{0: 0xff}))
	require.NoError(t, q.Attach(wire.GID{0: 0xff, 1: 1}))
}
