// SPDX-License-Identifier: Apache-2.0

package diff

import (
	"encoding/json"
	"fmt"
	"strings"
)

// JSON returns the report in JSON.
func (r *Report) JSON() ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(r)
	return []byte(b.String()), err
}

// Verdict returns a summary of one or two words.
func (r *Report) Verdict() string {
	switch {
	case r.Breaks > 0:
		return "ABI break"
	case r.Undecided > 0:
		return "Undecided"
	case r.Sources > 0:
		return "Source break"
	case len(r.Changes) > 0:
		return "Compatible"
	}
	return "The same"
}

// Summary returns a summary of one line.
func (r *Report) Summary() string {
	counts := map[Kind]int{}
	for _, c := range r.Changes {
		counts[c.Kind]++
	}
	var parts []string
	for _, k := range kinds {
		if n := counts[k.kind]; n > 0 {
			parts = append(parts, count(n, k.one, k.many))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("**%s**: no change.", r.Verdict())
	}
	return fmt.Sprintf("**%s**: %s, %d undecided, %s; %s.", r.Verdict(), count(r.Breaks, "ABI break", "ABI breaks"), r.Undecided,
		count(r.Sources, "source break", "source breaks"), strings.Join(parts, ", "))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Markdown returns the report for readers: first the ABI breaks, the undecided
// changes and the source breaks, then the compatible changes, kind by kind.
func (r *Report) Markdown() string {
	return fmt.Sprintf("# rdma-core %s -> %s\n\n", r.From, r.To) + r.Body()
}

// Body returns the text of Markdown without the title.
func (r *Report) Body() string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Summary())
	section := func(title string, wanted func(Change) bool, lines func([]Change) string) {
		var found []Change
		for _, c := range r.Changes {
			if wanted(c) {
				found = append(found, c)
			}
		}
		if len(found) > 0 {
			fmt.Fprintf(&b, "\n## %s\n\n%s", title, lines(found))
		}
	}
	section("ABI breaks", func(c Change) bool { return c.Break }, described)
	section("Undecided: a break, or none", func(c Change) bool { return c.Undecided }, described)
	section("Source breaks", func(c Change) bool { return c.Source }, described)
	for _, k := range kinds {
		lines := described
		switch k.kind {
		case FunctionAdded:
			lines = declared
		case EnumeratorAdded:
			lines = values
		}
		section(strings.ToUpper(k.many[:1])+k.many[1:],
			func(c Change) bool { return c.Kind == k.kind && !c.Break && !c.Undecided && !c.Source }, lines)
	}
	return b.String()
}

// described returns a line for each change.
func described(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "- %s\n", c)
	}
	return b.String()
}

// String returns the change as a line of Markdown. The line of a break names
// the kind, because breaks of all kinds are in one list.
func (c Change) String() string {
	var b strings.Builder
	name := c.Name
	if strings.HasPrefix(c.Of, "enum") {
		name = c.Of + ": " + name
	} else if c.Of != "" {
		name = c.Of + "." + name
	}
	fmt.Fprintf(&b, "`%s`", name)
	if c.Break || c.Undecided || c.Source {
		fmt.Fprintf(&b, ", %s", c.Kind)
	}
	switch {
	case c.From != "" && c.To != "":
		fmt.Fprintf(&b, ": `%s` -> `%s`", c.From, c.To)
	case c.From+c.To != "":
		fmt.Fprintf(&b, ": `%s`", c.From+c.To)
	}
	if c.Why != "" {
		fmt.Fprintf(&b, "; %s", c.Why)
	}
	return b.String()
}

// declared returns a line for each new function, with its declaration.
func declared(changes []Change) string {
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintf(&b, "- `%s`\n", c.To)
	}
	return b.String()
}

// values returns a line for each enum with new enumerators.
func values(changes []Change) string {
	var b strings.Builder
	for i, c := range changes {
		switch {
		case i == 0 || c.Of != changes[i-1].Of:
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "- `%s`: ", c.Of)
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "`%s = %s`", c.Name, c.To)
	}
	b.WriteByte('\n')
	return b.String()
}
