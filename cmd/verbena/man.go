// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// man returns the command that writes the manual pages.
func man(of *program.Commands) *program.Program {
	var folder string
	return &program.Program{
		Name: "verbena man", Summary: "write the manual pages of all commands to a folder",
		Usage: "verbena man FOLDER", Misused: program.ExitMisused, Operands: []*string{&folder}, Flags: func(*program.Flags) {},
		Text: `
Writes verbena.1, and a page for each command, such as verbena-ping.1, to a
folder, and prints their names. They say what -h does.

Example: verbena man ~/.local/share/man/man1`,
		Run: func(_ context.Context, out program.Output) error {
			if folder == "" {
				return program.Misuse("the folder is missing")
			}
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			for name, text := range pages(of) {
				file := filepath.Join(folder, name)
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					return err
				}
			}
			for _, n := range nodes(of) {
				out.Printf("%s\n", filepath.Join(folder, n.page()+".1"))
			}
			return nil
		},
	}
}

// pages returns the manual pages by file name.
func pages(of *program.Commands) map[string]string {
	all := map[string]string{}
	for _, n := range nodes(of) {
		all[n.page()+".1"] = n.manual(of)
	}
	return all
}

// page returns the name of the command's manual page.
func (n node) page() string { return strings.Join(append([]string{"verbena"}, n.path...), "-") }

// roff escapes text so that no part of it is a request of roff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "~", `\(ti`, "^", `\(ha`, "`", `\(ga`, "'", `\(aq`).Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}

// manual returns the manual page of the command.
func (n node) manual(of *program.Commands) string {
	var b strings.Builder
	summary, usage, text := "", "", ""
	related := []string{}
	if n.program != nil {
		summary, usage, text = n.program.Summary, n.program.Usage, n.program.Text
		related = append(related, parent(n.path))
	} else {
		commands := of
		for _, name := range n.path {
			for _, command := range commands.All {
				if command.Name == name {
					commands = command.Commands
					break
				}
			}
		}
		summary, usage, text = commands.Summary, commands.Usage(), commands.Text
		if len(n.path) > 0 {
			related = append(related, parent(n.path))
		}
	}
	fmt.Fprintf(&b, ".TH %s 1\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", roff(strings.ToUpper(n.page())), roff(n.page()), roff(summary))
	for line := range strings.Lines(strings.TrimSpace(usage)) {
		fmt.Fprintf(&b, "%s\n", roff(strings.TrimSpace(line)))
	}
	b.WriteString(".fi\n.SH DESCRIPTION\n")
	describe, sections := split(text)
	writeParagraphs(&b, describe)
	if n.program == nil {
		b.WriteString(".SH COMMANDS\n")
		for _, command := range n.commands {
			page := n.page() + "-" + command.Name
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(command.Name), roff(sentence(command.Summary())))
			related = append(related, page)
		}
	} else {
		b.WriteString(".SH OPTIONS\n")
		for _, o := range n.program.Options() {
			flag := `\fB` + roff("--"+o.Name) + `\fR`
			if o.Letter != "" {
				flag = `\fB` + roff("-"+o.Letter) + `\fR, ` + flag
			}
			if o.Value != "" {
				flag += ` \fI` + roff(o.Value) + `\fR`
			}
			fmt.Fprintf(&b, ".TP\n%s\n%s\n", flag, roff(sentence(o.Usage)))
		}
	}
	for _, s := range sections {
		fmt.Fprintf(&b, ".SH %s\n", s.title)
		writeParagraphs(&b, s.paragraphs)
	}
	b.WriteString(".SH SEE ALSO\n")
	for i, page := range related {
		comma := " ,"
		if i == len(related)-1 {
			comma = ""
		}
		fmt.Fprintf(&b, ".BR %s (1)%s\n", roff(page), comma)
	}
	return b.String()
}

func parent(path []string) string {
	return strings.Join(append([]string{"verbena"}, path[:len(path)-1]...), "-")
}

// sentence returns the text with a capital letter at the start and a period at
// the end.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// section is a section of a manual page.
type section struct {
	title      string
	paragraphs []string
}

// beginnings lists the first words of paragraphs that belong into a section of
// their own.
var beginnings = []struct{ text, title string }{{"Exit status: ", "EXIT STATUS"}, {"Example: ", "EXAMPLES"}, {"Example, ", "EXAMPLES"}}

// split splits a program's text into the paragraphs of the description and
// those of other sections.
func split(text string) (describe []string, sections []section) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		found := false
		for _, begin := range beginnings {
			if rest, ok := strings.CutPrefix(paragraph, begin.text); ok {
				found = true
				sections = append(sections, section{begin.title, []string{strings.ToUpper(rest[:1]) + rest[1:]}})
				if begin.title == "EXAMPLES" && !strings.Contains(begin.text, ",") {
					sections[len(sections)-1].paragraphs[0] = "  " + rest // a command, in which lines must not be broken
				}
			}
		}
		if !found {
			describe = append(describe, paragraph)
		}
	}
	return describe, sections
}

// writeParagraphs writes paragraphs. Indented lines are not wrapped.
func writeParagraphs(b *strings.Builder, paragraphs []string) {
	for _, paragraph := range paragraphs {
		b.WriteString(".PP\n")
		literal := false
		for line := range strings.Lines(paragraph) {
			line = strings.TrimRight(line, "\n")
			if indented := strings.HasPrefix(line, "  "); indented != literal {
				literal = indented
				b.WriteString(map[bool]string{true: ".RS 2\n.nf\n", false: ".fi\n.RE\n"}[literal])
			}
			b.WriteString(roff(strings.TrimPrefix(line, "  ")) + "\n")
		}
		if literal {
			b.WriteString(".fi\n.RE\n")
		}
	}
}
