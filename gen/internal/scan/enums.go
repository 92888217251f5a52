// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"math"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// enum records an enum. One of a header that is not bound goes to otherEnums,
// in case a bound declaration uses it. If the enum has no tag, bare is the name
// of the typedef for it.
func (s *scanner) enum(header, bare string, e *cc.EnumSpecifier) {
	s.constants.enum(e)
	_, bound := s.header(e)
	out := &api.Enum{Name: enumTag(e), Header: header, Bare: bare != ""}
	if out.Bare {
		out.Name = bare
	}
	for l := e.EnumeratorList; l != nil; l = l.EnumeratorList {
		value := s.constants.enumerators[l.Enumerator]
		v := api.Enumerator{Name: l.Enumerator.Token.SrcStr(), Value: value.value}
		if l.Enumerator.ConstantExpression != nil && bound {
			s.constantOf(l.Enumerator.ConstantExpression)
		}
		if bound && !value.known {
			s.reject(l.Enumerator, "the value of %s cannot be represented", v.Name)
		}
		if bound {
			s.declare(l.Enumerator, v.Name)
		}
		out.Signed = out.Signed || v.Value < 0 && !integers[value.kind].unsigned
		out.Values = append(out.Values, v)
	}
	if size := enumSize(out); size != 4 {
		out.Size = size
	}
	if out.Name != "" {
		if old := s.enums[out.Name]; old != nil && !bound {
			return
		} else if old != nil {
			s.reject(e, "enum %s is defined at %v already", out.Name, old.Position())
			return
		}
		s.enums[out.Name] = e
	}
	if !bound {
		s.otherEnums = append(s.otherEnums, out)
		return
	}
	if !s.draft && s.known.Enums[out.Key()] == nil {
		name := ""
		if out.Name == "" {
			name = " name=GoName"
		}
		s.reject(e, "the conventions have no line for the enum %s; add a line such as: enum %s values%s", out.Key(), out.Key(), name)
	}
	s.api.Enums = append(s.api.Enums, out)
}

// enumSize returns the size that gcc and clang give an enum, in bytes.
func enumSize(e *api.Enum) int64 {
	largest := int64(math.MaxUint32)
	if e.Signed {
		largest = math.MaxInt32
	}
	for _, v := range e.Values {
		if v.Value < math.MinInt32 || v.Value > largest || v.Value < 0 && !e.Signed {
			return 8
		}
	}
	return 4
}

func enumTag(e *cc.EnumSpecifier) string {
	if t := e.Token2.SrcStr(); t != "{" {
		return t
	}
	return ""
}
