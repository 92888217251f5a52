// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// The groups of a stub's parameters, in order.
const (
	pointers = "p"
	memory   = "b" // memory without a type is passed as bytes; see wire
	numbers  = "n"
)

var groups = []string{pointers, memory, numbers}

// group returns the group of a parameter.
func (p *pkg) group(param param) string {
	switch {
	case p.isRecord(param.t):
		return pointers
	case param.t.Kind != api.Pointer:
		return numbers
	case param.t.Elem.IsVoid():
		return memory
	}
	return pointers
}

// kind is a set of stubs with the same C parameters and result. Go calls all of
// them through one C function, which gets the number of the stub: cgo takes
// long for each C function that Go calls, because it writes a C and a Go
// function for it.
type kind struct {
	library string
	groups  string // groups of the parameters, a letter for each
	pointer bool   // whether the result is a pointer
	keeps   bool   // whether C may use the memory behind a pointer after the call
	path    bool   // whether the stubs post or poll, and so never call Go
}

func (p *pkg) kind(f *function) kind {
	k := kind{library: p.inC(), pointer: f.Type.Elem.Kind == api.Pointer, keeps: len(f.Keeps) > 0, path: f.dataPath()}
	for _, g := range groups {
		for _, param := range f.params {
			if p.group(param) == g {
				k.groups += g
			}
		}
		if g == pointers && p.isRecord(f.Type.Elem) { // pointer to the memory for the result
			k.groups += g
		}
	}
	return k
}

// kinds returns the kinds of the package's stubs, in the order of their first
// stubs.
func (p *pkg) kinds() []kind {
	var all []kind
	for _, f := range p.bound() {
		if k := p.kind(f); !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
}

// Name returns the name of the kind's C function.
func (k kind) Name() string {
	name := "verbena_" + k.library
	if k.pointer {
		name += "_ptr"
	} else {
		name += "_int"
	}
	for _, g := range groups {
		if n := strings.Count(k.groups, g); n > 0 {
			name += fmt.Sprintf("_%d%s", n, g)
		}
	}
	if k.keeps {
		name += "_keeps"
	}
	if k.path {
		name += "_path"
	}
	return name
}

// Fast reports whether programs call a stub of the kind for every message.
func (k kind) Fast() bool { return k.path }

// Result returns the C type of the result.
func (k kind) Result() string {
	if k.pointer {
		return "verbena_ptr"
	}
	return "verbena_int"
}

// wires maps a group to the C type of its parameters.
var wires = map[string]string{pointers: "void *", memory: "uint8_t *", numbers: "uint64_t "}

// Params returns the C parameters of the kind's stubs, and Args their names.
func (k kind) Params() string {
	params, _ := k.all()
	if len(params) == 0 {
		return "void"
	}
	return strings.Join(params, ", ")
}

// Args returns the names of the parameters.
func (k kind) Args() string {
	_, args := k.all()
	return strings.Join(args, ", ")
}

// Declared returns the C parameters of the kind's C function: the number of the
// stub, and the stub's parameters.
func (k kind) Declared() string {
	params, _ := k.all()
	return strings.Join(append([]string{"int stub"}, params...), ", ")
}

func (k kind) all() (params, args []string) {
	for i, g := range k.groups {
		name := fmt.Sprintf("%c_%d", g, i-strings.IndexRune(k.groups, g))
		params, args = append(params, wires[string(g)]+name), append(args, name)
	}
	return params, args
}
