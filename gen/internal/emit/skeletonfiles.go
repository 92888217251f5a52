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

// Lookup returns the name of the C function that finds a function.
func (s *skeleton) Lookup() string { return "soft_" + s.name + "_function" }

// Tables returns the structs of operations.
func (s *skeleton) Tables() []table { return s.tables }

// Short returns the struct's name within its table.
func (t table) Short() string { return strings.TrimPrefix(t.Struct, "ibv_") }

// Exported returns the functions that a program can look up.
func (s *skeleton) Exported() []*provided {
	return s.which(func(f *provided) bool { return f.owner == "" })
}

// ToGo returns the functions that call Go.
func (s *skeleton) ToGo() []*provided {
	return s.which(func(f *provided) bool { return !f.inC })
}

// ByHand returns the functions that C files beside the skeleton define.
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
	return f.isOwn() || slices.ContainsFunc(s.Texts(), func(t text) bool { return t.provided == f })
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

// golang returns the name of the Go function that C calls.
func (f *provided) golang() string { return "soft_go_" + f.Name() }

// Body returns the statements that call Go.
func (f *provided) Body() string {
	lines, args := []string{"if (soft_forked)", "\t" + f.refusal("ENODEV")}, []string(nil)
	if f.Type.Variadic {
		last := f.params[len(f.Type.Params)-1].stub
		lines = append(lines, "va_list list;", "va_start(list, "+last+");")
	}
	for i, param := range f.params {
		switch {
		case i >= len(f.Type.Params):
			lines = append(lines, fmt.Sprintf("%s = va_arg(list, %s);", param.t.C(param.stub), param.t.C("")))
			args = append(args, param.stub)
		case f.address(param):
			args = append(args, "(uintptr_t)"+param.stub)
		case param.t.Kind == api.Pointer:
			args = append(args, "(void *)"+param.stub)
		default:
			args = append(args, param.stub)
		}
	}
	if f.Type.Variadic {
		lines = append(lines, "va_end(list);")
	}
	call := f.golang() + "(" + strings.Join(args, ", ") + ")"
	pair := "struct " + f.golang() + "_return r = " + call + ";"
	switch f.Class {
	case conventions.Void:
		lines = append(lines, call+";")
	case conventions.Code, conventions.Value, conventions.Negative, conventions.Poll:
		lines = append(lines, "return "+call+";")
	case conventions.Status:
		lines = append(lines, "int r = "+call+";", "", "if (r)", "\terrno = r;", "return r ? -1 : 0;")
	case conventions.Count:
		lines = append(lines, "int64_t r = "+call+";", "", "if (r < 0)", "\terrno = -r;", "return r < 0 ? -1 : r;")
	case conventions.Wait:
		lines = append(lines, "int64_t r = "+call+";", "", "return r < 0 ? -r : r;")
	case conventions.Pointer:
		lines = append(lines, pair, "", "if (!r.r0)", "\terrno = r.r1;", "return r.r0;")
	case conventions.Rereg:
		lines = append(lines, pair, "", "if (r.r0)", "\terrno = r.r1;", "return r.r0;")
	case conventions.EAI:
		lines = append(lines, pair, "", "if (r.r1)", "\terrno = r.r1;", "return r.r1 ? -1 : r.r0;")
	}
	for i, line := range lines {
		if line != "" {
			lines[i] = "\t" + line
		}
	}
	return strings.Join(lines, "\n")
}

// text is a function that returns a string for each value of an enum.
type text struct {
	*provided
	Cases []textCase
	Other string
}

type textCase struct{ Name, Text string }

// Param returns the name of the parameter.
func (t text) Param() string { return t.params[0].stub }

// Texts returns the functions that return strings.
func (s *skeleton) Texts() []text {
	var all []text
	for _, f := range s.functions {
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

// goSide writes the struct of functions, and the functions that C calls.
func (s *skeleton) goSide(f *jen.File) {
	f.HeaderComment("//go:build " + callable)
	f.CgoPreamble("#include \"" + s.file + ".h\"")

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
	for _, t := range s.tables {
		name := s.typeName(t.Struct)
		f.Commentf("table%s returns a struct that has all operations, and nothing else.", name)
		f.Func().Id("table"+name).Params().Op("*").Qual(verbsPkg, name).Block(
			jen.Return(jen.Parens(jen.Op("*").Qual(verbsPkg, name)).Parens(
				jen.Qual("unsafe", "Pointer").Call(jen.Op("&").Qual("C", "soft_"+t.Short())))),
		)
	}
	for _, fn := range s.ToGo() {
		f.Comment("//export " + fn.golang())
		f.Func().Id(fn.golang()).ParamsFunc(func(g *jen.Group) {
			for _, param := range fn.params {
				if fn.address(param) {
					g.Id(param.name).Uintptr()
				} else {
					g.Id(param.name).Id(s.raw(param.t))
				}
			}
		}).Add(s.rawResults(fn)).Block(s.forward(fn)...)
	}
}

// field returns the type of a function in the struct.
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
	case conventions.Pointer:
		return t.Params(s.goType(fn.Type.Elem), errno)
	}
	return t.Params(jen.Int(), errno)
}

