// SPDX-License-Identifier: Apache-2.0

package conventions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	table, err := Parse("c.txt", []byte(`
# A comment.
header infiniband/verbs.h libibverbs
header infiniband/arch.h skip="of old"
header rdma/*-abi.h other=linux-libc-dev
func ibv_all  status blocks nil=a,b keeps=c bytes=f,g out=d,e enum=h:ibv_mtu,return::FIRST enum=e:ibv_access_flags # rest
func ibv_own	code	inline=own
func ibv_left_out string skip="two words # no comment"
func ibv_forms count form=ibv_forms form="ibv_forms_two int a *char b"
enum ibv_mtu values
enum ibv_access_flags flags
enum :FIRST values name=First
enum :LOOSE values name=-
enum ibv_spec values name=Spec modifier=SPEC_INNER
struct ibv_qp enum=flags:ibv_access_flags,a.b::FIRST
struct ibv_cq name=Cq2 enum=c:ibv_mtu enum=d:ibv_mtu
macro ibv_get skip="a call"
`))
	require.NoError(t, err)
	require.Equal(t, "c.txt:6", table.At("func", "ibv_all"))
	require.Equal(t, "c.txt:17", table.At("macro", "ibv_get"))
	require.Equal(t, "conventions", table.At("macro", "ibv_all"))
	require.Equal(t, "c.txt:6", new(Table).Over(table).At("func", "ibv_all"))
	table.Lines = nil
	require.Equal(t, &Table{
		Headers: []*Header{
			{Name: "infiniband/verbs.h", Package: "libibverbs"},
			{Name: "infiniband/arch.h", Skip: "of old"},
			{Name: "rdma/*-abi.h", Other: "linux-libc-dev"},
		},
		Funcs: map[string]*Func{
			"ibv_all": {
				Name: "ibv_all", Class: Status, Blocks: true,
				Nil: []string{"a", "b"}, Keeps: []string{"c"}, Bytes: []string{"f", "g"}, Out: []string{"d", "e"},
				Enums: Enums{"h": "ibv_mtu", "return": ":FIRST", "e": "ibv_access_flags"},
			},
			"ibv_own":      {Name: "ibv_own", Class: Code, Own: true},
			"ibv_left_out": {Name: "ibv_left_out", Class: String, Skip: "two words # no comment"},
			"ibv_forms": {Name: "ibv_forms", Class: Count, Forms: []Form{
				{Name: "ibv_forms"}, {Name: "ibv_forms_two", Args: []Arg{{"int", "a"}, {"*char", "b"}}},
			}},
		},
		Enums: map[string]*Enum{
			"ibv_mtu":          {Key: "ibv_mtu"},
			"ibv_access_flags": {Key: "ibv_access_flags", Flags: true},
			":FIRST":           {Key: ":FIRST", GoName: "First"},
			":LOOSE":           {Key: ":LOOSE", GoName: "-"},
			"ibv_spec":         {Key: "ibv_spec", GoName: "Spec", Modifier: "SPEC_INNER"},
		},
		Structs: map[string]string{},
		Members: map[string]Enums{
			"ibv_qp": {"flags": "ibv_access_flags", "a.b": ":FIRST"},
			"ibv_cq": {"c": "ibv_mtu", "d": "ibv_mtu"},
		},
		Names:  map[string]string{"struct ibv_cq": "Cq2"},
		Macros: map[string]string{"ibv_get": "a call"},
	}, table)
	require.Equal(t, []string{"a", "b", "c", "f", "g", "d", "e", "e", "h"}, table.Funcs["ibv_all"].Named())
	for name, want := range map[string]*Header{
		"infiniband/verbs.h": table.Headers[0], "infiniband/arch.h": table.Headers[1], "rdma/hns-abi.h": table.Headers[2],
		"rdma/*-abi.h": table.Headers[2], "rdma/hfi/hns-abi.h": nil, "infiniband/new.h": nil, "verbs.h": nil,
	} {
		require.Equal(t, want, table.Header(name), name)
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ line, want string }{
		{"func", `expected at least three words, found "func"`},
		{"func ibv_x", `expected at least three words, found "func ibv_x"`},
		{"typedef ibv_x code", `expected library, header, func, enum, struct or macro, found "typedef"`},
		{"struct ibv_x code", `struct ibv_x: expected only opaque=`},
		{`library libfoo libfoo.so.1 prefix=foo_`, `library libfoo: prefix=, debian=, fedora= and program= are needed`},
		{`library libfoo libfoo.so.1 suffix=foo_`, `library libfoo: unknown attribute "suffix=foo_": expected prefix=, debian=, fedora=, program= or apart`},
		{`library libibverbs libfoo.so.1 prefix=foo_`, `library libibverbs: already defined`},
		{"header a.h libmlx5", `header a.h: no line above defines the library libmlx5: add one such as: ` +
			`library libmlx5 libmlx5.so.1 prefix=PREFIX debian="PACKAGES" fedora="PACKAGES" program=PACKAGE; ` +
			`or write one of libibverbs, librdmacm, skip=REASON and other=PACKAGE here`},
		{"header a.h libibverbs skip=b", `header a.h: expected one of libibverbs, librdmacm, skip=REASON and other=PACKAGE, found "libibverbs skip=b"`},
		{"header a.h skip=", `header a.h: expected one of libibverbs, librdmacm, skip=REASON and other=PACKAGE, found "skip="`},
		{"header a.h why=b", `header a.h: expected one of libibverbs, librdmacm, skip=REASON and other=PACKAGE, found "why=b"`},
		{"header [.h other=b", "header [.h: syntax error in pattern"},
		{"header twice.h skip=b", "header twice.h: listed twice"},
		{"macro ibv_x code", "macro ibv_x: expected only skip="},
		{"macro ibv_x skip=a b", "macro ibv_x: expected only skip="},
		{"macro ibv_x skip=", "macro ibv_x: expected only skip="},
		{"macro ibv_twice skip=b", "macro ibv_twice: listed twice"},
		{"func ibv_x maybe", `func ibv_x: unknown class "maybe"`},
		{"func ibv_x code nil", `func ibv_x: unknown attribute "nil"`},
		{"func ibv_x code nil=", `func ibv_x: unknown attribute "nil="`},
		{"func ibv_x code bytes=", `func ibv_x: unknown attribute "bytes="`},
		{"func ibv_x code enum=", `func ibv_x: unknown attribute "enum="`},
		{"func ibv_x code enum=a", `func ibv_x: unknown attribute "enum=a"`},
		{"func ibv_x code enum=a:", `func ibv_x: unknown attribute "enum=a:"`},
		{"func ibv_x code enum=:E", `func ibv_x: unknown attribute "enum=:E"`},
		{"func ibv_x code enum=a:b,a:c", `func ibv_x: unknown attribute "enum=a:b,a:c"`},
		{"struct ibv_x enum=a", `struct ibv_x: expected enum=MEMBER:ENUM,... with each member once, found "enum=a"`},
		{"struct ibv_x enum=a:b enum=a:b", `struct ibv_x: expected enum=MEMBER:ENUM,... with each member once, found "enum=a:b"`},
		{"struct ibv_x name=X opaque=y", "struct ibv_x: expected only opaque="},
		{"func ibv_x code blocks=yes", `func ibv_x: unknown attribute "blocks=yes"`},
		{"func ibv_x code inline=other", `func ibv_x: unknown attribute "inline=other"`},
		{"func ibv_x code since=60", `func ibv_x: unknown attribute "since=60"`},
		{"func ibv_x code skip=", `func ibv_x: unknown attribute "skip="`},
		{`func ibv_x code skip=""`, `func ibv_x: unknown attribute "skip="`},
		{"func ibv_x code form=", `func ibv_x: unknown attribute "form="`},
		{`func ibv_x code form=" "`, `func ibv_x: unknown attribute "form= "`},
		{`func ibv_x code form="ibv_x_int int"`, `func ibv_x: unknown attribute "form=ibv_x_int int"`},
		{"func ibv_x code colour=red", `func ibv_x: unknown attribute "colour=red"`},
		{`func ibv_x code skip="open`, "a quote is not closed"},
		{"func ibv_twice code", "func ibv_twice: listed twice"},
		{"enum ibv_e either", `enum ibv_e: expected flags or values, found "either"`},
		{"enum ibv_e values called=E", `enum ibv_e: unknown attribute "called=E"`},
		{"enum ibv_e values name=", `enum ibv_e: unknown attribute "name="`},
		{"enum ibv_e values modifier=", `enum ibv_e: unknown attribute "modifier="`},
		{"enum ibv_e flags modifier=E", `enum ibv_e: unknown attribute "modifier=E"`},
		{"enum ibv_twice values", "enum ibv_twice: listed twice"},
		{"enum :FIRST values", "enum :FIRST: an enum without a tag needs name="},
	}
	for _, tt := range tests {
		t.Run(tt.line, func(t *testing.T) {
			_, err := Parse("c.txt", []byte("func ibv_twice code\nenum ibv_twice values\nmacro ibv_twice skip=a\nheader twice.h skip=a\n"+tt.line))
			require.EqualError(t, err, "c.txt:5: "+tt.want)
		})
	}
}

