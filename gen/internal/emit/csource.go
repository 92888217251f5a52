// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

//go:embed c/stubs.c.tmpl
var stubsTemplate string

//go:embed c/abi.h.tmpl
var abiTemplate string

//go:embed golang/byteorder.go.txt
var byteOrder string

//go:embed golang/byteorder_test.go.txt
var byteOrderTest string

//go:embed golang/bits.go.txt
var bitFields string

//go:embed golang/pthread.go.txt
var pthread string

//go:embed golang/pthread_arm64.go.txt
var pthreadARM64 string

//go:embed golang/pthread_other.go.txt
var pthreadOther string

func (p *pkg) execute(text string, data any) ([]byte, error) {
	t, err := template.New("").Funcs(template.FuncMap{
		"member": member, "enumerator": enumerator, "prototype": safePrototype,
		"attributes": attributes, "packing": packing, "declaration": declaration,
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, data)
	return b.Bytes(), err
}

// safePrototype returns the prototype of f. It omits the parameter names that
// the bindings' own C code uses for something else.
func safePrototype(f *api.Function) string {
	names := f.ParamNames()
	for i, name := range names {
		if slices.Contains(cReserved, name) {
			names[i] = ""
		}
	}
	return prototype(f, names)
}

// abiHeader returns abi.h, which has the C declarations of the package. In a
// package other than libibverbs, it also has those of libibverbs, so that no C
// file includes a file of another folder.
func (p *pkg) abiHeader() ([]byte, error) {
	type data struct {
		Marker    string
		Includes  []string // headers of libc, besides those that every abi.h includes
		License   string
		Opaque    []string
		Bare      []string // names of typedefs that stand for opaque structs without a tag
		Enums     []*api.Enum
		Structs   []*api.Struct
		Forwards  []string
		Functions []*api.Function
		Variables []*api.Variable
	}
	d := data{Marker: marker, License: license, Opaque: p.opaque, Enums: p.enums}
	if p.verbs != nil {
		d.Enums = slices.Concat(p.verbs.enums, p.enums)
		d.Opaque = slices.Concat(p.verbs.opaque, p.opaque)
	}
	mine := func(header string) bool {
		home := p.Home(header)
		return home == p.name || p.verbs != nil && home == p.verbs.name
	}
	for _, s := range p.API.Structs {
		if s.Bare && len(s.Members) == 0 && mine(s.Header) {
			_, tag, _ := strings.Cut(s.Name, " ")
			d.Bare = append(d.Bare, tag)
		}
		if p.isProvided(s) || !mine(s.Header) || len(s.Members) == 0 {
			continue
		}
		d.Structs = append(d.Structs, s)
		if !s.Bare {
			d.Forwards = append(d.Forwards, s.Name)
		}
	}
	for _, v := range p.API.Variables {
		if mine(v.Header) {
			d.Variables = append(d.Variables, v)
		}
	}
	for _, f := range p.API.Functions {
		if mine(f.Header) {
			d.Functions = append(d.Functions, f)
			f.Type.Walk(func(t *api.Type) {
				if header, _ := layout.Opaque(t.Name); header != "" && !slices.Contains(d.Includes, header) {
					d.Includes = append(d.Includes, header)
				}
			})
		}
	}
	if p.standsAlone() {
		d.Forwards = append(p.mentioned(d.Forwards), d.Forwards...)
	}
	return p.execute(abiTemplate, d)
}

// mentioned returns the names of the structs and unions that the package's
// declarations mention but that are not in declared.
func (p *pkg) mentioned(declared []string) []string {
	var names []string
	visit := func(t *api.Type) {
		isNew := !slices.Contains(declared, t.Name) && !slices.Contains(names, t.Name)
		if p.isRecord(t) && !t.Bare && isNew {
			names = append(names, t.Name)
		}
	}
	for _, f := range p.API.Functions {
		f.Type.Walk(visit)
	}
	for _, v := range p.API.Variables {
		v.Type.Walk(visit)
	}
	for _, s := range p.API.Structs {
		api.WalkMembers(s.Members, visit)
	}
	slices.Sort(names)
	return names
}

// declaration returns the declaration of a variable.
func declaration(v *api.Variable) string {
	name := v.Name
	t := v.Type
	if t.Kind == api.Array && t.Len == 0 {
		t, name = t.Elem, name+"[]"
	}
	return "extern " + t.C(name) + ";"
}

// system lists the structs that are defined in the libc headers which every
// abi.h includes.
var system = []string{
	"timespec", "timeval", "itimerspec", "sockaddr", "sockaddr_storage", "sockaddr_in", "sockaddr_in6", "in_addr", "in6_addr", "iovec",
	"msghdr", "pollfd", "epoll_event", "tm",
}

// isProvided reports whether a header of libc that abi.h includes defines s.
func (p *pkg) isProvided(s *api.Struct) bool {
	_, tag, _ := strings.Cut(s.Name, " ")
	return p.isLibc(s.Header) && (!p.standsAlone() || slices.Contains(system, tag))
}

func (p *pkg) isLibc(header string) bool {
	return !strings.HasPrefix(header, "infiniband/") && !strings.HasPrefix(header, "rdma/") &&
		!slices.ContainsFunc(p.API.Headers, func(h *api.Header) bool { return h.Name == header })
}

// member returns the C declaration of a struct's member.
func member(m *api.Member) string {
	if m.Type != nil {
		text := m.Type.C(m.Name)
		if m.Bits != nil {
			text = fmt.Sprintf("%s : %d", strings.TrimSpace(text), m.Bits.Width)
		}
		return text + attributes(m.Rules) + ";"
	}
	var b strings.Builder
	b.WriteString(m.Aggregate + " {")
	for _, inner := range m.Members {
		b.WriteString("\n\t\t" + strings.ReplaceAll(member(inner), "\n", "\n\t"))
	}
	b.WriteString("\n\t}" + attributes(m.Rules))
	if m.Name != "" {
		b.WriteString(" " + m.Name)
	}
	return b.String() + ";"
}

// attributes returns the C attributes that a layout needs. It leaves out
// #pragma pack, which abi.h has around the whole struct.
func attributes(rules api.Rules) string {
	var words []string
	if rules.Pack > 0 && !rules.Pragma {
		words = append(words, "packed")
	}
	if rules.Aligned > 0 {
		words = append(words, fmt.Sprintf("aligned(%d)", rules.Aligned))
	}
	if len(words) == 0 {
		return ""
	}
	return " __attribute__((" + strings.Join(words, ", ") + "))"
}

// packing returns the #pragma pack of a struct, or 0.
func packing(s *api.Struct) int64 {
	if s.Pragma {
		return s.Pack
	}
	return 0
}

func enumerator(v api.Enumerator) string {
	if v.Value > 1<<32-1 {
		return fmt.Sprintf("%s = %#xull,", v.Name, v.Value)
	}
	if v.Value < -1<<31 {
		return fmt.Sprintf("%s = -%#xll - 1,", v.Name, -(v.Value + 1))
	}
	if v.Value > 1<<31-1 {
		return fmt.Sprintf("%s = %#xu,", v.Name, v.Value)
	}
	return fmt.Sprintf("%s = %d,", v.Name, v.Value)
}

// stub has what the templates write about a C stub.
type stub struct {
	Name   string
	Ptr    bool     // whether the result is a pointer
	Params string   // C parameters of the stub, which are those of its kind
	Locals []string // C statements that convert the stub's parameters to those of the function
	Call   string   // the C expression of the call, with its arguments
	Test   string   // C condition under which the call is possible; "" if it always is
	Refuse string   // C statement that reports that the call is not possible
	Guard  string
	Op     string
	Void   bool
	Record string // C type of a pointer to the result, if that is a struct or union
	Place  string // name of the C parameter that points to the memory for such a result
	Float  bool   // whether the result is a floating-point number, whose bits are returned
	Errno  bool   // whether errno is meaningful after the call
	// Again is the call with a limit of 0 completions. Its result shows
	// whether that of Call is an errno or a number of completions.
	Again string
	Fast  bool // whether programs call the function for every message
}

func (p *pkg) stub(f *function) stub {
	s := stub{
		Name:  f.stub,
		Ptr:   f.Type.Elem.Kind == api.Pointer,
		Void:  f.Type.Elem.IsVoid(),
		Errno: f.leavesErrno(),
		Fast:  f.dataPath() || f.betweenPolls(),
	}
	s.Params = p.kind(f).Params()
	var args, none []string // none has the arguments for Again
	places := map[string]int{}
	for _, param := range f.params {
		group := p.group(param)
		place := fmt.Sprintf("%s_%d", group, places[group])
		places[group]++
		if p.isRecord(param.t) {
			s.Locals = append(s.Locals, "const "+param.t.C("*"+param.stub)+" = "+place+";")
			args, none = append(args, "*"+param.stub), append(none, "*"+param.stub)
			continue
		}
		switch {
		case group == numbers && isFloat(param.t):
			s.Locals = append(s.Locals, "double "+param.stub+" = ((union { uint64_t bits; double value; }){"+place+"}).value;")
		case group == numbers:
			s.Locals = append(s.Locals, p.wire(param.t)+" "+param.stub+" = "+place+";")
		default:
			s.Locals = append(s.Locals, param.t.C(param.stub)+" = "+place+";")
		}
		args, none = append(args, param.stub), append(none, param.stub)
		if param.name == f.limit() {
			none[len(none)-1] = "0"
		}
	}
	if p.isRecord(f.Type.Elem) {
		s.Record, s.Place = f.Type.Elem.C("*"), fmt.Sprintf("%s_%d", pointers, places[pointers])
	}
	s.Float = isFloat(f.Type.Elem)
	callee := ""
	switch f.call() {
	case symbol:
		callee, s.Test = "LIB("+f.Name()+")", "LIB("+f.Name()+")"
		s.Refuse = "r.error = MISSING;"
	case own:
		callee = "own_" + f.Name()
	case dispatch:
		callee = f.inStub(f.Inline.Call)
		s.Test, s.Refuse = callee, p.refusal(f)
	case guarded:
		s.Refuse = p.refusal(f)
		callee, s.Guard, s.Test = f.Inline.Call, f.inStub(f.Inline.Guard), "vctx"
		s.Op = strings.TrimPrefix(f.Inline.Call, "vctx->")
	}
	s.Call = callee + "(" + strings.Join(args, ", ") + ")"
	if f.variable != nil {
		s.Call = callee
	}
	if f.Class == conventions.Poll {
		s.Again = callee + "(" + strings.Join(none, ", ") + ")"
	}
	return s
}

// inStub takes a C expression of the header that begins with the name of a
// parameter, and replaces this name by that in the stub.
func (f *function) inStub(expression string) string {
	root, rest, _ := strings.Cut(expression, "->")
	for _, param := range f.params {
		if param.cName == root && rest != "" {
			return param.stub + "->" + rest
		} else if param.cName == root {
			return param.stub
		}
	}
	return expression
}

// refusal returns the C statement with which a stub reports that the object
// lacks the operation. The function's class (see conventions.Class) says where
// the errno goes.
func (p *pkg) refusal(f *function) string {
	switch f.Class {
	case conventions.Code:
		return "r.value = EOPNOTSUPP;"
	case conventions.Poll, conventions.Negative, conventions.Minus:
		return "r.value = -EOPNOTSUPP;"
	case conventions.Pointer, conventions.List, conventions.Void, conventions.Value:
		return "r.error = EOPNOTSUPP;"
	}
	p.fail("a function of class %s cannot report that the object lacks the operation", f.Class)
	return ""
}

func (p *pkg) boundStubs() []stub {
	var out []stub
	for _, f := range p.bound() {
		out = append(out, p.stub(f))
	}
	return out
}

func (p *pkg) stubsHeader() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// %s\n// %s\n\n#pragma once\n\n#include <stdint.h>\n\n", marker, license)
	b.WriteString("/* A result and the errno that was set in the same call. */\n")
	b.WriteString("typedef struct {\n\tint64_t value;\n\tint32_t error;\n} verbena_int;\n\n")
	b.WriteString("typedef struct {\n\tvoid *value;\n\tint32_t error;\n} verbena_ptr;\n\n")
	fmt.Fprintf(&b, "void %s(int i, void *function);\n\n", p.setter())
	b.WriteString("/* Stubs by their numbers, one function for each kind of prototype: so many pointers (p),\n" +
		" * pointers to bytes (b) and numbers (n), in this order. cgo takes long for each function. */\n")
	for _, k := range p.kinds() {
		fmt.Fprintf(&b, "%s %s(%s);\n", k.Result(), k.Name(), k.Declared())
	}
	return b.Bytes(), nil
}

// Result returns the C type of the stub's result.
func (s stub) Result() string { return kind{pointer: s.Ptr}.Result() }

func (p *pkg) stubsSource() ([]byte, error) {
	return p.execute(stubsTemplate, map[string]any{
		"Marker": marker, "License": license, "Callable": callable, "Table": p.tableFunctions(), "Setter": p.setter(),
		"Alone": p.standsAlone(), "Own": p.own, "Stubs": p.boundStubs(), "Kinds": p.kinds(), "Structs": p.structs,
	})
}
