// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/since"
)

func fn(name, header, prototype string, params ...string) *api.Function {
	t, err := api.ParseType(prototype)
	if err != nil {
		panic(err)
	}
	return &api.Function{Name: name, Header: header, Type: t, Params: params}
}

func inline(f *api.Function, call string) *api.Function {
	f.Inline = &api.Inline{Call: call}
	return f
}

func enum(name string, values ...int64) *api.Enum {
	e := &api.Enum{Name: name, Header: "infiniband/verbs.h"}
	for i, v := range values {
		e.Values = append(e.Values, api.Enumerator{Name: strings.ToUpper(name) + "_" + string(rune('A'+i)), Value: v})
	}
	return e
}

// facts have a convention for f and kinds for states and old_flags.
func facts(t *testing.T) Facts {
	t.Helper()
	known, err := conventions.Parse("c", []byte("func f code\nmacro M skip=\"why\"\nfunc hidden code skip=\"internal\"\nenum state values\nenum old_flags flags\n"))
	require.NoError(t, err)
	texts, err := conventions.ParseStrings("s", []byte("strings state_str state \"unknown\"\nSTATE_A \"a\"\n"))
	require.NoError(t, err)
	releases, err := since.Parse("r", nil)
	require.NoError(t, err)
	return Facts{
		Known: known, Since: releases, Strings: texts, Texts: new(Texts),
		Written: func(name string) bool { return name == "written" },
	}
}

func list(t *testing.T, a, b *api.API, known Facts) *List {
	t.Helper()
	if b.Version == "" {
		b.Version = "2.0"
	}
	l, err := For(a, b, known)
	require.NoError(t, err)
	return l
}

func TestFunctionLines(t *testing.T) {
	tests := []struct {
		f    *api.Function
		want string
	}{
		{fn("g", "infiniband/verbs.h", "func(*struct ibv_qp, int) int", "qp", "n"), "func g code # int g(struct ibv_qp *qp, int n)"},
		{fn("g", "rdma/rdma_cma.h", "func() int"), "func g status # int g(void)"},
		{fn("g", "rdma/rsocket.h", "func(int, ...) ssize_t", "fd"), "func g count # ssize_t g(int fd, ...)"},
		{fn("g", "infiniband/verbs.h", "func() void"), "func g void # void g(void)"},
		{fn("g", "infiniband/verbs.h", "func() *const char"), "func g string # const char *g(void)"},
		{fn("g", "infiniband/verbs.h", "func(**struct ibv_buf) *void", ""), "func g pointer # void *g(struct ibv_buf **)"},
		{fn("g", "infiniband/verbs.h", "func() enum ibv_fork_status"), "func g value # enum ibv_fork_status g(void)"},
		{inline(fn("g", "infiniband/verbs.h", "func() int"), "p->g"), "func g code # int g(void)"},
		{inline(fn("g", "infiniband/verbs.h", "func() int"), ""), "func g code inline=own # int g(void)"},
	}
	for _, tt := range tests {
		a := &api.API{Functions: []*api.Function{fn("f", "h", "func() int"), tt.f}}
		l := list(t, a, a, facts(t))
		require.Equal(t, []string{"# " + tt.f.Header, tt.want}, l.Conventions)
		require.True(t, l.Open())
		_, err := conventions.Parse("c", []byte(strings.Join(l.Conventions, "\n")))
		require.NoError(t, err)
	}
}

