// SPDX-License-Identifier: Apache-2.0

package program

import (
	"strings"

	"github.com/spf13/pflag"
)

// Option is a flag of a program, for manual pages and completion.
type Option struct {
	Name, Letter string // the letter may be empty
	Value        string // what its value is called; empty: it has none
	Usage        string // without a period, with the default
}

// Options returns the program's flags in the order of -h, which is the last.
func (p *Program) Options() []Option {
	flags := newFlags(p.Name)
	p.Flags(flags)
	var all []Option
	flags.VisitAll(func(f *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(f)
		o := Option{Name: f.Name, Letter: f.Shorthand, Value: value, Usage: usage}
		if f.Value.Type() == "bool" {
			o.Value = ""
		} else if f.DefValue != "" && f.DefValue != "[]" && !strings.Contains(usage, "(default") {
			o.Usage += " (default " + f.DefValue + ")"
		}
		all = append(all, o)
	})
	return append(all, Option{Name: "help", Letter: "h", Usage: "print the flags, and what the program does"})
}
