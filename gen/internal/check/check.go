// Package check has a C compiler say what the real headers declare, and
// compares that with a snapshot.
package check

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// Report is what a C program said about the headers.
type Report struct {
	Layouts   map[string]string // by package, in the form of the golden files
	Compared  int               // facts of the snapshot that were compared
	Different []string
}

// Run compiles a program against the headers in include with the compiler cc,
// runs it, and compares. home names the package of a header.
func Run(a *api.API, cc, source, include string, home func(header string) string) (*Report, error) {
	dir, err := os.MkdirTemp("", "verbena-check-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	facts := factsOf(a, home)
	umbrella, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	c, program := filepath.Join(dir, "check.c"), filepath.Join(dir, "check")
	if err := os.WriteFile(c, writeProgram(string(umbrella), facts), 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command(cc, "-w", "-isystem", include, "-o", program, c).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cc, err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		return nil, err
	}
	return compare(facts, strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"))
}

// fact is a line that the C program prints: a format and its arguments, and
// the line that the snapshot says it is.
type fact struct {
	home   string // the golden file that it belongs to, if any
	format string
	args   []string
	want   string
}

func factsOf(a *api.API, home func(string) string) []fact {
	var facts []fact
	engine := layout.New(a, layout.AMD64)
	add := func(home, want, format string, args ...string) {
		facts = append(facts, fact{home, format, args, want})
	}
	for _, s := range a.Structs {
		if len(s.Members) == 0 {
			continue
		}
		pkg := home(s.Header)
		add(pkg, fmt.Sprintf("%s size %d align %d", s.Name, s.Size, s.Align),
			s.Name+" size %zu align %zu", "sizeof("+s.Name+")", "_Alignof("+s.Name+")")
		members(engine, s, pkg, s.Name, "", 0, s.Members, add)
	}
	for _, e := range a.Enums {
		for _, v := range e.Values {
			add("", fmt.Sprintf("%s = %d", v.Name, v.Value), v.Name+" = %lld", "(long long)"+v.Name)
		}
	}
	for _, m := range a.Macros {
		add("", fmt.Sprintf("%s = %d", m.Name, m.Value), m.Name+" = %lld", "(long long)"+m.Name)
	}
	return facts
}

func members(engine *layout.Engine, s *api.Struct, pkg, path, designator string, base int64, list []*api.Member,
	add func(home, want, format string, args ...string),
) {
	for _, m := range list {
		if m.Name == "" { // its members are reached through the enclosing struct
			members(engine, s, pkg, path, designator, base+m.Offset, m.Members, add)
			continue
		}
		full := designator + m.Name
		size := fmt.Sprintf("sizeof(((%s *)0)->%s)", s.Name, full)
		add(pkg, fmt.Sprintf("%s.%s offset %d size %d", path, m.Name, base+m.Offset, sizeOf(engine, m)),
			path+"."+m.Name+" offset %zu size %zu",
			fmt.Sprintf("offsetof(%s, %s)", s.Name, full), size)
		if m.Type == nil {
			members(engine, s, pkg, path+"."+m.Name, full+".", base+m.Offset, m.Members, add)
		}
	}
}

// sizeOf returns a member's size, or 0, which no compiler will agree with.
func sizeOf(engine *layout.Engine, m *api.Member) int64 {
	size, err := engine.OfMember(m)
	if err != nil {
		return 0
	}
	return size.Size
}

func writeProgram(umbrella string, facts []fact) []byte {
	var b bytes.Buffer
	b.WriteString(umbrella)
	b.WriteString("#include <stddef.h>\n#include <stdio.h>\n\nint main(void)\n{\n")
	for _, f := range facts {
		fmt.Fprintf(&b, "\tprintf(%q, %s);\n", f.format+"\n", strings.Join(f.args, ", "))
	}
	b.WriteString("\treturn 0;\n}\n")
	return b.Bytes()
}

func compare(facts []fact, lines []string) (*Report, error) {
	if len(lines) != len(facts) {
		return nil, fmt.Errorf("the C program printed %d lines, not %d", len(lines), len(facts))
	}
	r := &Report{Layouts: map[string]string{}}
	for i, f := range facts {
		if f.home != "" {
			r.Layouts[f.home] += lines[i] + "\n"
		}
		r.Compared += len(f.args)
		if f.want != lines[i] {
			r.Different = append(r.Different, fmt.Sprintf("snapshot: %s; compiler: %s", f.want, lines[i]))
		}
	}
	return r, nil
}
