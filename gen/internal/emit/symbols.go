// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

func (p *pkg) setter() string { return "verbena_" + p.inC() + "_set" }

// Symbols returns, for each package, the functions that its stubs look up, in
// the order of their table.
func Symbols(in Input) (map[string][]string, error) {
	all, err := packages(in)
	if err != nil {
		return nil, err
	}
	symbols := map[string][]string{}
	for _, p := range all {
		symbols[p.name] = p.symbols()
	}
	return symbols, nil
}

// symbols returns the names of the functions that the package looks up.
func (p *pkg) symbols() []string {
	var names []string
	for _, f := range p.tableFunctions() {
		names = append(names, f.Name)
	}
	return names
}

// tableFunctions returns the exported functions that the package's stubs and
// its own C functions call. In a package other than libibverbs, these may be
// functions of libibverbs, too.
func (p *pkg) tableFunctions() []*api.Function {
	var out []*api.Function
	for _, f := range p.functions {
		if f.Inline == nil && (f.why == "" || strings.Contains(p.own, "LIB("+f.Name()+")")) {
			out = append(out, f.Function)
		}
	}
	if p.verbs != nil {
		for _, f := range p.API.Functions {
			if p.Home(f.Header) == p.verbs.name && f.Inline == nil && strings.Contains(p.own, "LIB("+f.Name+")") {
				out = append(out, f)
			}
		}
	}
	return out
}
