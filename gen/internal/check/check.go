// SPDX-License-Identifier: Apache-2.0

// Package check compares a snapshot with the headers. It writes a C file with a
// static assertion for each fact of the snapshot, and lets a C compiler check
// the assertions. A cross compiler can do this, too, because no compiled code
// is run.
package check

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Declarations are C declarations that the compiler compares with the facts of
// the snapshot.
type Declarations struct {
	Name    string
	Source  string                   // path of the file with the declarations
	Include string                   // folder in which the compiler looks first for headers; may be empty
	After   string                   // folder in which the compiler looks last, with the kernel's headers; may be empty
	Macros  bool                     // whether the declarations include rdma-core's macros and typedefs
	Has     func(header string) bool // reports whether they include the declarations of a header; nil means that they include those of all headers
}

// Result says how many facts of each kind were compared, and which of them the
// compiler contradicts.
type Result struct {
	Compared  [kinds]int
	Different []string
}

// Total returns how many facts were compared.
func (r *Result) Total() int {
	n := 0
	for _, c := range r.Compared {
		n += c
	}
	return n
}

// String returns the number of facts of each kind, and the number of
// differences.
func (r *Result) String() string {
	var b strings.Builder
	for kind, n := range r.Compared {
		fmt.Fprintf(&b, "%5d %s ", n, Kind(kind))
	}
	fmt.Fprintf(&b, "%5d differ", len(r.Different))
	return b.String()
}

// Compare has the compiler check the facts about the declarations that d
// includes.
func Compare(c *Compiler, facts []Fact, d Declarations) (*Result, error) {
	r := new(Result)
	var told []Fact
	for _, f := range facts {
		if (!f.Macro || d.Macros) && (d.Has == nil || d.Has(f.Header)) {
			told = append(told, f)
			r.Compared[f.Kind]++
		}
	}
	var err error
	if r.Different, err = differences(c, told, d); err != nil {
		return nil, fmt.Errorf("%s cannot compile %s: %w", c, d.Name, err)
	}
	return r, nil
}

// differences returns a line for each fact that the compiler contradicts. A
// failed assertion does not say what holds instead, so differences asks the
// compiler for that in a second file.
func differences(c *Compiler, facts []Fact, d Declarations) ([]string, error) {
	source, err := filepath.Abs(d.Source)
	if err != nil {
		return nil, err
	}
	var fields []Fact
	facts = slices.DeleteFunc(slices.Clone(facts), func(f Fact) bool {
		if f.bits != nil {
			fields = append(fields, f)
		}
		return f.bits != nil
	})
	out, err := bitDifferences(c, source, fields, d)
	if err != nil {
		return nil, err
	}
	refused, err := c.complaints(assertions(source, facts), d.Include, d.After)
	if err != nil || len(refused) == 0 {
		return out, err
	}
	var wrong []Fact
	var says []string
	for i, f := range facts {
		if message, ok := refused[i]; ok {
			wrong, says = append(wrong, f), append(says, message)
		}
	}
	answers, err := c.complaints(questions(source, wrong), d.Include, d.After)
	if err != nil {
		return nil, err
	}
	for i, f := range wrong {
		said, ok := answer(answers[i], f.pointer)
		if !ok { // the compiler cannot show the value: the first message says why
			said = says[i]
		}
		out = append(out, fmt.Sprintf("%s: snapshot %s, compiler %s", f.Name, f.Want, said))
	}
	return out, nil
}
