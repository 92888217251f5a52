// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// Methods for the templates.

// Name returns the name of the library's package.
func (s *skeleton) Name() string { return s.name }

// Lookup returns the name of the C function that returns a function by its
// name.
func (s *skeleton) Lookup() string { return "soft_" + s.name + "_function" }

// Tables returns the structs of operations.
func (s *skeleton) Tables() []table { return s.tables }

// Short returns the struct's name without ibv_.
func (t table) Short() string { return strings.TrimPrefix(t.Struct, "ibv_") }

// Exported returns the functions that a program can look up.
func (s *skeleton) Exported() []*provided {
	return s.which(func(f *provided) bool { return f.owner == "" })
}

// ToGo returns the functions that call Go.
func (s *skeleton) ToGo() []*provided {
	return s.which(func(f *provided) bool { return !f.inC })
}

// ByHand returns the functions that C files written by hand define.
func (s *skeleton) ByHand() []*provided {
	return s.which(func(f *provided) bool { return f.inC && !s.here(f) })
}

// Here returns the functions that the skeleton defines.
func (s *skeleton) Here() []*provided {
	return s.which(func(f *provided) bool { return !f.inC || s.here(f) })
}

// here reports whether a function that stays in C is in the skeleton's own
// file.
func (s *skeleton) here(f *provided) bool {
	return f.isOwn() || s.isText(f)
}

func (s *skeleton) which(wanted func(*provided) bool) []*provided {
	return slices.DeleteFunc(slices.Clone(s.functions), func(f *provided) bool { return !wanted(f) })
}

// Prototype returns the function's declaration.
func (f *provided) Prototype() string {
	declared := *f.Function
	declared.Name = f.C
	var names []string
	for _, param := range f.params[:len(f.Type.Params)] {
		names = append(names, param.stub)
	}
	return prototype(&declared, names)
}

// Number returns the constant with the function's number in Go's table.
func (f *provided) Number() string { return "GO_" + f.Name() }

// calls maps a class to the function of call.h that calls Go for a function of
// the class.
var calls = map[conventions.Class]string{
	conventions.Void: "soft_void", conventions.Value: "soft_value", conventions.Pointer: "soft_pointer",
	conventions.List: "soft_pointer", conventions.Minus: "soft_negative",
	conventions.Code: "soft_code", conventions.Status: "soft_status", conventions.Count: "soft_count",
	conventions.Negative: "soft_negative", conventions.Poll: "soft_negative", conventions.Wait: "soft_wait",
	conventions.Rereg: "soft_rereg", conventions.EAI: "soft_count",
}

// waits maps a function that waits for an event, and whose parameters are an
// object and what the function fills, to the descriptor that C waits for.
var waits = map[string]string{
	"ibv_get_async_event": "context->async_fd", "rdma_get_cm_event": "channel->fd", "rdma_get_request": "listen->channel->fd",
}

// Body returns the C statements that call Go.
func (s *skeleton) Body(f *provided) string {
	if fd := waits[f.Name()]; fd != "" {
		object, out := f.params[0].stub, f.params[1].stub
		return fmt.Sprintf("\tif (!%s || !%s)\n\t\treturn errno = EINVAL, -1;\n\treturn soft_event(%s, %s, %s, &%s, %s);",
			object, out, s.Library(), f.Number(), object, fd, out)
	}
	var lines, members, args []string
	if f.Type.Variadic {
		last := f.params[len(f.Type.Params)-1].stub
		lines = append(lines, "va_list list;", "va_start(list, "+last+");")
	}
	for i, param := range f.params {
		if i >= len(f.Type.Params) {
			lines = append(lines, fmt.Sprintf("%s = va_arg(list, %s);", param.t.C(param.stub), param.t.C("")))
		}
		arg := param.stub
		switch {
		case f.address(param):
			members = append(members, "uintptr_t "+param.stub+";")
			arg = "(uintptr_t)" + arg
		case param.t.Kind == api.Pointer:
			members = append(members, "void *"+param.stub+";")
			arg = "(void *)" + arg
		default:
			members = append(members, s.wire(param.t)+" "+param.stub+";")
		}
		args = append(args, arg)
	}
	if f.Type.Variadic {
		lines = append(lines, "va_end(list);")
	}
	passed := "NULL"
	if len(args) > 0 {
		passed = "&args"
		lines = append(lines, "struct { "+strings.Join(members, " ")+" } args = {"+strings.Join(args, ", ")+"};", "")
	}
	call := calls[f.Class] + "(" + s.Library() + ", " + f.Number() + ", " + passed + ");"
	if f.Class != conventions.Void {
		call = "return " + call
	}
	lines = append(lines, call)
	for i, line := range lines {
		if line != "" {
			lines[i] = "\t" + line
		}
	}
	return strings.Join(lines, "\n")
}

