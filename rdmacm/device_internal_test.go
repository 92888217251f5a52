// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// librdmacm's list of devices gives way to its next list, unless a device in
// use is missing from the next list.
func TestListsThatAreHeld(t *testing.T) {
	type lists = []**libibverbs.Context
	var o openDevices
	a, b, c := new(libibverbs.Context), new(libibverbs.Context), new(libibverbs.Context)
	list := make(lists, 7)
	for i := range list {
		list[i] = new(*libibverbs.Context)
	}
	for i, step := range []struct {
		what       string
		before     func()
		has        []*libibverbs.Context
		free, held lists
	}{
		{"first", nil, []*libibverbs.Context{a}, nil, list[:1]},
		{"the same", nil, []*libibverbs.Context{a}, list[:1], list[1:2]},
		{"one more", nil, []*libibverbs.Context{a, b}, list[1:2], list[2:3]},
		{
			"one less, which is in use", func() { o.known[b].device = new(ibverbs.Device) },
			[]*libibverbs.Context{a},
			list[3:4], list[2:3],
		},
		{"one more meanwhile", nil, []*libibverbs.Context{a, c}, nil, lists{list[2], list[4]}},
		{"the same meanwhile", nil, []*libibverbs.Context{a, c}, list[5:6], lists{list[2], list[4]}},
		{
			"not in use any more", func() { o.known[b].device = nil },
			[]*libibverbs.Context{a, c},
			lists{list[2], list[4]},
			list[6:7],
		},
	} {
		if step.before != nil {
			step.before()
		}
		require.Equal(t, step.free, o.take(list[i], step.has), step.what)
		require.Equal(t, step.held, o.held, step.what)
		for _, raw := range step.has {
			require.False(t, o.known[raw].gone, step.what)
		}
	}
	require.Len(t, o.known, 2)
	require.Equal(t, list[6:7], o.take(nil, nil), "none is left")
	require.Empty(t, o.held)
	require.Empty(t, o.known)
}
