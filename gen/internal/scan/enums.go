// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// enum records an enum of a bound header.
func (s *scanner) enum(header string, e *cc.EnumSpecifier) {
	if _, bound := s.header(e); !bound {
		return
	}
	t := e.Type()
	if t.Size() != 4 {
		s.reject(e, "an enum of %d bytes cannot be represented", t.Size())
	}
	out := &api.Enum{Name: enumTag(e), Header: header}
	for l := e.EnumeratorList; l != nil; l = l.EnumeratorList {
		v := api.Enumerator{Name: l.Enumerator.Token.SrcStr(), Value: number(l.Enumerator.Value())}
		s.declare(l.Enumerator, v.Name)
		out.Signed = out.Signed || v.Value < 0
		out.Values = append(out.Values, v)
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

func enumTag(e *cc.EnumSpecifier) string {
	if t := e.Token2.SrcStr(); t != "{" {
		return t
	}
	return ""
}

func number(v cc.Value) int64 {
	switch v := v.(type) {
	case cc.Int64Value:
		return int64(v)
	case cc.UInt64Value:
		return int64(v)
	}
	return 0
}
