// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// structure is a struct in a snapshot of the headers.
type structure struct {
	Name    string
	Members []struct{ Name, Type string }
}

// tables has the structs whose members are operations. call returns the name
// under which a call through a member is recorded.
var tables = []struct {
	name string
	call func(member string) string
}{
	{"verbs_context", ibvName},
	{"ibv_context_ops", ibvName},
	{"ibv_qp_ex", ibvName},
	{"ibv_dm", ibvName},
	{"ibv_cq_ex", func(member string) string {
		if field, ok := strings.CutPrefix(member, "read_"); ok {
			return "ibv_wc_read_" + field
		}
		return ibvName(member)
	}},
	{"ibv_wq", func(string) string { return "ibv_post_wq_recv" }},
}

// ibvName returns the name of the function that calls an operation.
func ibvName(member string) string {
	if member == "query_port" { // the exported ibv_query_port is for old programs
		return "___ibv_query_port"
	}
	return "ibv_" + strings.TrimPrefix(member, "ibv_")
}

// wrapper is a C function that records its calls.
type wrapper struct {
	name string // name under which calls are recorded
	ident,
	linkage string // name and linkage of the C function
	typ   string // type in the form of the snapshot
	files []string
}

// complete reports whether C knows the size of a type.
func (a api) complete(typ string) bool {
	return !strings.HasSuffix(typ, "void") && (!strings.Contains(typ, "struct ") || strings.HasPrefix(typ, "*") ||
		slices.ContainsFunc(a.Structs, func(s structure) bool { return s.Name == strings.TrimPrefix(typ, "const ") && len(s.Members) > 0 }))
}

// cmWrappers returns the content of functions.h for testdata/cm.c.
func cmWrappers(a api) string {
	var b strings.Builder
	for _, f := range a.Functions {
		if f.Inline == nil && f.Header != "rdma/rsocket.h" && home(f.Header) == "librdmacm" {
			b.WriteString(wrapper{f.Name, f.Name, "", f.Type, cmFiles}.source(a.complete))
		}
	}
	return b.String()
}

// vendorWrappers returns the content of functions.h for a driver's library,
// whose source is file. base has the structs of libibverbs.
func vendorWrappers(a, base api, file string) string {
	a.Structs = slices.Concat(a.Structs, base.Structs)
	files := []string{file}
	var b strings.Builder
	set := map[string]string{}
	for _, f := range a.Functions {
		if f.Inline == nil {
			b.WriteString(wrapper{f.Name, f.Name, "", f.Type, files}.source(a.complete))
			continue
		}
		if _, member, ok := strings.Cut(f.Inline.Call, "->"); ok {
			b.WriteString(wrapper{f.Name, "op_" + f.Name, "static ", f.Type, files}.source(a.complete))
			object, _, _ := strings.Cut(strings.TrimPrefix(f.Type, "func(*struct "), ",")
			object, _, _ = strings.Cut(object, ")")
			set[object] += fmt.Sprintf("\ttable->%s = op_%s;\n", member, f.Name)
		}
	}
	for _, object := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&b, "static void set_%s(struct %[1]s *table)\n{\n%s}\n\n", object, set[object])
	}
	return b.String()
}

// wrappers returns the content of functions.h for testdata/provider.c.
func wrappers(a api) string {
	var b strings.Builder
	exported := map[string]bool{}
	for _, f := range a.Functions {
		if home(f.Header) == "libibverbs" && f.Inline == nil {
			exported[f.Name] = true
			b.WriteString(wrapper{f.Name, f.Name, "", f.Type, providerFiles}.source(a.complete))
		}
	}
	for _, table := range tables {
		var set strings.Builder
		i := slices.IndexFunc(a.Structs, func(s structure) bool { return s.Name == "struct "+table.name })
		for _, m := range a.Structs[i].Members {
			typ, ok := strings.CutPrefix(m.Type, "*func(")
			if !ok || strings.HasPrefix(m.Name, "_compat") || strings.HasPrefix(m.Name, "ABI_") {
				continue
			}
			name := table.call(m.Name)
			ident := name
			if !exported[name] { // an exported function is also the operation
				ident = "op_" + name
				b.WriteString(wrapper{name, ident, "static ", "func(" + typ, providerFiles}.source(a.complete))
			}
			fmt.Fprintf(&set, "\ttable->%s = %s;\n", m.Name, ident)
		}
		fmt.Fprintf(&b, "static void set_%s(struct %s *table)\n{\n%s}\n\n", table.name, table.name, &set)
	}
	return b.String()
}

// source returns the source of the function. complete reports whether C knows
// the size of a type.
func (w wrapper) source(complete func(typ string) bool) string {
	params, result, _ := strings.Cut(strings.TrimPrefix(w.typ, "func("), ") ")
	var declared, names, values []string
	var copies strings.Builder
	for i, typ := range strings.FieldsFunc(params, func(r rune) bool { return r == ',' }) {
		typ, name := strings.TrimSpace(typ), fmt.Sprintf("a%d", i)
		declared = append(declared, cType(typ)+name)
		names = append(names, name)
		values = append(values, "(int64_t)"+name)
		if pointee, ok := strings.CutPrefix(typ, "*"); ok && complete(pointee) {
			fmt.Fprintf(&copies, "\tCOPY(%s);\n", name)
		}
	}
	if hasHook(w.files, "copy_", w.name) {
		fmt.Fprintf(&copies, "\tcopy_%s(&call, %s);\n", w.name, strings.Join(names, ", "))
	}
	do, back := "call.result = 0", "\treturn ("+strings.TrimSpace(cType(result))+")call.result;\n"
	if hasHook(w.files, "do_", w.name) {
		do = fmt.Sprintf("do_%s(%s)", w.name, strings.Join(names, ", "))
		if result != "void" {
			do = "call.result = (int64_t)" + do
		}
	}
	if result == "void" {
		back = ""
	}
	if len(declared) == 0 {
		declared, values = []string{"void"}, []string{"0"}
	}
	return fmt.Sprintf("%s%s%s(%s)\n{\n\tstruct call call = enter(%q, %d, (int64_t[]){ %s });\n\n%s"+
		"\tif (!planned(&call))\n\t\t%s;\n\tleave(&call);\n%s}\n\n",
		w.linkage, cType(result), w.ident, strings.Join(declared, ", "), w.name, len(names), strings.Join(values, ", "),
		&copies, do, back)
}

// cType returns a type of the snapshot in C's form, to which a name can be
// appended.
func cType(typ string) string {
	base := strings.TrimLeft(typ, "*")
	return base + " " + typ[:len(typ)-len(base)]
}

// providerFiles are the sources of the libibverbs with a device.
var providerFiles = []string{"provider.c", "calls.h", "copies.h", "events.h", "objects.h", "memory.h", "queues.h"}

// cmFiles are the sources of the librdmacm that uses that libibverbs.
var cmFiles = []string{"cm.c", "calls.h"}

// hasHook reports whether one of the files defines the function prefix+name.
func hasHook(files []string, prefix, name string) bool {
	hook := regexp.MustCompile(`\b` + prefix + name + `[(,)]`)
	return slices.ContainsFunc(files, func(file string) bool { return hook.Match(read(file)) })
}
