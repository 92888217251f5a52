// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// Check returns a finding for each declaration of a that cannot be bound. If
// the headers of a include those of other libraries, base is the input of
// these; otherwise it is nil.
func Check(a *api.API, known *conventions.Table, base *Input) []api.Finding {
	return Findings(Input{API: a, Known: known, Since: new(since.Table), Base: base})
}

// Findings returns a finding for each declaration of the newest snapshot that
// cannot be bound.
func Findings(in Input) []api.Finding {
	var all []api.Finding
	for _, p := range prepare(in) {
		p.check()
		all = append(all, p.findings...)
	}
	return all
}

// Refused returns the reasons why Emit would fail, one a line: facts that do
// not fit the newest snapshot, and declarations that cannot be bound.
func Refused(in Input) []string {
	var lines []string
	if err := stale(in); err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	for _, f := range Check(in.API, in.Known, in.Base) {
		lines = append(lines, fmt.Sprintf("%s: %s: %s", in.API.Place(f.Of, f.Header), f.Of, f.Text))
	}
	return lines
}

// check records everything that would make rendering the package fail.
func (p *pkg) check() {
	p.claimNames()
	for _, f := range p.bound() {
		p.at = of("func", f.Name(), f.Header)
		p.checkFunction(f)
	}
	for _, e := range p.enums {
		p.at = of("enum", e.Key(), e.Header)
		p.checkEnum(e)
	}
	for _, t := range p.typedefs {
		p.at = of("typedef", t.Name, t.Header)
		if !t.Type.IsVoid() && t.Type.Kind != api.Func {
			p.goType(t.Type)
		}
	}
	for _, s := range p.structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		p.at = of(kind, tag, s.Header)
		p.checkMembers(kind, tag, s.Members)
		p.checkArches(s)
	}
	p.at = api.Finding{}
}

// of returns a finding about a declaration, still without a text.
func of(kind, name, header string) api.Finding {
	return api.Finding{Of: api.Name{Kind: kind, Name: name}, Header: header}
}

// fail adds a finding about the current declaration, with which the package
// cannot be written. It does not add the same finding twice.
func (p *pkg) fail(format string, args ...any) {
	finding := p.at
	finding.Text = fmt.Sprintf(format, args...)
	if !slices.Contains(p.findings, finding) {
		p.findings = append(p.findings, finding)
	}
}

// results maps a class to the C result of its functions. Functions of the other
// classes return a number.
var results = map[conventions.Class]string{
	conventions.Void:    "void",
	conventions.Pointer: "a pointer", conventions.List: "a pointer", conventions.Interior: "a pointer",
	conventions.String: "char *",
}

func (p *pkg) checkFunction(f *function) {
	result := f.Type.Elem
	got := "a number"
	if p.isRecord(result) && f.Class != conventions.Value {
		p.fail("its class is %s, but it returns %s by value, which is for class value only", f.Class, result.C(""))
		return
	}
	switch {
	case result.IsVoid():
		got = "void"
	case isString(result) && f.Class == conventions.String:
		got = "char *"
	case result.Kind == api.Pointer:
		got = "a pointer"
	}
	want := results[f.Class]
	if want == "" {
		want = "a number"
	}
	if got != want {
		p.fail("a function of class %s must return %s, but it returns %s", f.Class, want, result.C(""))
		return
	}
	before := len(p.findings)
	if !result.IsVoid() {
		p.goType(result)
	}
	if p.isRecord(result) {
		p.wire(result)
	}
	for _, param := range f.params {
		p.goType(param.t)
		if p.isRecord(param.t) {
			p.wire(param.t)
		}
		if param.out && !isOut(param.t) {
			p.fail("the conventions say that C stores something through %s, which is no pointer to a number or to a pointer", param.cName)
		}
		if slices.Contains(f.Bytes, param.cName) && !IsText(param.t) {
			p.fail("its line at %s says bytes=%s, which is %s, not const char *", p.Known.At("func", f.Name()), param.cName, param.t.C(""))
		}
	}
	if limit := limits[f.Class]; limit != "" && f.limit() == "" {
		p.fail("a function of class %s must have a parameter %s", f.Class, limit)
	}
	if len(p.findings) == before {
		p.stub(f)
	}
}

