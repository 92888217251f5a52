// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kind is the kind of a Type.
type Kind int

const (
	Named   Kind = iota // a type with a name, such as int, uint32_t, struct ibv_qp or enum ibv_mtu
	Pointer             // a pointer to Elem
	Array               // an array of Len elements of type Elem
	Func                // a function with the parameters Params and the result Elem
)

// Type is a C type. Its text form reads from left to right, as Go's types do:
//
//	*const char    [16]uint8_t    *func(*struct ibv_cq, int) int    typedef struct fi_info_t
type Type struct {
	Kind Kind
	Name string // name of a Named type
	// Bare reports whether a struct, union or enum has no tag, and Name is
	// that of a typedef, which C code writes without the keyword.
	Bare     bool
	Const    bool
	Volatile bool
	Elem     *Type // type of the pointer's target, of the elements, or of the result
	Len      int64
	Params   []*Type
	Variadic bool
}

// IsVoid reports whether t is C's void.
func (t *Type) IsVoid() bool { return t.Kind == Named && t.Name == "void" }

// Tag returns the tag of a struct, union or enum, such as "ibv_qp" for struct
// ibv_qp. It returns false unless t is of the given kind: "struct", "union" or
// "enum".
func (t *Type) Tag(kind string) (string, bool) {
	if t.Kind != Named {
		return "", false
	}
	return strings.CutPrefix(t.Name, kind+" ")
}

// Walk visits t, which may be nil, and every type within it.
func (t *Type) Walk(visit func(*Type)) {
	if t == nil {
		return
	}
	visit(t)
	t.Elem.Walk(visit)
	for _, param := range t.Params {
		param.Walk(visit)
	}
}

// WalkMembers visits the types of members and every type within them.
func WalkMembers(members []*Member, visit func(*Type)) {
	for _, m := range members {
		m.Type.Walk(visit)
		WalkMembers(m.Members, visit)
	}
}

// qualifiers returns const and volatile, as far as t has them, each with a
// blank behind it.
func (t *Type) qualifiers() string {
	q := ""
	if t.Const {
		q = "const "
	}
	if t.Volatile {
		q += "volatile "
	}
	return q
}

func (t *Type) String() string {
	c := t.qualifiers()
	switch t.Kind {
	case Pointer:
		return c + "*" + t.Elem.String()
	case Array:
		return fmt.Sprintf("[%d]%s", t.Len, t.Elem)
	case Func:
		var params []string
		for _, p := range t.Params {
			params = append(params, p.String())
		}
		if t.Variadic {
			params = append(params, "...")
		}
		return "func(" + strings.Join(params, ", ") + ") " + t.Elem.String()
	}
	return c + bareWord(t.Bare) + t.Name
}

// Spelled returns a name such as "struct ibv_qp" in the form of C code. If bare
// is set, it is the name of a typedef, and the form has no keyword.
func Spelled(name string, bare bool) string {
	if _, tag, ok := strings.Cut(name, " "); ok && bare {
		return tag
	}
	return name
}

func bareWord(bare bool) string {
	if bare {
		return "typedef "
	}
	return ""
}

// C returns the C declaration of name with type t.
func (t *Type) C(name string) string {
	c := t.qualifiers()
	switch t.Kind {
	case Pointer:
		inner := "*" + strings.TrimSuffix(c, " ")
		if c != "" && name != "" {
			inner += " "
		}
		inner += name
		if t.Elem.Kind == Func || t.Elem.Kind == Array {
			inner = "(" + inner + ")"
		}
		return t.Elem.C(inner)
	case Array:
		return t.Elem.C(fmt.Sprintf("%s[%d]", name, t.Len))
	case Func:
		var params []string
		for _, p := range t.Params {
			params = append(params, p.C(""))
		}
		if t.Variadic {
			params = append(params, "...")
		}
		if len(params) == 0 {
			params = []string{"void"}
		}
		return t.Elem.C(name + "(" + strings.Join(params, ", ") + ")")
	}
	if name == "" {
		return c + Spelled(t.Name, t.Bare)
	}
	return c + Spelled(t.Name, t.Bare) + " " + name
}

// MarshalText implements encoding.TextMarshaler.
func (t *Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *Type) UnmarshalText(text []byte) error {
	p := typeParser{rest: string(text)}
	parsed, err := p.parse(0)
	if err == nil && p.rest != "" {
		err = fmt.Errorf("unexpected %q", p.rest)
	}
	if err != nil {
		return fmt.Errorf("type %q: %w", text, err)
	}
	*t = *parsed
	return nil
}

// ParseType reads the text form of a type.
func ParseType(s string) (*Type, error) {
	t := new(Type)
	return t, t.UnmarshalText([]byte(s))
}

type typeParser struct{ rest string }

const maxTypeDepth = 32

var (
	typeName   = regexp.MustCompile(`^[A-Za-z_]\w*( [A-Za-z_]\w*)*$`)
	qualifier  = regexp.MustCompile(`^(const|volatile)\b`)
	taggedName = regexp.MustCompile(`^(struct|union|enum) \w+$`)
)

func (p *typeParser) cut(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	p.rest = rest
	return ok
}

func (p *typeParser) parse(depth int) (*Type, error) {
	if depth > maxTypeDepth {
		return nil, fmt.Errorf("nested more than %d deep", maxTypeDepth)
	}
	isConst, isVolatile := p.cut("const "), p.cut("volatile ")
	isQualified := isConst || isVolatile
	switch {
	case p.cut("*"):
		elem, err := p.parse(depth + 1)
		return &Type{Kind: Pointer, Const: isConst, Volatile: isVolatile, Elem: elem}, err
	case p.cut("["):
		n, rest, ok := strings.Cut(p.rest, "]")
		length, err := strconv.ParseInt(n, 10, 64)
		if !ok || err != nil || length < 0 || isQualified || strconv.FormatInt(length, 10) != n {
			return nil, fmt.Errorf("bad array length %q", n)
		}
		p.rest = rest
		elem, err := p.parse(depth + 1)
		return &Type{Kind: Array, Len: length, Elem: elem}, err
	case p.cut("func("):
		if isQualified {
			return nil, errors.New("a function cannot be const or volatile")
		}
		return p.parseFunc(depth)
	}
	bare := p.cut("typedef ")
	end := strings.IndexAny(p.rest, ",)([]*")
	if end < 0 {
		end = len(p.rest)
	}
	name := p.rest[:end]
	if !typeName.MatchString(name) || qualifier.MatchString(name) ||
		bare && !taggedName.MatchString(name) {
		return nil, fmt.Errorf("bad type name %q", name)
	}
	p.rest = p.rest[end:]
	return &Type{Name: name, Const: isConst, Volatile: isVolatile, Bare: bare}, nil
}

func (p *typeParser) parseFunc(depth int) (*Type, error) {
	t := &Type{Kind: Func}
	for !p.cut(") ") {
		if len(t.Params) > 0 && !p.cut(", ") {
			return nil, fmt.Errorf("expected , or ) before %q", p.rest)
		}
		if t.Variadic = p.cut("..."); t.Variadic {
			if !p.cut(") ") {
				return nil, fmt.Errorf("expected ) before %q", p.rest)
			}
			break
		}
		param, err := p.parse(depth + 1)
		if err != nil {
			return nil, err
		}
		t.Params = append(t.Params, param)
	}
	elem, err := p.parse(depth + 1)
	t.Elem = elem
	return t, err
}
