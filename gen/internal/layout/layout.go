// SPDX-License-Identifier: Apache-2.0

// Package layout computes sizes, alignments and offsets by the rules of the
// System V ABIs of 64-bit Linux. Without attributes, each number is aligned to
// its size.
package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// Size is the size and alignment of a type, in bytes.
type Size struct{ Size, Align int64 }

// Arch describes the layout rules that differ between 64-bit architectures.
type Arch struct {
	Name  string // name in GOARCH
	Mutex int64  // size of glibc's pthread_mutex_t
	// Unnamed reports whether a bit-field without a name affects the
	// alignment of its struct.
	Unnamed bool
}

// SameRules reports whether all structs have the same layout on a and b.
func (a Arch) SameRules(b Arch) bool {
	a.Name = b.Name
	return a == b
}

// AMD64 is the architecture for which a snapshot has layouts.
var AMD64 = Arch{Name: "amd64", Mutex: 40}

// Arches lists the architectures on which the bindings can call C. Of the
// layouts of rdma-core's structs, only those with a mutex differ between them.
var Arches = []Arch{
	AMD64,
	{Name: "arm64", Mutex: 48, Unnamed: true},
	{Name: "loong64", Mutex: 40},
	{Name: "ppc64le", Mutex: 40},
	{Name: "riscv64", Mutex: 40},
	{Name: "s390x", Mutex: 40},
}

var scalars = map[string]int64{
	"char": 1, "signed char": 1, "unsigned char": 1, "_Bool": 1,
	"short": 2, "unsigned short": 2, "int": 4, "unsigned int": 4, "long": 8, "unsigned long": 8,
	"long long": 8, "unsigned long long": 8, "float": 4, "double": 8,
	"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
	"__s8": 1, "__u8": 1, "__s16": 2, "__u16": 2, "__s32": 4, "__u32": 4, "__s64": 8, "__u64": 8,
	"__be16": 2, "__be32": 4, "__be64": 8,
	"size_t": 8, "ssize_t": 8, "off_t": 8, "uintptr_t": 8, "intptr_t": 8, "socklen_t": 4, "nfds_t": 8, "sa_family_t": 2,
}

// IsScalar reports whether name is an arithmetic type, as a header spells it.
func IsScalar(name string) bool { return scalars[name] != 0 }

// ScalarSize returns the size of an arithmetic type in bytes, or 0 for another
// type.
func ScalarSize(name string) int64 { return scalars[name] }

// SameScalar reports whether two arithmetic types have the same values.
func SameScalar(a, b string) bool {
	return IsScalar(a) && scalars[a] == scalars[b] && isUnsigned(a) == isUnsigned(b) && IsFloat(a) == IsFloat(b)
}

func isUnsigned(name string) bool {
	name = strings.TrimLeft(name, "_")
	return strings.HasPrefix(name, "u") || strings.HasPrefix(name, "be") || name == "Bool" ||
		slices.Contains([]string{"size_t", "socklen_t", "nfds_t", "sa_family_t"}, name)
}

// IsFloat reports whether name is a floating-point type.
func IsFloat(name string) bool { return name == "float" || name == "double" }

// Engine computes layouts for the declarations of one snapshot.
type Engine struct {
	arch    Arch
	structs map[string]*api.Struct
	enums   map[string]int64 // sizes of enums
	done    map[string]Size
	open    map[string]bool // structs whose layout is being computed
}

// New returns an engine for the snapshot a.
func New(a *api.API, arch Arch) *Engine {
	e := &Engine{arch: arch, structs: map[string]*api.Struct{}, enums: map[string]int64{}, done: map[string]Size{}, open: map[string]bool{}}
	for _, s := range a.Structs {
		e.structs[s.Name] = s
	}
	for _, enum := range a.Enums {
		e.enums["enum "+enum.Name] = enum.Size
	}
	return e
}

// Apply fills in the size and the offsets of s, which must be complete or
// opaque.
func (e *Engine) Apply(s *api.Struct) error {
	if len(s.Members) == 0 {
		return nil
	}
	size, err := e.structSize(s.Name)
	s.Size, s.Align = size.Size, size.Align
	return err
}

// OfMember returns the size of a member. In a nested struct or union, it sets
// the offsets of the members.
func (e *Engine) OfMember(m *api.Member) (Size, error) {
	if m.Type != nil {
		return e.Of(m.Type)
	}
	return e.place(m.Members, m.Aggregate == "union", m.Rules)
}

// Of returns the size of t.
func (e *Engine) Of(t *api.Type) (Size, error) {
	switch t.Kind {
	case api.Pointer:
		return Size{8, 8}, nil
	case api.Array:
		elem, err := e.Of(t.Elem)
		return Size{elem.Size * t.Len, elem.Align}, err
	case api.Func:
		return Size{}, fmt.Errorf("a function has no size")
	}
	if n, ok := scalars[t.Name]; ok {
		return Size{n, n}, nil
	}
	if _, ok := t.Tag("enum"); ok {
		n := max(e.enums[t.Name], 4)
		return Size{n, n}, nil
	}
	switch t.Name {
	case "pthread_mutex_t":
		return Size{e.arch.Mutex, 8}, nil
	case "pthread_cond_t":
		return Size{48, 8}, nil
	}
	return e.structSize(t.Name)
}

func (e *Engine) structSize(name string) (Size, error) {
	if size, ok := e.done[name]; ok {
		return size, nil
	}
	s := e.structs[name]
	if s == nil || len(s.Members) == 0 {
		return Size{}, fmt.Errorf("the size of %s is not known", name)
	}
	if e.open[name] {
		return Size{}, fmt.Errorf("%s contains itself", name)
	}
	e.open[name] = true
	defer delete(e.open, name)
	_, isUnion := (&api.Type{Name: name}).Tag("union")
	size, err := e.place(s.Members, isUnion, s.Rules)
	if err != nil {
		return Size{}, fmt.Errorf("%s: %w", name, err)
	}
	e.done[name] = size
	return size, nil
}

func align(n, to int64) int64 { return (n + to - 1) / to * to }