// Library returns the constant of call.h with the number of the library.
func (s *skeleton) Library() string { return "SOFT_" + strings.ToUpper(s.typ) }

// text is a function that returns a string for each value of an enum.
type text struct {
	*provided
	Cases []textCase
	Other string
}

type textCase struct{ Name, Text string }

// Param returns the name of the parameter.
func (t text) Param() string { return t.params[0].stub }

// isText reports whether a function returns strings.
func (s *skeleton) isText(f *provided) bool {
	for _, known := range s.Strings {
		if known.Func == f.Name() {
			return true
		}
	}
	return false
}

// Texts returns the functions that return strings.
func (s *skeleton) Texts() []text {
	var all []text
	for _, f := range s.which(s.isText) {
		for _, e := range s.API.Enums {
			known := s.Strings[e.Name]
			if known == nil || known.Func != f.Name() {
				continue
			}
			t := text{provided: f, Other: strconv.Quote(known.Other)}
			for _, v := range e.Values {
				if words, ok := known.Text[v.Name]; ok {
					t.Cases = append(t.Cases, textCase{v.Name, strconv.Quote(words)})
				}
			}
			all = append(all, t)
		}
	}
	return all
}

// variable returns the Go variable with the library's functions.
func (s *skeleton) variable() *jen.Statement { return jen.Id(strings.ToLower(s.typ)) }

// goSide writes the Go struct that holds the functions, and the Go functions
// that C calls.
func (s *skeleton) goSide(f *jen.File) {
	f.HeaderComment("//go:build " + callable)
	f.Comment(lines(s.typ + " has the functions of " + s.library.Soname + " that Go answers. What is nil fails with\n" +
		"EOPNOTSUPP, or does nothing if it cannot fail. A pointer is to memory of the\n" +
		"caller's, which may be Go's, and is valid until the function returns. What the\n" +
		"caller leaves to the library, a uintptr, need not be an address at all."))
	f.Type().Id(s.typ).StructFunc(func(g *jen.Group) {
		for _, fn := range s.ToGo() {
			where := ""
			if fn.owner != "" {
				where = ", an operation of struct " + fn.owner
			}
			g.Commentf("%s is %s%s.", fn.goName, fn.Name(), where)
			g.Id(fn.goName).Add(s.field(fn))
		}
	})
	f.Commentf("%s is filled before the library is loaded.", strings.ToLower(s.typ))
	f.Var().Add(s.variable()).Id(s.typ)
	for i, t := range s.tables {
		name := s.typeName(t.Struct)
		f.Commentf("table%s returns a struct that has all operations, and nothing else.", name)
		f.Func().Id("table"+name).Params().Op("*").Qual(verbsPkg, name).Block(
			jen.Return(jen.Parens(jen.Op("*").Qual(verbsPkg, name)).Parens(jen.Id("table").Call(jen.Lit(i)))),
		)
	}
	f.Comment(lines(strings.ToLower(s.typ) + "Calls has the functions that C calls, in the order of their numbers in\n" + s.file + ".c."))
	f.Var().Id(strings.ToLower(s.typ) + "Calls").Op("=").Index().Id("call").ValuesFunc(func(g *jen.Group) {
		for _, fn := range s.ToGo() {
			g.Line().Id(s.golang(fn))
		}
		g.Line()
	})
	for _, fn := range s.ToGo() {
		f.Func().Id(s.golang(fn)).Params(jen.Id("args").Qual("unsafe", "Pointer")).Id("answer").Block(s.forward(fn)...)
	}
}

// golang returns the name of the Go function that C calls.
func (s *skeleton) golang(fn *provided) string { return strings.ToLower(s.typ) + fn.goName }

// field returns the Go type of a function in the struct.
func (s *skeleton) field(fn *provided) jen.Code {
	var params []jen.Code
	for _, param := range fn.params {
		params = append(params, jen.Id(param.name).Add(s.paramType(fn, param)))
	}
	t := jen.Func().Params(params...)
	errno := jen.Qual("syscall", "Errno")
	switch fn.Class {
	case conventions.Void:
		return t
	case conventions.Code, conventions.Status:
		return t.Add(errno)
	case conventions.Value:
		return t.Add(s.goType(fn.Type.Elem))
	case conventions.Pointer, conventions.List:
		return t.Params(s.goType(fn.Type.Elem), errno)
	}
	return t.Params(jen.Int(), errno)
}

// address reports whether Go gets a pointer argument as a number. This holds
// for a pointer without a type that the library keeps: when Go uses it, its
// memory may have been freed, and a context may be no address at all.
func (f *provided) address(param param) bool {
	return param.t.Kind == api.Pointer && param.t.Elem.IsVoid() && slices.Contains(f.Keeps, param.cName)
}

