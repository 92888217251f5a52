// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/conventions"
)

var classDocs = map[conventions.Class]string{
	conventions.Status:   "It fails if C returns -1, with the errno that C set.",
	conventions.Count:    "It returns C's number, and fails if that is -1, with the errno that C set.",
	conventions.Pointer:  "It returns C's pointer, and fails if that is NULL, with the errno that C set.",
	conventions.List:     "It returns C's pointer, nil for an empty list, and fails if that is NULL and C set the errno.",
	conventions.Code:     "It fails if C returns another number than 0, which is the errno.",
	conventions.Negative: "It returns C's number, and fails if that is negative, an errno with a minus sign.",
	conventions.Minus:    "It fails if C returns a negative number, an errno with a minus sign.",
	conventions.Poll:     "It returns the number of completions, and fails if C's number is negative, a code of the provider's own.",
	conventions.Wait:     "It returns the number of events, and fails if C's number is more than maxevents, which is the errno.",
	conventions.Rereg:    "It fails if C returns a code of enum ibv_rereg_mr_err_code; the error has that and the errno.",
	conventions.EAI:      "It fails if C returns an EAI code, or -1 with an errno.",
	conventions.Void:     "C returns nothing: what goes wrong inside is not reported.",
	conventions.Value:    "It returns C's value; C has no way to report a failure.",
	conventions.String:   "It returns a copy of C's string.",
	conventions.Interior: "It returns C's pointer, to the object that was passed or to a part of it.",
}

// doc returns the comment of a function, with one line per sentence.
func (p *pkg) doc(f *function) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s binds %s, %s %s:\n\n\t%s\n\n%s", f.goName, f.Name(), f.how(), f.Header,
		prototype(f.Function, f.ParamNames()), classDocs[f.Class])
	line := func(format string, args ...any) { fmt.Fprintf(&b, "\n"+format, args...) }

	if len(f.Out) > 0 {
		also := ""
		if p.value(f) != nil {
			also = "also "
		}
		line("It %sreturns *%s.", also, strings.Join(f.Out, ", *"))
	}
	if c := f.call(); c == dispatch || c == guarded {
		line("The provider does it; the errno is EOPNOTSUPP if it cannot.")
	}
	if f.call() == dispatch && p.Since.Release("func", f.Name()) != "" {
		// The operation is in a table in the object. An object of an
		// older library has a shorter table, which does not say how
		// long it is.
		line("An older library without the operation is not noticed: call this only for an object that was created with the operation.")
	}
	if f.Blocks {
		line("It can block.")
	} else {
		line("It does not block.")
	}
	b.WriteString(f.pointers())
	if history := p.history(f); history != "" {
		b.WriteString("\n\n" + history)
	}
	return b.String()
}

// how returns the words that say how a header has the function, such as "inline
// in".
func (f *function) how() string {
	switch {
	case f.Inline != nil:
		return "inline in"
	case f.call() == own:
		return "a function and a macro of"
	}
	return "a function of"
}

// pointers returns the sentences about pointers that may be nil or that C
// keeps.
func (f *function) pointers() string {
	var text string
	for _, set := range []struct {
		names  []string
		format string
	}{
		{f.named(f.Nil, func(p param) bool { return !p.text && !p.out }), "May be nil: %s."},
		{f.named(f.Nil, func(p param) bool { return p.text }), "Empty stands for NULL: %s."},
		{f.named(f.Keeps, func(p param) bool { return true }), "C keeps: %s."},
	} {
		if len(set.names) > 0 {
			text += "\n" + fmt.Sprintf(set.format, strings.Join(set.names, ", "))
		}
	}
	return text
}

// named returns the Go names of the parameters with these C names.
func (f *function) named(cNames []string, want func(param) bool) []string {
	var names []string
	for _, param := range f.params {
		if slices.Contains(cNames, param.cName) && want(param) {
			names = append(names, param.name)
		}
	}
	return names
}

// history returns the release that added the function, and its manual page.
func (p *pkg) history(f *function) string {
	var words []string
	release := p.Since.Release(f.kind(), f.Name())
	switch {
	case release != "" && f.Node != "":
		words = append(words, "Since "+p.project()+" "+release+" ("+f.Node+").")
	case release != "":
		words = append(words, "Since "+p.project()+" "+release+".")
	case f.Node != "":
		words = append(words, "In every supported "+p.project()+" ("+f.Node+").")
	}
	if page := p.Manual[f.Name()]; page != "" {
		words = append(words, "See "+page+".")
	}
	return strings.Join(words, " ")
}

// sinceSentence and sinceClause return the text that names the release which
// added something. The sentence is for the end of a paragraph, and the clause
// for the end of a short comment. Both are "" if release is "", as it is for
// everything that all supported releases have.
func (p *pkg) sinceSentence(release string) string {
	if release == "" {
		return ""
	}
	return " Since " + p.project() + " " + release + "."
}

func (p *pkg) sinceClause(release string) string {
	if release == "" {
		return ""
	}
	return ", since " + p.project() + " " + release
}
