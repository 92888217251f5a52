// SPDX-License-Identifier: Apache-2.0

package program

import (
	"strings"

	"github.com/spf13/pflag"
)

// Option describes a flag of a program, for manual pages and shell completion.
type Option struct {
	Name, Letter string // long name and letter; the letter may be empty
	Value        string // name of the flag's value; empty if it has none
	Usage        string // description with the default, without a period
}

// Options returns the program's flags in the order in which -h prints them. The
// flag -h is the last.
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
