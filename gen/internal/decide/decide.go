// SPDX-License-Identifier: Apache-2.0

// Package decide finds the decisions that a person must make about a new
// version of the headers before bindings can be made from it. It also finds
// changes that a person should look at, although the bindings can be made
// without a decision about them.
package decide

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/diff"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// Facts holds the decisions that have been made, and other facts for the next
// ones.
type Facts struct {
	Folder string // where they are, such as headers
	Known  *conventions.Table
	Since  *since.Table
	Older  []*api.API // snapshots before the new one, oldest first
	Others []*api.API // snapshots of other folders of facts
	// Elsewhere maps a header that a folder inside this one binds to that
	// folder.
	Elsewhere map[string]string
	Strings   map[string]*conventions.Strings // texts of an enum's values, by enum
	Texts     *Texts
	Manual    map[string]string          // name of the manual page, by function
	Written   func(function string) bool // reports whether gen has a C function in place of an inline function
	// Refused returns what would keep the bindings from being made even if the
	// given lines were added to conventions.txt and since.txt.
	Refused func(conventions, since []string) (Refusal, error)
}

// Refusal holds the reasons why the bindings cannot be made, and the prototypes
// of the C functions that the device in user space lacks. Kept holds lines that
// only older headers need.
type Refusal struct{ Lines, Functions, Kept []string }

// List holds the decisions that are still to be made.
type List struct {
	Conventions, Since, Strings []string // proposed lines for the files of these names
	Mend                        []string // lines and declarations that do not fit each other
	Write                       []string // C functions that gen needs
	Post                        []string // C functions that the device in user space needs
	Look                        []string // changes that a person should look at
	folder                      string
}

// For compares the facts with the new snapshot b. a is the snapshot before it.
func For(a, b *api.API, facts Facts) (*List, error) {
	l := &List{Conventions: missing(b, facts), folder: cmp.Or(facts.Folder, "headers")}
	if err := l.since(b, facts); err != nil {
		return nil, err
	}
	l.texts(a, b, facts)
	if facts.Refused != nil {
		refusal, err := facts.Refused(l.Conventions, l.Since)
		if err != nil {
			return nil, err
		}
		l.Mend, l.Post, l.Look = refusal.Lines, refusal.Functions, append(l.Look, refusal.Kept...)
	}
	for _, h := range b.Absent {
		if h.Header == "" {
			l.Mend = append(l.Mend, fmt.Sprintf("%s/umbrella.h:%d includes <%s>, which the headers do not have: put the line between #if __has_include(<%[3]s>) and #endif, "+
				"as older headers have it", l.folder, h.Line, h.Name))
			continue
		}
		l.Mend = append(l.Mend, fmt.Sprintf("%s:%d includes <%s>, which is none of musl's or the kernel's headers: "+
			"add a file of this name to headers/shim, with the declarations that the headers need of it", h.Header, h.Line, h.Name))
	}
	old := map[string]*api.Function{}
	for _, f := range a.Functions {
		old[f.Name] = f
	}
	var undescribed []string
	for _, f := range b.Functions {
		was := old[f.Name]
		if ownLogic(f) && (was == nil || !ownLogic(was)) && !skipped(facts.Known, f) && !facts.Written(f.Name) {
			l.Write = append(l.Write, "own_"+f.Name+" for "+declaration(f)+placed(b, "func", f.Name, ""))
		}
		if was == nil && !skipped(facts.Known, f) && facts.Manual[f.Name] == "" {
			undescribed = append(undescribed, f.Name)
		}
	}
	if len(undescribed) > 0 {
		l.Look = append(l.Look, l.folder+"/manual.txt has no manual page for "+strings.Join(undescribed, ", "))
	}
	for _, c := range diff.Compare(a, b).Changes {
		switch {
		case c.Break || c.Undecided:
			l.Look = append(l.Look, c.String())
		case c.Kind == diff.BodyChanged || c.Kind == diff.InlineChanged:
			if facts.Written(c.Name) {
				l.Look = append(l.Look, c.String()+"; own_"+c.Name+" in gen/internal/emit/c is to do the same")
			}
		case c.Kind == diff.MacroTextChanged:
			l.Look = append(l.Look, c.String()+"; "+cmp.Or(facts.Known.Macros[c.Name], "the conventions say nothing of it"))
		}
	}
	return l, nil
}

// since lists the names for which since.txt has no line. The proposed line of
// an exported function also has its version node, which hints at the release.
func (l *List) since(b *api.API, facts Facts) error {
	names, lines, err := facts.Since.Missing(append(slices.Clone(facts.Older), b), facts.Others...)
	if err != nil {
		return err
	}
	nodes := map[string]string{}
	for _, f := range b.Functions {
		nodes[f.Name] = f.Node
	}
	for i, name := range names {
		line := lines[i]
		var notes []string
		if place := b.Place(name, ""); place != "" {
			notes = append(notes, place)
		}
		if node := nodes[name.Name]; name.Kind == "func" && node != "" {
			notes = append(notes, node)
		}
		if len(notes) > 0 {
			line += " # " + strings.Join(notes, ", ")
		}
		l.Since = append(l.Since, line)
	}
	return nil
}

func ownLogic(f *api.Function) bool { return f.Inline != nil && f.Inline.Call == "" }

func skipped(known *conventions.Table, f *api.Function) bool {
	line := known.Funcs[f.Name]
	return line != nil && line.Skip != ""
}

// Open reports whether a person must add or change lines before bindings can be
// made.
func (l *List) Open() bool { return len(l.Conventions)+len(l.Since)+len(l.Strings)+len(l.Mend) > 0 }

// Print writes the list. It leaves out parts without lines.
func (l *List) Print(w io.Writer) {
	section := func(title string, lines []string, prefix string) {
		if len(lines) > 0 {
			fmt.Fprintf(w, "%s\n\n%s%s\n\n", title, prefix, strings.Join(lines, "\n"+prefix))
		}
	}
	section("Lines for "+l.folder+"/conventions.txt, each below its neighbours in the header. The class is a guess, and so is\n"+
		"values or flags; decide also blocks, nil=, keeps=, bytes=, out=, enum= and skip=, as the file explains. Of a header that\n"+
		"gets skip=, nothing else is needed.", l.Conventions, "")
	section("Lines for "+l.folder+"/since.txt, with the first release that has the name: the one here is right if no release\n"+
		"lies between the two versions.", l.Since, "")
	section("Lines for "+l.folder+"/strings.txt, in the list of their enum.", l.Strings, "")
	section("Lines of "+l.folder+"/ that do not fit any more, and declarations that do not fit them. The generator refuses these also\n"+
		"with the lines above.", l.Mend, "- ")
	section("C functions of our own, for gen/internal/emit/c. The header's body is more than a call.", l.Write, "- ")
	section("C functions of the device in user space, for softroce/internal/capi, post.c or poll.c. An operation that is set to\n"+
		"NULL in a queue pair needs none, but must exist: return EOPNOTSUPP, or do nothing.", l.Post, "- ")
	section("To look at. The bindings can be made without a decision.", l.Look, "- ")
}
