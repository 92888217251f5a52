// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// variable returns a function whose stub returns the address of a variable of
// the library.
func (p *pkg) variable(v *api.Variable) *function {
	t := v.Type
	if t.Kind == api.Array { // the stub returns the address of its first element
		t = t.Elem
	}
	result := &api.Type{Kind: api.Pointer, Elem: t}
	fn := &api.Function{Name: v.Name, Header: v.Header, Node: v.Node, Type: &api.Type{Kind: api.Func, Elem: result}}
	return &function{
		Function: fn, Func: &conventions.Func{Name: v.Name, Class: conventions.Interior},
		goName: p.funcName(v.Name), stub: v.Name, variable: v,
	}
}

// kind returns the kind of the function's name in since.txt: func or variable.
func (f *function) kind() string {
	if f.variable != nil {
		return "variable"
	}
	return "func"
}
