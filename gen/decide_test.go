// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// decideOn runs decide on the newest snapshot, changed.
func decideOn(t *testing.T, change func(*api.API)) (string, error) {
	t.Helper()
	top, newest := headertest.Top(t), headertest.Newest(t)
	facts := filepath.Join(top, "headers")
	a, err := api.Load(filepath.Join(facts, "api", newest+".json"))
	require.NoError(t, err)
	a.Version = "1000.0"
	change(a)
	text, err := a.Marshal()
	require.NoError(t, err)
	draft := filepath.Join(t.TempDir(), "draft.json")
	require.NoError(t, os.WriteFile(draft, text, 0o600))
	var out strings.Builder
	err = runDecide(facts, filepath.Join(top, "tests", "golden"), filepath.Join(top, "softroce", "internal", "capi"), "", newest, draft, &out)
	return out.String(), err
}

// TestDecideAtOnce shows that decide asks for everything that scan or emit
// would refuse later, beside the lines that are missing.
func TestDecideAtOnce(t *testing.T) {
	out, err := decideOn(t, func(*api.API) {})
	require.NoError(t, err)
	require.Empty(t, out)

	out, err = decideOn(t, func(a *api.API) {
		a.Functions = slices.DeleteFunc(a.Functions, func(f *api.Function) bool { return f.Name == "ibv_fork_init" })
		a.Unvalued = slices.DeleteFunc(a.Unvalued, func(m *api.Unvalued) bool { return m.Name == "IBV_OPCODE" })
		a.Macros = append(a.Macros, &api.Macro{Name: "IBV_OPCODE", Header: "infiniband/opcode.h", Type: "int", Value: 1})
		fn := &api.Type{Kind: api.Func, Elem: &api.Type{Name: "int"}}
		a.Functions = append(a.Functions,
			&api.Function{Name: "ibv_new_thing", Header: "infiniband/verbs.h", Type: fn, Node: "IBVERBS_1.99"},
			&api.Function{Name: "ibv_newThing", Header: "infiniband/verbs.h", Type: fn, Node: "IBVERBS_1.99"})
	})
	require.ErrorIs(t, err, errUndecided)
	line := func(begin string) string { return lineIn(t, begin) }
	for _, want := range []string{
		"\nfunc ibv_new_thing code # int ibv_new_thing(void)\n",
		"\n1000 func ibv_new_thing # IBVERBS_1.99\n",
		"headers/conventions.txt:" + line("func ibv_fork_init ") + ": a line for the function ibv_fork_init, which the headers of rdma-core 1000.0 do not have: add skip=\"why\" to it, as older headers have the function\n",
		"headers/conventions.txt:" + line("macro IBV_OPCODE ") + ": the line for the macro IBV_OPCODE stays for scans of older headers: the headers of rdma-core 1000.0 do not need it any more, those of 65.0 do\n",
		"\n- infiniband/verbs.h: func ibv_newThing: ibv_new_thing and ibv_newThing would both be called NewThing\n",
	} {
		require.Contains(t, out, want)
	}
}

// lineIn returns the number of the line of the conventions that begins so.
func lineIn(t *testing.T, begin string) string {
	t.Helper()
	before, _, ok := strings.Cut(read(t, filepath.Join(headertest.Top(t), conventionsFile)), "\n"+begin)
	require.True(t, ok, begin)
	return strconv.Itoa(strings.Count(before, "\n") + 2)
}

// TestDecideMisfit has what does not fit alone: that is a decision too.
func TestDecideMisfit(t *testing.T) {
	out, err := decideOn(t, func(a *api.API) {
		a.Functions = slices.DeleteFunc(a.Functions, func(f *api.Function) bool { return f.Name == "ibv_fork_init" })
	})
	require.ErrorIs(t, err, errUndecided)
	require.Contains(t, out, ": a line for the function ibv_fork_init, which the headers of rdma-core 1000.0 do not have: add skip=\"why\" to it, as older headers have the function\n")
}

// TestDecideRemoved removes an enum, a struct, macros and a header, whose lines
// scans of older headers need: they stay.
func TestDecideRemoved(t *testing.T) {
	out, err := decideOn(t, func(a *api.API) {
		a.Headers = slices.DeleteFunc(a.Headers, func(h *api.Header) bool { return h.Name == "infiniband/arch.h" })
		a.Enums = slices.DeleteFunc(a.Enums, func(e *api.Enum) bool { return e.Name == "rdma_driver_id" })
		a.Unvalued = slices.DeleteFunc(a.Unvalued, func(m *api.Unvalued) bool { return m.Name == "sib_raw" })
	})
	require.NoError(t, err)
	require.NotContains(t, out, "remove")
	for _, of := range []string{"header infiniband/arch.h", "enum rdma_driver_id", "macro sib_raw"} {
		require.Contains(t, out, "headers/conventions.txt:"+lineIn(t, of+" ")+": the line for the "+of+
			" stays for scans of older headers: the headers of rdma-core 1000.0 do not need it any more, those of 65.0 do\n")
	}
}