func TestEnumLines(t *testing.T) {
	tests := []struct {
		e    *api.Enum
		want string
	}{
		{enum("x", 0, 1), "enum x values # X_A=0 X_B=1"},
		{enum("x", 1, 2), "enum x values # X_A=1 X_B=2"},
		{enum("x", 1, 2, 4), "enum x flags # X_A=1 X_B=2 X_C=4"},
		{enum("x", 1, 2, 3), "enum x values # X_A=1 X_B=2 X_C=3"},
		{enum("x", -1, 2, 4), "enum x values # X_A=-1 X_B=2 X_C=4"},
		{enum("x_mask", 1), "enum x_mask flags # X_MASK_A=1"},
		{enum("x_flags2", 3), "enum x_flags2 flags # X_FLAGS2_A=3"},
		{enum("", 7), "enum :_A values name=- # _A=7"},
	}
	for _, tt := range tests {
		a := &api.API{Enums: []*api.Enum{enum("state", 0), tt.e, enum("old_flags", 1)}}
		l := list(t, a, a, facts(t))
		require.Equal(t, []string{"# infiniband/verbs.h", tt.want}, l.Conventions)
		_, err := conventions.Parse("c", []byte(strings.Join(l.Conventions, "\n")))
		require.NoError(t, err)
	}
}

// TestHeaderLines has headers of which nothing is said.
func TestHeaderLines(t *testing.T) {
	const both = "to bind this there, too, add a line to its conventions.txt, and include the header in its umbrella.h"
	a := &api.API{Headers: []*api.Header{
		{Name: "infiniband/new.h", Included: true},
		{Name: "infiniband/new_dv.h"},
		{Name: "rdma/new.h", Included: true},
		{Name: "rdma/new-abi.h", Included: true},
		{Name: "infiniband/known.h"},
		{Name: "infiniband/umad_new.h"},
		{Name: "infiniband/umad_used.h", Included: true},
		{Name: "infiniband/efadv_new.h"},
	}}
	known := facts(t)
	var err error
	known.Known, err = conventions.Parse("c", []byte("header infiniband/known.h skip=why\nheader rdma/*-abi.h other=linux\n"+
		"header infiniband/umad.h other=\"libibumad-dev\"\nheader infiniband/efadv.h skip=\"of its own\"\n"))
	known.Elsewhere = map[string]string{"infiniband/umad.h": "headers/ibumad", "infiniband/efadv.h": "headers/efa"}
	require.NoError(t, err)
	l := list(t, a, a, known)
	require.Equal(t, []string{
		"# infiniband/new.h", "header infiniband/new.h libibverbs",
		"# infiniband/new_dv.h", `header infiniband/new_dv.h skip="nothing that is bound includes it"`,
		"# rdma/new.h", "header rdma/new.h librdmacm",
		"# infiniband/umad_new.h", `header infiniband/umad_new.h other="libibumad-dev" # named like infiniband/umad.h, which headers/ibumad binds: ` + both,
		"# infiniband/umad_used.h", "header infiniband/umad_used.h libibverbs",
		"# infiniband/efadv_new.h", `header infiniband/efadv_new.h skip="of its own" # named like infiniband/efadv.h, which headers/efa binds: ` + both,
	}, l.Conventions)
	require.True(t, l.Open())
	_, err = conventions.Parse("c", []byte(strings.Join(l.Conventions, "\n")))
	require.NoError(t, err)
}

// TestShadowAndPrivate has functions that a macro stands in front of, and that
// the library keeps to itself or lacks.
func TestShadowAndPrivate(t *testing.T) {
	exported := fn("g", "h", "func() int")
	exported.Node = "N_1"
	private := fn("private", "h", "func() int")
	private.Private = true
	a := &api.API{
		Functions: []*api.Function{exported, private, fn("absent", "h", "func() int")},
		Unvalued:  []*api.Unvalued{{Name: "M", Header: "h"}, {Name: "g", Header: "h"}},
	}
	l := list(t, a, a, facts(t))
	require.Equal(t, []string{
		"# h", "func g code inline=own # int g(void)",
		`func private code skip="exported only with a private symbol version" # int private(void)`,
		`func absent code skip="declared, but not exported by the library" # int absent(void)`,
		`macro g skip="no value"`,
	}, l.Conventions)
	_, err := conventions.Parse("c", []byte(strings.Join(l.Conventions, "\n")))
	require.NoError(t, err)
}

