// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"math"

	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// enum records an enum of a bound header.
func (s *scanner) enum(header string, e *cc.EnumSpecifier) {
	s.constants.enum(e)
	if _, bound := s.header(e); !bound {
		return
	}
	out := &api.Enum{Name: enumTag(e), Header: header}
	for l := e.EnumeratorList; l != nil; l = l.EnumeratorList {
		value := s.constants.enumerators[l.Enumerator]
		v := api.Enumerator{Name: l.Enumerator.Token.SrcStr(), Value: value.value}
		if !value.known {
			s.reject(l.Enumerator, "the value of %s cannot be represented", v.Name)
		}
		s.declare(l.Enumerator, v.Name)
		out.Signed = out.Signed || v.Value < 0
		out.Values = append(out.Values, v)
	}
	if size := max(e.Type().Size(), enumSize(out)); size != 4 {
		s.reject(e, "an enum of %d bytes cannot be represented", size)
	}
	if out.Name != "" {
		if old := s.enums[out.Name]; old != nil {
			s.reject(e, "enum %s is defined at %v already", out.Name, old.Position())
			return
		}
		s.enums[out.Name] = e
	}
	if !s.draft && s.known.Enums[out.Key()] == nil {
		name := ""
		if out.Name == "" {
			name = " name=GoName"
		}
		s.reject(e, "no kind for enum %s; add to the conventions a line such as: enum %s values%s", out.Key(), out.Key(), name)
	}
	s.api.Enums = append(s.api.Enums, out)
}

// enumSize returns the bytes that gcc and clang need for the values.
func enumSize(e *api.Enum) int64 {
	largest := int64(math.MaxUint32)
	if e.Signed {
		largest = math.MaxInt32
	}
	for _, v := range e.Values {
		if v.Value < math.MinInt32 || v.Value > largest {
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
