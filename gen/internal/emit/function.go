// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// function is a C function that gets a stub.
type function struct {
	*api.Function
	*conventions.Func
	goName   string
	stub     string // name of the C stub, without its prefix
	params   []param
	forms    []*function   // functions that are bound instead of a variadic one, each with a fixed list of arguments
	why      string        // the reason why it is not bound, if any
	variable *api.Variable // variable whose address the stub returns; nil if the stub calls a function
}

// Name returns the C name. Both embedded structs have a field Name.
func (f *function) Name() string { return f.Function.Name }

type param struct {
	name   string // name in Go
	cName  string // name in the header
	stub   string // name in the C stub
	t      *api.Type
	mayNil bool
	out    bool
	text   bool // whether it is a string that C only reads, of which the stub makes a copy
}

// copied returns the name of the Go variable with C's copy of a string.
func (p *param) copied() string { return "c" + strings.ToUpper(p.name[:1]) + p.name[1:] }

// limits maps a class to the C name of the parameter that limits the number of
// results.
var limits = map[conventions.Class]string{conventions.Poll: "num_entries", conventions.Wait: "maxevents"}

// limit returns the Go name of the parameter that limits the number of results,
// or "" if there is none.
func (f *function) limit() string {
	for _, param := range f.params {
		if param.cName == limits[f.Class] && param.t.Kind == api.Named {
			return param.name
		}
	}
	return ""
}

// call is the way in which a stub calls its function.
type call int

const (
	symbol   call = iota // the address of the function is in the table of the library's symbols
	dispatch             // the address is in an operation table of an object
	guarded              // the address is in the verbs_context of an object, which may lack it
	own                  // the function is one of the bindings' own C functions; see ownSources
)

func (f *function) call() call {
	switch {
	case f.Own:
		return own
	case f.Inline == nil:
		return symbol
	case f.Inline.Guard != "":
		return guarded
	}
	return dispatch
}

// dataPath reports whether the call posts or polls through an operation of an
// object. In such a call, a provider does not call Go.
func (f *function) dataPath() bool { return f.call() == dispatch && f.Name() != "ibv_dealloc_mw" }

// betweenPolls reports whether programs call the function between polls.
func (f *function) betweenPolls() bool {
	return f.Name() == "ibv_get_cq_event" || f.Name() == "ibv_ack_cq_events"
}

// bound returns the functions that have a stub.
func (p *pkg) bound() []*function {
	var out []*function
	for _, f := range p.functions {
		switch {
		case f.why != "":
		case f.Type.Variadic:
			out = append(out, f.forms...)
		default:
			out = append(out, f)
		}
	}
	return out
}

// needsLibrary reports whether the call may come before any object of the
// library exists.
func (f *function) needsLibrary() bool { return f.call() == symbol || f.call() == own }

// leavesErrno reports whether errno is meaningful after the call.
func (f *function) leavesErrno() bool {
	switch f.Class {
	case conventions.Void, conventions.Value, conventions.String, conventions.Interior:
		return false
	}
	return true
}

func (p *pkg) function(fn *api.Function) *function {
	f := &function{Function: fn, Func: p.Known.Funcs[fn.Name], goName: p.funcName(fn.Name), stub: fn.Name}
	switch {
	case f.Func == nil && p.Known.Macros[fn.Name] != "": // it is a macro in a later version
		f.why = p.Known.Macros[fn.Name]
		return f
	case f.Func == nil:
		f.why = "no line in the conventions"
		p.fail("%s", f.why)
		return f
	case f.Skip != "":
		f.why = f.Skip
	case f.Own && !Written(fn.Name):
		f.why = notWritten
	case !f.Own && f.Inline != nil && f.Inline.Call == "":
		f.why = "inline function of a form that is not recognised"
		p.fail("%s, and its line at %s says neither inline=own nor skip=", f.why, p.Known.At("func", fn.Name))
	case fn.Type.Variadic != (len(f.Forms) > 0):
		f.why = "a variadic function must have forms in the conventions, and no other function may have them"
		p.fail("%s", f.why)
	}
	names := fn.ParamNames()
	for i, t := range fn.Type.Params {
		f.params = append(f.params, p.param(f, names[i], actual(t)))
	}
	p.typed(fn.Type.Elem, f.Enums, conventions.Result)
	f.settle()
	for _, form := range f.Forms {
		f.forms = append(f.forms, p.form(f, form))
	}
	return f
}

func (p *pkg) param(f *function, name string, t *api.Type) param {
	p.typed(t, f.Enums, name)
	return param{
		cName: name, t: t,
		mayNil: slices.Contains(f.Nil, name),
		out:    slices.Contains(f.Out, name),
		text:   IsText(t) && !slices.Contains(f.Bytes, name) && !slices.Contains(f.Keeps, name),
	}
}

// form returns the function to bind for one form of a variadic function: the
// form adds its arguments to the fixed ones.
func (p *pkg) form(variadic *function, form conventions.Form) *function {
	f := *variadic
	f.goName, f.stub, f.params = p.funcName(form.Name), form.Name, slices.Clone(f.params)
	for _, arg := range form.Args {
		t, err := api.ParseType(arg.Type)
		if err != nil {
			p.fail("%s: %v", form.Name, err)
			continue
		}
		f.params = append(f.params, p.param(&f, arg.Name, t))
	}
	f.settle()
	return &f
}

// actual returns the type that a parameter has for callers. It is t, but for a
// parameter of ibv_query_port: the prototype has a special struct, to catch
// callers that bypass the macro ibv_query_port, and actual returns the struct
// that the macro takes.
func actual(t *api.Type) *api.Type {
	if t.Kind == api.Pointer && t.Elem.Name == "struct _compat_ibv_port_attr" {
		return &api.Type{Kind: api.Pointer, Elem: &api.Type{Name: "struct ibv_port_attr"}}
	}
	return t
}

// value returns the Go type of the C result, if the stub returns it. It returns
// nil if the result only reports whether the call failed.
func (p *pkg) value(f *function) *jen.Statement {
	switch f.Class {
	case conventions.Pointer, conventions.List, conventions.Interior, conventions.Value:
		return p.goType(f.Type.Elem)
	case conventions.Count, conventions.Negative, conventions.Poll, conventions.Wait:
		return jen.Int()
	case conventions.String:
		return jen.String()
	}
	return nil
}

// results returns the types of everything that a stub returns before its
// error.
func (p *pkg) results(f *function) []jen.Code {
	var out []jen.Code
	if v := p.value(f); v != nil {
		out = append(out, v)
	}
	for _, param := range f.params {
		if param.out {
			out = append(out, p.goType(param.t.Elem))
		}
	}
	return out
}

func (p *pkg) signature(f *function, block ...jen.Code) *jen.Statement {
	var params []jen.Code
	for _, param := range f.params {
		switch {
		case param.out:
		case param.text:
			params = append(params, jen.Id(param.name).String())
		default:
			params = append(params, jen.Id(param.name).Add(p.goType(param.t)))
		}
	}
	results := append(p.results(f), jen.Error())
	s := jen.Func().Id(f.goName).Params(params...)
	if len(results) == 1 {
		s.Error()
	} else {
		s.Params(results...)
	}
	return s.Block(block...)
}