// TestSince has names that came with the new version.
func TestSince(t *testing.T) {
	g := fn("g", "h", "func() int")
	g.Node = "N_2"
	a := &api.API{Version: "1.0", Functions: []*api.Function{fn("f", "h", "func() int")}}
	b := &api.API{Version: "2.0", Functions: []*api.Function{fn("f", "h", "func() int"), g}, Enums: []*api.Enum{enum("state", 0)}}
	known := facts(t)
	known.Older = []*api.API{a}
	require.Equal(t, []string{"2 func g # N_2", "2 enum state", "2 enumerator STATE_A"}, list(t, a, b, known).Since)
	var err error
	known.Since, err = since.Parse("r", []byte("2 func g # N_2\n2 enum state\n2 enumerator STATE_A\n"))
	require.NoError(t, err)
	require.Empty(t, list(t, a, b, known).Since)
	_, err = For(a, &api.API{Version: "new"}, known)
	require.EqualError(t, err, `"new" is not a version such as 65.0`)
}

// TestAbsent has a header that was not found.
func TestAbsent(t *testing.T) {
	l := list(t, new(api.API), &api.API{Absent: []*api.Absent{{Name: "sys/none.h", Header: "infiniband/verbs.h", Line: 12}, {Name: "infiniband/old.h", Line: 3}}}, facts(t))
	require.Equal(t, []string{
		"infiniband/verbs.h:12 includes <sys/none.h>, which is none of musl's or the kernel's headers: " +
			"add a file of this name to headers/shim, with the declarations that the headers need of it",
		"headers/umbrella.h:3 includes <infiniband/old.h>, which the headers do not have: put the line between #if __has_include(<infiniband/old.h>) and #endif, " +
			"as older headers have it",
	}, l.Mend)
	require.True(t, l.Open())
}

// TestTexts has new values of an enum for which there is a string function.
func TestTexts(t *testing.T) {
	a, b := &api.API{Enums: []*api.Enum{enum("state", 0, 1)}}, &api.API{Version: "2.0", Enums: []*api.Enum{enum("state", 0, 1, 2, 3)}}
	known := facts(t)
	l := list(t, a, b, known)
	require.Empty(t, l.Strings)
	require.Equal(t, []string{"what state_str prints for STATE_C (2), STATE_D (3): tests/update-strings 2.0 asks the library"}, l.Look)
	require.False(t, l.Open())

	var err error
	known.Texts, err = ParseTexts("t", []byte(firstLine+"2.0 return\nstate_str 1 b\nstate_str 2 a c\nstate_str 3 unknown\n"))
	require.NoError(t, err)
	l = list(t, a, b, known)
	require.Equal(t, []string{"# state_str, enum state", `STATE_C "a c"`}, l.Strings, "STATE_B is not new, and STATE_D has no text in C")
	require.Empty(t, l.Look)
	require.True(t, l.Open())

	known.Strings["state"].Text["STATE_C"] = "c"
	require.False(t, list(t, a, b, known).Open())
	known.Texts.Version = "1.0"
	require.Len(t, list(t, a, b, known).Look, 1)
}