func TestParseStrings(t *testing.T) {
	got, err := ParseStrings("s.txt", []byte(`
strings rdma_event_str rdma_cm_event_type "UNKNOWN EVENT" # comment
RDMA_CM_EVENT_REJECTED "rejected, or so"
`))
	require.NoError(t, err)
	require.Equal(t, map[string]*Strings{
		"rdma_cm_event_type": {
			Func: "rdma_event_str", Enum: "rdma_cm_event_type", Other: "UNKNOWN EVENT",
			Text: map[string]string{"RDMA_CM_EVENT_REJECTED": "rejected, or so"},
		},
	}, got)
}

func TestParseStringsErrors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"A \"a\"", `s.txt:1: expected an enumerator and its text, found "A \"a\""`},
		{"strings f e o\nA", `s.txt:2: expected an enumerator and its text, found "A"`},
		{"strings f e", `s.txt:1: expected an enumerator and its text, found "strings f e"`},
		{"strings f e o\nA \"", "s.txt:2: a quote is not closed"},
		{"strings f e o\nA a\nA b", "s.txt:3: the enumerator A has a second text"},
		{"strings f e o\nstrings g e o", "s.txt:2: the enum e has a second list"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			_, err := ParseStrings("s.txt", []byte(tt.text))
			require.EqualError(t, err, tt.want)
		})
	}
}

