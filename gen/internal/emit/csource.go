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
)

//go:embed c/stubs.c.tmpl
var stubsTemplate string

//go:embed c/abi.h.tmpl
var abiTemplate string

//go:embed golang/byteorder.go.txt
var byteOrder string

//go:embed golang/byteorder_test.go.txt
var byteOrderTest string

//go:embed golang/pthread.go.txt
var pthread string

//go:embed golang/pthread_arm64.go.txt
var pthreadARM64 string

//go:embed golang/pthread_other.go.txt
var pthreadOther string

func (p *pkg) execute(text string, data any) ([]byte, error) {
	t, err := template.New("").Funcs(template.FuncMap{
		"member": member, "enumerator": enumerator, "prototype": safePrototype,
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, data)
	return b.Bytes(), err
}

// safePrototype omits parameter names that our own C code uses otherwise.
func safePrototype(f *api.Function) string {
	names := f.ParamNames()
	for i, name := range names {
		if slices.Contains(cReserved, name) {
			names[i] = ""
		}
	}
	return prototype(f, names)
}

// abiHeader writes the C declarations. In other packages, it includes those of
// libibverbs, so that no C file reaches into another folder.
func (p *pkg) abiHeader() ([]byte, error) {
	type data struct {
		Marker    string
		Includes  []string // of libc, beside those that every package has
		License   string
		Opaque    []string
		Enums     []*api.Enum
		Structs   []*api.Struct
		Forwards  []string
		Functions []*api.Function
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
		if p.isLibc(s.Header) || !mine(s.Header) || len(s.Members) == 0 {
			continue
		}
		d.Structs = append(d.Structs, s)
		d.Forwards = append(d.Forwards, s.Name)
	}
	for _, f := range p.API.Functions {
		if mine(f.Header) {
			d.Functions = append(d.Functions, f)
			f.Type.Walk(func(t *api.Type) {
				if header := foreign[t.Name]; header != "" && !slices.Contains(d.Includes, header) {
					d.Includes = append(d.Includes, header)
				}
			})
		}
	}
	return p.execute(abiTemplate, d)
}

func (p *pkg) isLibc(header string) bool {
	return !strings.HasPrefix(header, "infiniband/") && !strings.HasPrefix(header, "rdma/") &&
		!slices.ContainsFunc(p.API.Headers, func(h *api.Header) bool { return h.Name == header })
}

// member writes a struct's member in C.
func member(m *api.Member) string {
	if m.Type != nil {
		return m.Type.C(m.Name) + ";"
	}
	var b strings.Builder
	b.WriteString(m.Aggregate + " {")
	for _, inner := range m.Members {
		b.WriteString("\n\t\t" + strings.ReplaceAll(member(inner), "\n", "\n\t"))
	}
	b.WriteString("\n\t}")
	if m.Name != "" {
		b.WriteString(" " + m.Name)
	}
	return b.String() + ";"
}

func enumerator(v api.Enumerator) string {
	if v.Value > 1<<31-1 {
		return fmt.Sprintf("%s = %#xu,", v.Name, v.Value)
	}
	return fmt.Sprintf("%s = %d,", v.Name, v.Value)
}

// stub is a function as the templates see it.
type stub struct {
	Name   string
	Ptr    bool     // the result is a pointer
	Params string   // those of its kind
	Locals []string // C's parameters
	Call   string   // the C expression of the call, with its arguments
	Test   string   // C condition under which the call exists; "" if it always does
	Refuse string   // what to do otherwise
	Guard  string
	Op     string
	Void   bool
	Errno  bool // whether errno is meaningful after the call
	// Again is the call for no completions. It distinguishes an errno in the
	// result from a count.
	Again string
	Fast  bool // whether programs call it for every message
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
	var args, none []string // none are the arguments that ask for no results
	places := map[string]int{}
	for _, param := range f.params {
		group := p.group(param)
		place := fmt.Sprintf("%s_%d", group, places[group])
		places[group]++
		if group == numbers {
			s.Locals = append(s.Locals, p.wire(param.t)+" "+param.stub+" = "+place+";")
		} else {
			s.Locals = append(s.Locals, param.t.C(param.stub)+" = "+place+";")
		}
		args, none = append(args, param.stub), append(none, param.stub)
		if param.name == f.limit() {
			none[len(none)-1] = "0"
		}
	}
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
	if f.Class == conventions.Poll {
		s.Again = callee + "(" + strings.Join(none, ", ") + ")"
	}
	return s
}

// inStub returns an expression of the header, which starts with a parameter,
// with the parameter's name in the stub.
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

// refusal returns the C statement by which a stub reports that the object lacks
// the operation, in the way of the function's class.
func (p *pkg) refusal(f *function) string {
	switch f.Class {
	case conventions.Code:
		return "r.value = EOPNOTSUPP;"
	case conventions.Poll, conventions.Negative:
		return "r.value = -EOPNOTSUPP;"
	case conventions.Pointer, conventions.Void, conventions.Value:
		return "r.error = EOPNOTSUPP;"
	}
	p.fail("a function of class %s cannot say that it lacks an operation", f.Class)
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

// Result is the type that a stub returns.
func (s stub) Result() string { return kind{pointer: s.Ptr}.Result() }

func (p *pkg) stubsSource() ([]byte, error) {
	return p.execute(stubsTemplate, map[string]any{
		"Marker": marker, "License": license, "Callable": callable, "Table": p.tableFunctions(), "Setter": p.setter(),
		"Own": p.own, "Stubs": p.boundStubs(), "Kinds": p.kinds(), "Structs": p.structs,
	})
}
