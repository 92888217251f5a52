// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// Kind groups facts for the report.
type Kind int

// The kinds, in the report's order.
const (
	Layout    Kind = iota // size and alignment of a struct, union or enum
	Member                // place and type of a member
	Value                 // value of an enumerator or a macro
	Prototype             // type of a function
	kinds
)

func (k Kind) String() string {
	return [...]string{"layouts", "members", "values", "prototypes"}[k]
}

// Fact is a statement of the snapshot that a compiler can confirm.
type Fact struct {
	Kind   Kind
	Header string
	Macro  bool   // whether only declarations with rdma-core's macros can confirm it
	Name   string // what the fact is about, such as "struct ibv_qp_cap size"
	Want   string // value in the snapshot, such as 20

	claim   string    // C expression that is true if the fact holds
	show    string    // C expression whose type shows the actual value
	pointer bool      // whether that type is a pointer to the actual value
	bits    *bitField // place of a bit-field, which no expression has; nil for other facts
}

// Facts returns all facts of a snapshot, with the layouts of an architecture.
func Facts(a *api.API, arch layout.Arch) ([]Fact, error) {
	l := list{types: newTypes(a), arch: arch}
	a, err := place(a, arch)
	if err != nil {
		return nil, err
	}
	if err := eachMember(a, arch, l.member); err != nil {
		return nil, err
	}
	for _, s := range a.Structs {
		if len(s.Members) == 0 {
			continue
		}
		l.header = s.Header
		l.number(Layout, s.Name+" size", s.Size, "sizeof("+s.C()+")")
		l.number(Layout, s.Name+" alignment", s.Align, "_Alignof("+s.C()+")")
	}
	for _, e := range a.Enums {
		l.enum(e)
	}
	for _, f := range a.Functions {
		l.header = f.Header
		l.typed(Prototype, f.Name+" prototype", f.Type, f.Name)
	}
	for _, v := range a.Variables {
		l.header = v.Header
		l.typed(Prototype, v.Name+" variable", v.Type, "&"+v.Name)
	}
	l.macros = true
	for _, t := range a.Typedefs {
		l.typedef(t)
	}
	for _, m := range a.Macros {
		l.macro(m)
	}
	for _, alias := range a.Aliases {
		l.alias(alias)
	}
	return l.facts, nil
}

// list collects facts.
type list struct {
	types  types
	header string // header of the next fact
	macros bool   // value of Macro of the next fact
	arch   layout.Arch
	facts  []Fact
}

func (l *list) add(kind Kind, name, want, claim, show string, pointer bool) {
	l.facts = append(l.facts, Fact{
		Kind: kind, Header: l.header, Macro: l.macros, Name: name, Want: want,
		claim: claim, show: show, pointer: pointer,
	})
}

// number adds the fact that the C expression expr has the value want.
func (l *list) number(kind Kind, name string, want int64, expr string) {
	l.add(kind, name, fmt.Sprint(want), fmt.Sprintf("%s == (long long)(%s)", literal(want), expr), showNumber(expr), false)
}

// typed adds the fact that the C expression expr is a pointer to t or, if t is
// a function type, a function of type t.
func (l *list) typed(kind Kind, name string, t *api.Type, expr string) {
	l.add(kind, name, t.C(""), l.types.claim(t, "__typeof__("+expr+")"), expr, true)
}

func (l *list) member(s *api.Struct, m member) {
	l.header = s.Header
	if m.Bits != nil {
		l.facts = append(l.facts, Fact{
			Kind: Member, Header: l.header, Name: m.path + " bits", Want: fmt.Sprintf("%d from %d", m.Bits.Width, m.bit()),
			bits: &bitField{s.C(), m.designator, m.bit(), m.Bits.Width},
		})
		return
	}
	at := fmt.Sprintf("((%s *)0)->%s", s.C(), m.designator)
	l.number(Member, m.path+" offset", m.offset, fmt.Sprintf("__builtin_offsetof(%s, %s)", s.C(), m.designator))
	if !m.IsFlexible() { // a flexible array has no size
		l.number(Member, m.path+" size", m.size.Size, "sizeof("+at+")")
		if !m.ruled { // with rules, compilers report different alignments
			l.number(Member, m.path+" alignment", m.size.Align, "_Alignof("+at+")")
		}
	}
	if m.Type != nil { // a nested struct or union has no type name
		l.typed(Member, m.path+" type", m.Type, "&"+at)
	}
}