// isOut reports whether a stub can return what C stores through a parameter of
// type t.
func isOut(t *api.Type) bool {
	if t.Kind != api.Pointer || t.Elem.Const {
		return false
	}
	_, isEnum := t.Elem.Tag("enum")
	return t.Elem.Kind == api.Pointer || t.Elem.Kind == api.Named && (isEnum || scalars[t.Elem.Name].wire != "")
}

// IsText reports whether a parameter is a const char *.
func IsText(t *api.Type) bool { return isString(t) && t.Elem.Const }

func isString(t *api.Type) bool {
	return t.Kind == api.Pointer && t.Elem.Kind == api.Named && t.Elem.Name == "char"
}

func (p *pkg) checkEnum(e *api.Enum) {
	switch {
	case p.Known.Enums[e.Key()] == nil && p.isBound(e.Header):
		p.fail("the conventions have no line for the enum")
	case e.Name != "" && p.enumName(e) == "-":
		p.fail("name=- is for enums without a tag")
	}
}

func (p *pkg) checkMembers(kind, path string, members []*api.Member) {
	for _, m := range members {
		inner := path
		if m.Name != "" {
			inner += "." + m.Name
		}
		if m.Type != nil {
			around := p.at
			p.at = of("member", inner, around.Header)
			p.goType(m.Type)
			p.at = around
		}
		p.checkMembers(m.Aggregate, inner, m.Members)
	}
}

// exported matches the names that Go programs can use.
var exported = regexp.MustCompile(`^[A-Z][0-9A-Za-z_]*$`)

// claims maps the names of a package, or of one type, to the C names that they
// come from.
type claims map[string]string

// claim adds the Go name that a C name gets. It adds a finding instead if
// another C name has the same Go name, or if Go programs cannot use the name.
func (p *pkg) claim(in claims, name, c string) {
	other, taken := in[name]
	switch {
	case !exported.MatchString(name):
		p.fail("%s would be called %q in Go, which programs cannot use", c, name)
	case taken:
		p.fail("%s and %s would both be called %s", other, c, name)
	default:
		in[name] = c
	}
}

// ours lists the names in a package that do not come from a C declaration.
var ours = []string{
	"Be16", "NewBe16", "Be32", "NewBe32", "Be64", "NewBe64", "PthreadMutex", "PthreadCond",
	"TestLayout", "TestUnions", "TestEnums", "FuzzEnums", "TestStubs", "TestHeader",
}

// claimNames claims the names of everything that the package declares.
func (p *pkg) claimNames() {
	all := claims{}
	for _, name := range ours {
		all[name] = "the bindings' own " + name
	}
	for _, tag := range p.opaque {
		p.at = p.spoken[tag]
		p.claim(all, p.typeName(tag), "struct "+tag)
	}
	for _, f := range p.bound() {
		p.at = of("func", f.Name(), f.Header)
		p.claim(all, f.goName, f.stub)
		if slices.Contains(cReserved, f.Name()) {
			p.fail("the bindings' own C code uses the name %s for something else", f.Name())
		}
	}
	for _, s := range p.structs {
		kind, tag, _ := strings.Cut(s.Name, " ")
		p.at = of(kind, tag, s.Header)
		p.claim(all, p.typeName(tag), s.Name)
		p.claimMembers(all, claims{}, p.typeName(tag), tag, s.Members)
	}
	for _, e := range p.enums {
		p.at = of("enum", e.Key(), e.Header)
		if name := p.enumName(e); name != "-" {
			p.claim(all, name, "enum "+e.Key())
			p.claim(all, "Parse"+name, "the parser of enum "+e.Key())
		}
		for _, v := range e.Values {
			p.at = of("enumerator", v.Name, e.Header)
			p.claim(all, enumeratorName(v.Name), v.Name)
		}
	}
	for _, a := range p.aliases {
		p.at = of("alias", a.Name, a.Header)
		p.claim(all, p.typeName(a.Name), "macro "+a.Name)
	}
	for _, t := range p.typedefs {
		p.at = of("typedef", t.Name, t.Header)
		p.claim(all, p.typeName(t.Name), "typedef "+t.Name)
	}
	for _, m := range p.macros {
		p.at = of("macro", m.Name, m.Header)
		p.claim(all, constName(m.Name), "macro "+m.Name)
	}
	p.at = api.Finding{}
}

