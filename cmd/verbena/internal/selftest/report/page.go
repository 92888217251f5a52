// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// Page says what is on the page besides the report.
type Page struct {
	Checks []check.Check // what the results are of
	All    bool          // whether the page has all checks and cases, not only those that are not ok
	File   string        // file with the report, or empty
}

// where is where reports go.
const where = "https://github.com/verbena-go/verbena/issues/new?template=device.yml"

// basic are the features without which Verbena is of no use.
var basic = []check.Feature{check.Connections, check.Sockets, check.Transfers, check.Protection}

// proofs are the checks without which a feature is not known to work, even if
// other checks of the feature are ok.
var proofs = map[check.Feature]string{
	check.Connections: "connections.messages", check.Sockets: "sockets.echo", check.Transfers: "transfers.batches",
	check.Datagrams: "datagrams.send", check.Atomics: "atomics.add",
}

// Write writes the page for a report.
func (p Page) Write(w io.Writer, r Report) error {
	b := &strings.Builder{}
	p.head(b, r)
	p.features(b, r)
	p.failures(b, r)
	p.differences(b, r)
	p.others(b, r)
	if p.All {
		p.all(b, r)
	}
	p.next(b, r)
	_, err := io.WriteString(w, b.String())
	return err
}

func (p Page) head(b *strings.Builder, r Report) {
	fmt.Fprintf(b, "%s\n%s; Linux %s, %s; %s\n", r.Device.title(), r.Device.network(), r.System.Kernel, r.System.Processor, r.System.Libraries)
	ends := "both ends here"
	if r.Two {
		ends = "ends on two hosts"
	}
	fmt.Fprintf(b, "%d checks in %.0f s, %s: %d ok, %d differ, %d failed, %d not offered by the device, %d not run\n\n", len(r.Results), r.Seconds, ends,
		r.Count(check.OK), r.Count(check.Differs), r.Count(check.Failed), r.Count(check.NotOffered), r.Count(check.NotRun))
	fmt.Fprintf(b, "%s\n\n", p.Verdict(r))
}

// Verdict says in a sentence whether Verbena works on the device.
func (p Page) Verdict(r Report) string {
	var broken, unproven, absent []string
	unusable := false
	for _, f := range check.Features {
		switch state, _ := p.feature(r, f); state {
		case "FAILS":
			broken = append(broken, string(f))
			unusable = unusable || slices.Contains(basic, f)
		case "not run":
			if slices.Contains(basic, f) {
				unproven = append(unproven, string(f))
			}
		case "not offered":
			if slices.Contains(basic, f) {
				absent = append(absent, string(f))
			}
		}
	}
	switch {
	case unusable:
		return "VERBENA DOES NOT WORK on this device: " + strings.Join(broken, ", ") + "."
	case len(unproven) > 0:
		return "It is NOT KNOWN whether Verbena works on this device: not run: " + strings.Join(unproven, ", ") + "."
	case len(broken) > 0:
		return "Verbena WORKS on this device, EXCEPT FOR: " + strings.Join(append(broken, absent...), ", ") + "."
	case len(absent) > 0:
		return "Verbena WORKS on this device, which DOES NOT OFFER: " + strings.Join(absent, ", ") + "."
	}
	return "Verbena WORKS on this device."
}

// feature returns how a feature fares, and which checks say so.
func (p Page) feature(r Report, f check.Feature) (state string, names []string) {
	by := map[check.Outcome][]string{}
	for _, c := range p.Checks {
		if result, ok := r.result(c.Name); ok && slices.Contains(c.Features, f) {
			outcome := touches(c, result, f)
			by[outcome] = append(by[outcome], c.Name)
		}
	}
	for _, s := range []struct {
		outcome check.Outcome
		state   string
		named   bool
	}{
		{check.Failed, "FAILS", true},
		{check.Differs, "differs", true},
		{check.OK, "works", false},
		{check.NotRun, "not run", true},
		{check.NotOffered, "not offered", false},
	} {
		if proof, ok := r.result(proofs[f]); s.outcome == check.OK && ok && (proof.Outcome == check.NotOffered || proof.Outcome == check.NotRun) {
			continue
		}
		if names := by[s.outcome]; len(names) > 0 {
			if !s.named {
				names = nil
			}
			return s.state, names
		}
	}
	return "", nil
}

// touches returns the outcome of a check for a feature. Where a mistake is
// refused with another status, only what programs are told differs.
func touches(c check.Check, result check.Result, f check.Feature) check.Outcome {
	if result.Outcome == check.Differs && !unguarded(result) && f != check.Diagnosis && slices.Contains(c.Features, check.Diagnosis) {
		return check.OK
	}
	return result.Outcome
}

// unguarded reports whether the result is not only one of other statuses: it
// has no cases, or one succeeds that must be refused.
func unguarded(r check.Result) bool {
	return len(r.Cases) == 0 || slices.ContainsFunc(r.Cases, func(c check.Case) bool { return c.Differs() && c.Yours == check.Succeeds })
}

func (p Page) features(b *strings.Builder, r Report) {
	for _, f := range check.Features {
		if state, names := p.feature(r, f); state != "" {
			line := fmt.Sprintf("  %-11s  %-34s  %s", state, f, summary(names))
			fmt.Fprintln(b, strings.TrimRight(line, " "))
		}
	}
}

