// SPDX-License-Identifier: Apache-2.0

package check

import (
	"slices"
	"strings"
)

// Succeeds is how a case ends that is not refused.
const Succeeds = "succeeds"

// Verdict says how a case ends on each kind of device.
type Verdict struct {
	Specification []string // any of these
	SoftRoCE      []string // any of these; none means as the specification
	UserSpace     []string // any of these; none means as the specification
}

// Kind is a kind of device.
type Kind int

// The kinds.
const (
	Card      Kind = iota
	SoftRoCE       // Linux's rdma_rxe
	UserSpace      // the device of package softroce
)

// column returns a column of the verdict as text.
func column(own, specification []string) string {
	if len(own) == 0 {
		own = specification
	}
	return strings.Join(own, separator)
}

const separator = " or "

// oneOf reports whether text is one of the ways in a column.
func oneOf(text, column string) bool { return slices.Contains(strings.Split(column, separator), text) }

// newCase returns the case with how it has ended on a device.
func newCase(name string, v Verdict, kind Kind, yours string) Case {
	c := Case{
		Case: name, Yours: yours,
		Specification: strings.Join(v.Specification, separator),
		SoftRoCE:      column(v.SoftRoCE, v.Specification), UserSpace: column(v.UserSpace, v.Specification),
	}
	c.Known = oneOf(yours, map[Kind]string{Card: c.Specification, SoftRoCE: c.SoftRoCE, UserSpace: c.UserSpace}[kind])
	return c
}
