// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	typ := func(text string) *Type {
		parsed, err := ParseType(text)
		require.NoError(t, err)
		return parsed
	}
	a := &API{
		Functions: []*Function{
			{Name: "ibv_f", Header: "infiniband/verbs.h", Type: typ("func(*struct ibv_secret, *func(*struct _deep) int) *struct ibv_known")},
			{Name: "rpoll", Header: "rdma/rsocket.h", Type: typ("func(*struct pollfd, *struct rdma_secret) int")},
		},
		Enums: []*Enum{
			{Name: "ibv_e", Values: []Enumerator{{Name: "A"}, {Name: "B"}}},
			{Values: []Enumerator{{Name: "FIRST"}}},
		},
		Structs: []*Struct{
			{Name: "struct ibv_known", Header: "infiniband/verbs.h", Members: []*Member{
				{Name: "m", Type: typ("int")},
				{Aggregate: "union", Members: []*Member{{Name: "u", Type: typ("*struct ibv_secret")}}},
				{Name: "in", Aggregate: "struct", Members: []*Member{{Name: "x", Type: typ("int")}, {Name: "m", Type: typ("int")}}},
			}},
			{Name: "union ibv_u"},
		},
		Macros:  []*Macro{{Name: "M"}},
		Aliases: []*Alias{{Name: "ibv_alias"}},
	}
	var got []string
	for _, name := range a.Names() {
		require.Contains(t, Kinds, name.Kind)
		got = append(got, name.String())
	}
	require.Equal(t, []string{
		"func ibv_f", "func rpoll",
		"enum ibv_e", "enumerator A", "enumerator B", "enum :FIRST", "enumerator FIRST",
		"struct ibv_known", "member ibv_known.m", "member ibv_known.u", "member ibv_known.in",
		"member ibv_known.in.x", "member ibv_known.in.m", "union ibv_u",
		"struct ibv_secret", "struct _deep", "struct rdma_secret", "macro M", "alias ibv_alias",
	}, got)
}