// summary lists the first names.
func summary(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func (p Page) check(name string) check.Check {
	if i := slices.IndexFunc(p.Checks, func(c check.Check) bool { return c.Name == name }); i >= 0 {
		return p.Checks[i]
	}
	return check.Check{Name: name}
}

func (p Page) failures(b *strings.Builder, r Report) {
	failed := r.with(check.Failed)
	if len(failed) == 0 {
		return
	}
	fmt.Fprintf(b, "\nFAILED\n")
	for _, result := range failed {
		c := p.check(result.Check)
		fmt.Fprintf(b, "  %s (%s)\n", c.Name, c.Proves)
		fmt.Fprintf(b, "      found: %s\n", result.Found)
		fmt.Fprintf(b, "      matters for: %s\n", joined(c.Features))
		if c.Do != "" {
			fmt.Fprintf(b, "      do: %s\n", c.Do)
		}
	}
}

func joined(features []check.Feature) string {
	all := make([]string, len(features))
	for i, f := range features {
		all[i] = string(f)
	}
	return strings.Join(all, ", ")
}

func (p Page) differences(b *strings.Builder, r Report) {
	differ := r.with(check.Differs)
	if len(differ) == 0 {
		return
	}
	fmt.Fprintf(b, "\nDIFFERS FROM THE SPECIFICATION\n")
	known := 0
	var cases []check.Case
	for _, group := range p.alike(differ) {
		c := p.check(group[0].Check)
		fmt.Fprintf(b, "  %s\n", cmp.Or(c.Matters, "Matters for: "+joined(c.Features)+"."))
		if c.Do != "" {
			fmt.Fprintf(b, "  do: %s\n", c.Do)
		}
		for _, result := range group {
			fmt.Fprintf(b, "      %s: %s\n", result.Check, result.Found)
			for _, one := range result.Cases {
				switch {
				case !one.Differs():
				case one.Known && !p.All:
					known++
				default:
					cases = append(cases, one)
				}
			}
		}
	}
	if known > 0 {
		fmt.Fprintf(b, "  Of these cases, -v shows %d more, which are known of this kind of device (docs/proof/negative-cases.md)\n", known)
	}
	if len(cases) > 0 {
		fmt.Fprintln(b)
		table(b, cases)
	}
}

// alike groups results that matter for the same, in the order of the first of
// each group.
func (p Page) alike(results []check.Result) (groups [][]check.Result) {
	at := map[string]int{}
	for _, result := range results {
		c := p.check(result.Check)
		key := c.Matters + c.Do
		if c.Matters == "" {
			key = c.Name
		}
		i, known := at[key]
		if !known {
			i = len(groups)
			at[key], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], result)
	}
	return groups
}

// table writes cases with how they end on each kind of device.
func table(b *strings.Builder, cases []check.Case) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  CASE\tSPECIFICATION\tSOFT-ROCE\tUSER SPACE\tYOURS")
	same := func(text, specification string) string {
		if text == specification {
			return "same"
		}
		return text
	}
	for _, c := range cases {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", c.Case, c.Specification, same(c.SoftRoCE, c.Specification), same(c.UserSpace, c.Specification),
			same(c.Yours, c.Specification))
	}
	t.Flush()
}

// others writes what was not offered and not run, with the reasons.
func (p Page) others(b *strings.Builder, r Report) {
	for _, o := range []check.Outcome{check.NotOffered, check.NotRun} {
		results := r.with(o)
		if len(results) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n%s\n", strings.ToUpper(string(o)))
		var reasons []string
		by := map[string][]string{}
		for _, result := range results {
			if by[result.Found] == nil {
				reasons = append(reasons, result.Found)
			}
			by[result.Found] = append(by[result.Found], result.Check)
		}
		for _, reason := range reasons {
			names := summary(by[reason])
			if p.All {
				names = strings.Join(by[reason], ", ")
			}
			fmt.Fprintf(b, "  %s: %s\n", reason, names)
		}
	}
}

// all writes each check, and each case that is not in the table of differences.
func (p Page) all(b *strings.Builder, r Report) {
	fmt.Fprintf(b, "\nALL CHECKS\n")
	var cases []check.Case
	for _, result := range r.Results {
		fmt.Fprintf(b, "  %-11s  %s: %s\n", result.Outcome, result.Check, p.check(result.Check).Proves)
		for _, note := range result.Notes {
			fmt.Fprintf(b, "                   %s\n", note)
		}
		cases = append(cases, result.Cases...)
	}
	if len(cases) > 0 {
		fmt.Fprintf(b, "\nALL CASES\n")
		table(b, cases)
	}
}

// next says what to do.
func (p Page) next(b *strings.Builder, r Report) {
	fmt.Fprintf(b, "\nWHAT TO DO\n")
	if r.Count(check.Failed) > 0 {
		fmt.Fprintln(b, "  Do not rely on what FAILS. Send the report, so that it can be mended.")
	}
	if r.Count(check.Differs) > 0 {
		fmt.Fprintln(b, "  Programs that do not rely on what DIFFERS need no change.")
	}
	if r.Count(check.NotOffered) > 0 {
		fmt.Fprintln(b, "  Programs cannot use what is NOT OFFERED: a call that asks for it fails.")
	}
	if r.Count(check.NotRun) > 0 {
		fmt.Fprintln(b, "  Give what was NOT RUN what it needs, and run the selftest again.")
	}
	if r.Count(check.OK) == len(r.Results) {
		fmt.Fprintln(b, "  Nothing: all that was checked works.")
	}
	switch {
	case p.File == "":
		fmt.Fprintf(b, "  To have the device listed with others, write a report without addresses, names and GUIDs\n  (verbena selftest -o FILE), and send it to\n  %s\n", where)
	case r.Identity != nil:
		fmt.Fprintf(b, "  %s has addresses, names and GUIDs, as -I asks. To have the device listed with\n  others, send a report without them to\n  %s\n", p.File, where)
	default:
		fmt.Fprintf(b, "  To have the device listed with others, send %s, which has no addresses,\n  names or GUIDs, to\n  %s\n", p.File, where)
	}
}