// claimMembers claims the names of a type's fields and methods, and those of
// the types of nested structs and unions.
func (p *pkg) claimMembers(all, fields claims, name, path string, members []*api.Member) {
	for _, m := range members {
		if m.Name == "" && m.Bits != nil {
			continue
		}
		if m.Name == "" { // its members belong to the enclosing type
			p.claimMembers(all, fields, name, path, m.Members)
			continue
		}
		inner := path + "." + m.Name
		p.at = of("member", inner, p.at.Header)
		p.claim(fields, goName(m.Name), "member "+inner)
		if m.Bits != nil || m.Rules != (api.Rules{}) {
			p.claim(fields, "Set"+goName(m.Name), "the setter of member "+inner)
		}
		if m.Type == nil {
			p.claim(all, name+goName(m.Name), "the type of member "+inner)
			p.claimMembers(all, claims{}, name+goName(m.Name), inner, m.Members)
		}
	}
}

// goReserved lists the names that Go stubs use for something other than a
// parameter.
var goReserved = append(types.Universe.Names(), "cerr", "dl", "enum", "libibverbs", "library", "unsafe", "err", "r",
	"librdmacm", "syscall", "result", "math", "strings", "verbs", "cm", "absent", "counted")

// cReserved lists the names that C stubs use for something other than a
// parameter, and the keywords of newer versions of C.
var cReserved = []string{
	"r", "verbena_result", "verbena_double", "lib", "vctx", "null", "lacking", "context_with", "LIB", "MISSING", "CONTEXT_WITH",
	"errno", "offsetof", "NULL", "EOPNOTSUPP", "INT32_MIN", "UINTPTR_MAX",
	"alignas", "alignof", "bool", "constexpr", "false", "nullptr", "static_assert", "thread_local", "true", "typeof", "typeof_unqual",
	"verbena_int", "verbena_ptr", "linux", "unix",
}

// takenInGo and takenInC are names that no parameter may have in a Go function
// and in a C stub.
var takenInGo, takenInC = taken()

func taken() (inGo, inC map[string]bool) {
	inGo, inC = map[string]bool{}, map[string]bool{}
	for _, name := range goReserved {
		inGo[name] = true
	}
	for _, name := range cReserved {
		inC[name] = true
	}
	for name, s := range scalars {
		inC[name], inC[s.wire] = true, true
	}
	return inGo, inC
}

// settle gives each parameter unique names in Go and in the C stub.
func (f *function) settle() {
	usedInGo, usedInC := map[string]bool{}, map[string]bool{"own_" + f.Name(): true}
	inGo := func(name string) bool { return takenInGo[name] || usedInGo[name] }
	inC := func(name string) bool { return takenInC[name] || usedInC[name] }
	for i := range f.params {
		param := &f.params[i]
		param.name = local(param.cName)
		for inGo(param.name) || param.text && inGo(param.copied()) {
			param.name += "_"
		}
		usedInGo[param.name] = true
		if param.text {
			usedInGo[param.copied()] = true
		}
		param.stub = param.cName
		for inC(param.stub) || inC("p_"+param.stub) {
			param.stub += "_"
		}
		usedInC[param.stub], usedInC["p_"+param.stub] = true, true
	}
}