func (l *list) enum(e *api.Enum) {
	l.header = e.Header
	if e.Name != "" {
		name := api.Spelled("enum "+e.Name, e.Bare)
		l.number(Layout, "enum "+e.Name+" size", max(e.Size, 4), "sizeof("+name+")")
		sign := "int"
		if e.Size == 8 {
			sign = "long"
		}
		if !e.Signed {
			sign = "unsigned " + sign
		}
		promoted := "+(" + name + ")0"
		l.add(Layout, "enum "+e.Name+" type", sign, compatible("__typeof__("+promoted+")", sign), promoted, false)
	}
	for _, v := range e.Values {
		l.number(Value, v.Name+" value", v.Value, v.Name)
	}
}

func (l *list) macro(m *api.Macro) {
	l.header = m.Header
	switch {
	case m.Type == "string":
		text, err := strconv.Unquote(m.Text)
		if err != nil {
			text = m.Text // a text that no compiler confirms
		}
		claim := fmt.Sprintf("sizeof(%s) == %d && __builtin_memcmp(%s, %s, %d) == 0", m.Name, len(text)+1, m.Name, cString(text), len(text))
		l.add(Value, m.Name+" value", m.Text, claim, m.Name, false)
		return
	case m.Text != "":
		l.add(Value, m.Name+" value", m.Text, fmt.Sprintf("(%s) == %s", m.Name, m.Text), m.Name, false)
		l.add(Value, m.Name+" type", m.Type, compatible("__typeof__("+m.Name+")", m.Type), m.Name, false)
		return
	}
	l.number(Value, m.Name+" value", m.Value, m.Name)
	claim := compatible("__typeof__("+m.Name+")", m.Type)
	if long, ok := strings.CutSuffix(m.Type, "long long"); ok && l.arch.Name == "ppc64le" { // there, the kernel's __u64 is a long
		claim = "(" + claim + " || " + compatible("__typeof__("+m.Name+")", long+"long") + ")"
	}
	if m.Type == "pointer" {
		const pointerClass = "5"
		claim = "__builtin_classify_type(" + m.Name + ") == " + pointerClass
	}
	l.add(Value, m.Name+" type", m.Type, claim, m.Name, false)
}

// cString returns a text as a C string constant.
func cString(text string) string {
	var b strings.Builder
	for i := range len(text) {
		fmt.Fprintf(&b, "\\%03o", text[i])
	}
	return `"` + b.String() + `"`
}

// typedef adds the fact that a typedef stands for its type.
func (l *list) typedef(t *api.Typedef) {
	l.header = t.Header
	actual := t.Name
	if t.Type.Kind != api.Func {
		actual += " *"
	}
	l.add(Value, t.Name+" typedef", t.Type.C(""), l.types.claim(t.Type, actual), "("+t.Name+" *)0", true)
}

func (l *list) alias(a *api.Alias) {
	l.header = a.Header
	kind := l.types.kinds[a.Target]
	pointer := kind + " " + a.Name + " *"
	l.add(Value, a.Name+" target", kind+" "+a.Target, compatible(pointer, kind+" "+a.Target+" *"), "("+pointer+")0", true)
}

// place returns a copy of the snapshot a with the layouts of arch. For amd64,
// it keeps the layouts of the snapshot, so that these are compared.
func place(a *api.API, arch layout.Arch) (*api.API, error) {
	a = a.CopyLayouts()
	if arch == layout.AMD64 {
		return a, nil
	}
	engine := layout.New(a, arch)
	for _, s := range a.Structs {
		if err := engine.Apply(s); err != nil {
			return nil, err
		}
	}
	return a, nil
}