func TestParseManual(t *testing.T) {
	got, err := ParseManual("m.txt", []byte(`
# comment
ibv_reg_mr(3) ibv_reg_mr ibv_dereg_mr # comment
ibv_reg_mr(3) ibv_reg_mr_ex
rsocket(7) rsocket
`))
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"ibv_reg_mr": "ibv_reg_mr(3)", "ibv_dereg_mr": "ibv_reg_mr(3)", "ibv_reg_mr_ex": "ibv_reg_mr(3)", "rsocket": "rsocket(7)",
	}, got)
}

func TestParseManualErrors(t *testing.T) {
	tests := []struct{ text, want string }{
		{"ibv_reg_mr(3)", `m.txt:1: expected a page such as ibv_reg_mr(3) and its functions, found "ibv_reg_mr(3)"`},
		{"\nibv_reg_mr ibv_reg_mr", `m.txt:2: expected a page such as ibv_reg_mr(3) and its functions, found "ibv_reg_mr ibv_reg_mr"`},
		{"a(0) a", `m.txt:1: expected a page such as ibv_reg_mr(3) and its functions, found "a(0) a"`},
		{"a(3) a\nb(3) b a", "m.txt:2: the function a has a second page, after a(3)"},
		{"a(3) a a", "m.txt:1: the function a has a second page, after a(3)"},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			_, err := ParseManual("m.txt", []byte(tt.text))
			require.EqualError(t, err, tt.want)
		})
	}
}

// TestOurs reads the files that the bindings are made from.
func TestOurs(t *testing.T) {
	facts := filepath.Join("..", "..", "..", "headers")
	table, err := Load(filepath.Join(facts, "conventions.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, table.Funcs)
	strings, err := LoadStrings(filepath.Join(facts, "strings.txt"))
	require.NoError(t, err)
	require.Len(t, strings, 5)
	manual, err := LoadManual(filepath.Join(facts, "manual.txt"))
	require.NoError(t, err)
	require.Equal(t, "ibv_reg_mr(3)", manual["ibv_dereg_mr"])

	_, err = Load("none.txt")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadStrings("none.txt")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadManual("none.txt")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzParse checks that no text makes a parser panic, and that what was read
// is complete.
func FuzzParse(f *testing.F) {
	f.Add([]byte("func a code nil=,b blocks\nenum :A flags name=\"x y\" # rest"))
	f.Add([]byte("func a pointer keeps=b out=c inline=own skip=\"no # no\"\nenum a values"))
	f.Add([]byte("header a.h libibverbs\nheader */b.h other=\"c d\"\nheader c.h skip=e"))
	f.Add([]byte("strings f e \"other\"\nA \"text\""))
	f.Add([]byte("a(3) a b # rest\nc(7) c"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if table, err := Parse("c.txt", text); err == nil {
			for _, h := range table.Headers {
				require.NotEmpty(t, h.Package+h.Skip+h.Other)
				require.NotNil(t, table.Header(h.Name))
			}
			for name, fn := range table.Funcs {
				require.Equal(t, name, fn.Name)
				require.Contains(t, classes, fn.Class)
			}
			for key, e := range table.Enums {
				require.Equal(t, key, e.Key)
			}
		}
		if pages, err := ParseManual("m.txt", text); err == nil {
			for _, page := range pages {
				require.Regexp(t, manualPage, page)
			}
		}
		if all, err := ParseStrings("s.txt", text); err == nil {
			for key, s := range all {
				require.Equal(t, key, s.Enum)
				require.NotNil(t, s.Text)
			}
		}
	})
}