// address reports whether Go gets a pointer as a number: memory that the
// library keeps may be gone when Go looks at it, and a context need not be the
// address of anything.
func (f *provided) address(param param) bool {
	return param.t.Kind == api.Pointer && param.t.Elem.IsVoid() && slices.Contains(f.Keeps, param.cName)
}

// paramType returns the type with which a function gets an argument.
func (s *skeleton) paramType(fn *provided, param param) jen.Code {
	switch {
	case fn.address(param):
		return jen.Uintptr()
	case param.text:
		return jen.String()
	}
	return s.goType(param.t)
}

// basic has the Go types of values in calls between C and Go.
var basic = map[string]string{
	"int8_t": "int8", "int16_t": "int16", "int32_t": "int32", "int64_t": "int64",
	"uint8_t": "uint8", "uint16_t": "uint16", "uint32_t": "uint32", "uint64_t": "uint64", "_Bool": "bool",
}

// raw returns the type with which C calls Go.
func (s *skeleton) raw(t *api.Type) string {
	if t.Kind == api.Pointer {
		return "unsafe.Pointer"
	}
	return basic[s.wire(t)]
}

func (s *skeleton) rawResults(fn *provided) jen.Code {
	switch fn.Class {
	case conventions.Void:
		return jen.Null()
	case conventions.Code, conventions.Status:
		return jen.Int32()
	case conventions.Value:
		return jen.Id(s.raw(fn.Type.Elem))
	case conventions.Pointer:
		return jen.Params(jen.Qual("unsafe", "Pointer"), jen.Int32())
	case conventions.Rereg, conventions.EAI:
		return jen.Params(jen.Int32(), jen.Int32())
	}
	return jen.Int64()
}

// without has the results of functions without errors for which 0 would be
// wrong.
var without = map[string]int{"ibv_get_device_index": -1}

// forward returns the statements that call the struct's function.
func (s *skeleton) forward(fn *provided) []jen.Code {
	field := s.variable().Dot(fn.goName)
	var args []jen.Code
	for _, param := range fn.params {
		args = append(args, s.typed(fn, param))
	}
	call := field.Clone().Call(args...)
	absent := jen.Id("absent")
	unless := func(results ...jen.Code) jen.Code {
		return jen.If(field.Clone().Op("==").Nil()).Block(jen.Return(results...))
	}
	both := jen.List(jen.Id("r"), jen.Err()).Op(":=").Add(call)
	errno := jen.Int32().Call(jen.Err())
	switch fn.Class {
	case conventions.Void:
		return []jen.Code{jen.If(field.Clone().Op("!=").Nil()).Block(call)}
	case conventions.Code, conventions.Status:
		return []jen.Code{unless(absent), jen.Return(jen.Int32().Call(call))}
	case conventions.Value:
		nothing := jen.Lit(without[fn.Name()])
		if fn.Type.Elem.Name == "_Bool" {
			nothing = jen.False()
		}
		return []jen.Code{unless(nothing), jen.Return(jen.Id(s.raw(fn.Type.Elem)).Call(call))}
	case conventions.Pointer:
		return []jen.Code{unless(jen.Nil(), absent), both, jen.Return(jen.Qual("unsafe", "Pointer").Call(jen.Id("r")), errno)}
	case conventions.Rereg:
		return []jen.Code{
			unless(jen.Int32().Call(jen.Qual(verbsPkg, "IBV_REREG_MR_ERR_CMD")), absent),
			both, jen.Return(jen.Int32().Call(jen.Id("r")), errno),
		}
	case conventions.EAI:
		return []jen.Code{unless(jen.Lit(0), absent), both, jen.Return(jen.Int32().Call(jen.Id("r")), errno)}
	}
	return []jen.Code{unless(jen.Op("-").Int64().Call(absent)), jen.Return(jen.Id("counted").Call(call))}
}

// typed returns an argument with the type that the struct's function takes.
func (s *skeleton) typed(fn *provided, param param) jen.Code {
	name := jen.Id(param.name)
	switch {
	case fn.address(param):
		return name
	case param.text:
		return jen.Qual("C", "GoString").Call(jen.Parens(jen.Op("*").Qual("C", "char")).Call(name))
	}
	t := s.goType(param.t)
	switch text := t.GoString(); {
	case text == "unsafe.Pointer", param.t.Kind != api.Pointer && text == s.raw(param.t):
		return name
	case param.t.Kind == api.Pointer:
		return jen.Parens(t).Call(name)
	default:
		return t.Call(name)
	}
}

// goTest writes the list of calls of a test: the bindings' function for each
// function that Go implements.
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

// stubOf returns the bindings' function that calls fn, nil if there is none
// yet.
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
