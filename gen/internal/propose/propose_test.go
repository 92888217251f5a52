// SPDX-License-Identifier: Apache-2.0

package propose

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// TestMemory has const char * parameters: those with a length are memory, which
// may contain zero bytes.
func TestMemory(t *testing.T) {
	known, err := conventions.Parse("conventions.txt", []byte("library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\n"))
	require.NoError(t, err)
	text := &api.Type{Kind: api.Pointer, Elem: &api.Type{Name: "char", Const: true}}
	written := &api.Type{Kind: api.Pointer, Elem: &api.Type{Name: "char"}}
	number := &api.Type{Name: "size_t"}
	for want, params := range map[string]map[string]*api.Type{
		"func x value bytes=b":         {"a": text, "b": text, "b_len": number},
		"func x value bytes=buf,value": {"buf": text, "buf_size": number, "value": text, "value_len": number},
		"func x value":                 {"a": written, "b_len": number, "c": text, "c_len": written, "d": text, "flags": number, "last": text},
	} {
		f := &api.Function{Name: "x", Header: "x.h", Type: &api.Type{Kind: api.Func, Elem: &api.Type{Name: "int"}}}
		for _, name := range slices.Sorted(maps.Keys(params)) {
			f.Params, f.Type.Params = append(f.Params, name), append(f.Type.Params, params[name])
		}
		lines := Lines(&api.API{Functions: []*api.Function{f}}, known)
		require.Len(t, lines, 1)
		require.Equal(t, want, lines[0].Text)
	}
}

// TestNames has declarations whose names in Go would be taken, or could not be
// used: each gets a proposal with another one.
func TestNames(t *testing.T) {
	known, err := conventions.Parse("conventions.txt", []byte("library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\n"))
	require.NoError(t, err)
	integer := &api.Type{Kind: api.Named, Name: "int"}
	function := func(name string) *api.Function {
		return &api.Function{Name: name, Header: "x.h", Type: &api.Type{Kind: api.Func, Elem: integer}}
	}
	tests := map[string]struct {
		api  api.API
		want []string
	}{
		"digit first":              {api.API{Functions: []*api.Function{function("x_1")}}, []string{"func x_1 value name=X1"}},
		"another case":             {api.API{Functions: []*api.Function{function("x_a"), function("x_A")}}, []string{"func x_a value", "func x_A value name=A2"}},
		"underscore":               {api.API{Functions: []*api.Function{function("x_a_b"), function("x_aB")}}, []string{"func x_a_b value", "func x_aB value name=AB2"}},
		"internal":                 {api.API{Functions: []*api.Function{function("x_a"), function("_x_a")}}, []string{"func x_a value", "func _x_a value name=AInternal"}},
		"struct like a function":   {api.API{Functions: []*api.Function{function("x_a")}, Structs: []*api.Struct{{Name: "struct x_a", Header: "x.h"}}}, []string{"func x_a value", "struct x_a name=AStruct"}},
		"struct like a variable":   {api.API{Variables: []*api.Variable{{Name: "x_a", Header: "x.h", Type: integer}}, Structs: []*api.Struct{{Name: "struct a", Header: "x.h"}}}, []string{"struct a name=AStruct"}},
		"structs of another case":  {api.API{Structs: []*api.Struct{{Name: "struct x_a", Header: "x.h"}, {Name: "union x_A", Header: "x.h"}}}, []string{"struct x_A name=A2"}},
		"macro in lower case":      {api.API{Macros: []*api.Macro{{Name: "x_m", Header: "x.h"}, {Name: "X_M", Header: "x.h"}}}, []string{`macro x_m skip="its name does not begin with a capital letter"`}},
		"macro of another header":  {api.API{Macros: []*api.Macro{{Name: "y_m", Header: "y.h"}}}, nil},
		"a name without a problem": {api.API{Functions: []*api.Function{function("x_call")}}, []string{"func x_call value"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, line := range Lines(&tt.api, known) {
				got = append(got, line.Text)
			}
			require.Equal(t, tt.want, got)
		})
	}
}