func TestWriteAndLook(t *testing.T) {
	old := &api.API{
		Functions: []*api.Function{fn("f", "h", "func() int"), inline(fn("g", "h", "func() int"), "p->g"), inline(fn("same", "h", "func() int"), "")},
		Structs:   []*api.Struct{{Name: "struct s", Size: 4, Align: 4, Members: []*api.Member{{Name: "a", Type: &api.Type{Name: "int"}}}}},
	}
	now := &api.API{
		Functions: []*api.Function{
			inline(fn("g", "h", "func() int"), ""), inline(fn("same", "h", "func() int"), ""),
			inline(fn("h", "h", "func(int) int", "x"), ""), inline(fn("hidden", "h", "func() int"), ""),
			inline(fn("written", "h", "func() int"), ""), inline(fn("plain", "h", "func() int"), "p->plain"),
		},
		Structs: []*api.Struct{{Name: "struct s", Size: 8, Align: 4, Members: []*api.Member{
			{Name: "a", Type: &api.Type{Name: "int"}}, {Name: "b", Offset: 4, Type: &api.Type{Name: "int"}},
		}}},
	}
	l := list(t, old, now, facts(t))
	require.Equal(t, []string{"own_g for int g(void)", "own_h for int h(int x)"}, l.Write)
	require.Equal(t, []string{
		"headers/manual.txt has no manual page for h, written, plain",
		"`f`, function removed: `int f(void)`; programs that call it cannot be compiled, nor started unless the library still exports it: " +
			"the snapshot was made without it",
		"`struct s`, struct grown: `4 bytes` -> `8 bytes`; it has no comp_mask: safe only if the library allocates it or is told its size",
	}, l.Look)
	var b strings.Builder
	l.Print(&b)
	for _, line := range append(append(l.Conventions, l.Write...), l.Look...) {
		require.Contains(t, b.String(), line+"\n")
	}
	b.Reset()
	new(List).Print(&b)
	require.Empty(t, b.String())
}

func TestTextErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "t:1: expected",
		"# Something else 65.0\n":       "t:1: expected",
		firstLine + "1.0 return\nf":     `t:2: expected a function, a value and a text, found "f"`,
		firstLine + "1.0 return\nf x y": `t:2: expected a function, a value and a text, found "f x y"`,
		firstLine + "1.0 return\n\nf 1": `t:3: expected a function, a value and a text, found "f 1"`,
	} {
		_, err := ParseTexts("t", []byte(text))
		require.ErrorContains(t, err, want)
	}
	none, err := LoadTexts(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	require.Empty(t, none.Version)
	_, err = LoadTexts(t.TempDir())
	require.Error(t, err)
	ours, err := LoadTexts(filepath.Join(headertest.Top(t), "tests", "golden", "strings.txt"))
	require.NoError(t, err)
	require.Equal(t, "65.0", ours.Version)
	require.Equal(t, "UNKNOWN EVENT", ours.texts["rdma_event_str"][-2])
}

// FuzzParseTexts checks that no text panics, and that what is read has a
// version.
func FuzzParseTexts(f *testing.F) {
	f.Add([]byte(firstLine + "65.0 return\nrdma_event_str -2 UNKNOWN EVENT\n"))
	f.Add([]byte(firstLine))
	f.Fuzz(func(t *testing.T, text []byte) {
		texts, err := ParseTexts("t", text)
		if err != nil {
			require.ErrorContains(t, err, "t:")
			return
		}
		require.NotEmpty(t, texts.Version)
	})
}

// TestOtherWords has inline functions whose bodies changed, and a macro: a
// person looks at those for which C of ours is to do the same.
func TestOtherWords(t *testing.T) {
	snapshot := func(digest, call string) *api.API {
		a := &api.API{Unvalued: []*api.Unvalued{{Name: "M", Header: "h", Body: digest}, {Name: "UNKNOWN", Header: "h", Body: digest}}}
		for _, name := range []string{"written", "f"} {
			f := inline(fn(name, "infiniband/verbs.h", "func() int"), call)
			f.Inline.Body = digest
			a.Functions = append(a.Functions, f)
		}
		return a
	}
	const macros = "`UNKNOWN`; the conventions say nothing of it"
	l := list(t, snapshot("0a", "p->f"), snapshot("0b", "p->f"), facts(t))
	require.Equal(t, []string{"`written`; still inline, calls p->f; own_written in gen/internal/emit/c is to do the same", "`M`; why", macros}, l.Look)
	l = list(t, snapshot("0a", "p->f"), snapshot("0b", "p->g"), facts(t))
	require.Equal(t, []string{"`written`: `inline, calls p->f` -> `inline, calls p->g`; own_written in gen/internal/emit/c is to do the same", "`M`; why", macros}, l.Look)
	require.Empty(t, list(t, snapshot("0a", "p->f"), snapshot("0a", "p->f"), facts(t)).Look)
}