// paramType returns the Go type of a function's parameter.
func (s *skeleton) paramType(fn *provided, param param) jen.Code {
	switch {
	case fn.address(param):
		return jen.Uintptr()
	case param.text:
		return jen.String()
	}
	return s.goType(param.t)
}

// without maps a function to its result if no Go function is set. It has the
// functions that cannot report an error and for which 0 would be wrong.
var without = map[string]int{"ibv_get_device_index": -1}

// forward returns the statements that call the function in the Go struct.
func (s *skeleton) forward(fn *provided) []jen.Code {
	field := s.variable().Dot(fn.goName)
	var members, args []jen.Code
	for _, param := range fn.params {
		members = append(members, jen.Id(param.name).Add(s.memberType(fn, param)))
		arg := jen.Id("a").Dot(param.name)
		if param.text {
			arg = jen.Id("text").Call(arg)
		}
		args = append(args, arg)
	}
	var a []jen.Code
	if len(members) > 0 {
		a = append(a, jen.Id("a").Op(":=").Parens(jen.Op("*").Struct(members...)).Call(jen.Id("args")))
	}
	call := field.Clone().Call(args...)
	absent := jen.Id("absent")
	answer := func(results ...jen.Code) jen.Code {
		return jen.Id("answer").ValuesFunc(func(g *jen.Group) {
			for i := 0; i < len(results); i += 2 {
				g.Add(results[i]).Op(":").Add(results[i+1])
			}
		})
	}
	pointer, value, errno := jen.Id("pointer"), jen.Id("value"), jen.Id("errno")
	code := jen.Int32().Call(jen.Err())
	unless := func(results ...jen.Code) []jen.Code {
		missing := jen.If(field.Clone().Op("==").Nil()).Block(jen.Return(answer(results...)))
		return append([]jen.Code{missing}, a...)
	}
	both := jen.List(jen.Id("r"), jen.Err()).Op(":=").Add(call)
	switch fn.Class {
	case conventions.Void:
		return []jen.Code{jen.If(field.Clone().Op("!=").Nil()).Block(append(a, call)...), jen.Return(answer())}
	case conventions.Code, conventions.Status:
		return append(unless(errno, absent), jen.Return(answer(errno, jen.Int32().Call(call))))
	case conventions.Value:
		number := jen.Int64().Call(call)
		if fn.Type.Elem.Name == "_Bool" {
			number = jen.Id("truth").Call(call)
		}
		return append(unless(value, jen.Lit(without[fn.Name()])), jen.Return(answer(value, number)))
	case conventions.Pointer, conventions.List:
		return append(unless(errno, absent), both, jen.Return(answer(pointer, jen.Qual("unsafe", "Pointer").Call(jen.Id("r")), errno, code)))
	case conventions.Rereg:
		failed := jen.Int64().Call(jen.Qual(verbsPkg, "IBV_REREG_MR_ERR_CMD"))
		return append(unless(value, failed, errno, absent), both, jen.Return(answer(value, jen.Int64().Call(jen.Id("r")), errno, code)))
	}
	return append(unless(errno, absent), both, jen.Return(answer(value, jen.Int64().Call(jen.Id("r")), errno, code)))
}

// memberType returns the Go type of an argument in the struct that C passes.
func (s *skeleton) memberType(fn *provided, param param) jen.Code {
	if param.text {
		return jen.Op("*").Byte()
	}
	return s.paramType(fn, param)
}

// goTest writes a function for a test of the skeleton. It passes the test each
// function that Go implements, with the bindings' function that calls it.
func (s *skeleton) goTest(f *jen.File) {
	f.HeaderComment("//go:build " + callable)
	name := strings.ToLower(s.typ) + "Functions"
	f.Commentf("%s calls check for each function of %s.", name, s.typ)
	f.Func().Id(name).Params(jen.Id("check").Func().Params(jen.List(jen.Id("function"), jen.Id("class")).String(), jen.List(jen.Id("field"), jen.Id("stub")).Any())).
		BlockFunc(func(g *jen.Group) {
			for _, fn := range s.ToGo() {
				g.Id("check").Call(jen.Lit(fn.Name()), jen.Lit(string(fn.Class)), jen.Op("&").Add(s.variable()).Dot(fn.goName), s.stubOf(fn))
			}
		})
}

// stubOf returns the bindings' function that calls fn, or nil if there is none.
func (s *skeleton) stubOf(fn *provided) jen.Code {
	name := ""
	for _, f := range s.bound() {
		if f.goName == fn.goName || name == "" && fn.owner != "" && f.Inline != nil && strings.HasSuffix(f.Inline.Call, "->"+fn.Name()) {
			name = f.goName
		}
	}
	if name == "" {
		return jen.Nil()
	}
	return jen.Qual(s.path(), name)
}

func (s *skeleton) capiFile(fill func(*jen.File)) func() ([]byte, error) {
	return goFile(capiPkg, "capi", fill)
}
