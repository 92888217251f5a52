// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// Compare writes two reports side by side: what they are of, and where they
// differ. It reports whether they do.
func Compare(w io.Writer, a, b Report) (differ bool, err error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, left, right string) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", program.Printable(what), program.Printable(left), program.Printable(right))
	}
	row("", "A", "B")
	for _, line := range []struct{ what, left, right string }{
		{"verbena", a.Verbena, b.Verbena},
		{"kernel", a.System.Kernel, b.System.Kernel},
		{"libraries", a.System.Libraries, b.System.Libraries},
		{"device", a.Device.title(), b.Device.title()},
		{"port", a.Device.network(), b.Device.network()},
		{"checks", fmt.Sprint(len(a.Results)), fmt.Sprint(len(b.Results))},
		{"  ok", fmt.Sprint(a.Count(check.OK)), fmt.Sprint(b.Count(check.OK))},
		{"  differ", fmt.Sprint(a.Count(check.Differs)), fmt.Sprint(b.Count(check.Differs))},
		{"  failed", fmt.Sprint(a.Count(check.Failed)), fmt.Sprint(b.Count(check.Failed))},
		{"  not offered", fmt.Sprint(a.Count(check.NotOffered)), fmt.Sprint(b.Count(check.NotOffered))},
		{"  not run", fmt.Sprint(a.Count(check.NotRun)), fmt.Sprint(b.Count(check.NotRun))},
	} {
		row(line.what, line.left, line.right)
	}
	for _, name := range union(checkNames(a), checkNames(b)) {
		left, right := outcomes(a, name), outcomes(b, name)
		if left.outcome != right.outcome {
			differ = true
			row(name, left.text, right.text)
		}
		for _, c := range union(caseNames(left.result), caseNames(right.result)) {
			l, r := yours(left.result, c), yours(right.result, c)
			if l != r {
				differ = true
				row(fmt.Sprintf("%s: %s", name, c), l, r)
			}
		}
	}
	if err := t.Flush(); err != nil {
		return differ, err
	}
	if !differ {
		_, err = fmt.Fprintln(w, "\nAll checks have the same outcome.")
	}
	return differ, err
}

func checkNames(r Report) (names []string) {
	for _, result := range r.Results {
		names = append(names, result.Check)
	}
	return names
}

func caseNames(r check.Result) (names []string) {
	for _, c := range r.Cases {
		names = append(names, c.Case)
	}
	return names
}

// union returns the names that are in a list or in both, once each, in their
// order.
func union(a, b []string) (names []string) {
	seen := map[string]bool{}
	for _, name := range slices.Concat(a, b) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names
}

// outcome is how a check has ended in a report, if it has it.
type outcome struct {
	result  check.Result
	outcome check.Outcome
	text    string
}

func outcomes(r Report, name string) outcome {
	result, ok := r.result(name)
	if !ok {
		return outcome{text: "-"}
	}
	text := string(result.Outcome)
	if result.Found != "" {
		text += ": " + result.Found
	}
	return outcome{result, result.Outcome, text}
}

func yours(r check.Result, name string) string {
	text := ""
	for _, c := range r.Cases {
		if c.Case == name {
			text = c.Yours
		}
	}
	return cmp.Or(text, "-")
}
