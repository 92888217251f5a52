// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// member is a named member at any depth of a struct or union.
type member struct {
	*api.Member
	path       string // path with the struct's name, such as "struct ibv_wc.imm_data"
	designator string // path in C code, from the outermost struct
	offset     int64  // in bytes, from the start of the outermost struct
	size       layout.Size
	ruled      bool // whether attributes or #pragma pack affect its place
}

// eachMember calls visit for the named members of every struct and union of the
// snapshot a, which has the layouts of arch.
func eachMember(a *api.API, arch layout.Arch, visit func(*api.Struct, member)) error {
	// The engine sets offsets, so it gets a copy.
	w := walker{engine: layout.New(a.CopyLayouts(), arch), visit: visit}
	for _, s := range a.Structs {
		if err := w.walk(s, s.Name, "", 0, s.Members, s.Rules != (api.Rules{})); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

type walker struct {
	engine *layout.Engine
	visit  func(*api.Struct, member)
}

func (w *walker) walk(s *api.Struct, path, prefix string, base int64, members []*api.Member, ruled bool) error {
	for _, m := range members {
		inPath, inPrefix := path, prefix
		if m.Name != "" { // members of an anonymous one have the path of the struct around it
			size, err := w.engine.OfMember(api.CopyMembers([]*api.Member{m})[0])
			if err != nil {
				return err
			}
			inPath, inPrefix = path+"."+m.Name, prefix+m.Name+"."
			w.visit(s, member{m, inPath, prefix + m.Name, base + m.Offset, size, ruled || m.Rules != (api.Rules{})})
		}
		if m.Type == nil {
			if err := w.walk(s, inPath, inPrefix, base+m.Offset, m.Members, ruled || m.Rules != (api.Rules{})); err != nil {
				return err
			}
		}
	}
	return nil
}

// bit returns the number of bits before a bit-field in the outermost struct.
func (m member) bit() int64 { return 8*(m.offset-m.Offset) + m.Bits.At }
