// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/included"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// Compiler is a C compiler. Nothing that it compiles is run, so it may be a
// cross compiler.
type Compiler struct {
	Arch    layout.Arch
	command []string
	roots   included.Roots
}

// predefined lists the predefined macros by which an architecture is
// recognised. Where an architecture has two byte orders, one of the macros says
// which.
var predefined = map[string][]string{
	"amd64":   {"__x86_64__"},
	"arm64":   {"__aarch64__", "__AARCH64EL__"},
	"loong64": {"__loongarch64"},
	"ppc64le": {"__powerpc64__", "__LITTLE_ENDIAN__"},
	"riscv64": {"__riscv"},
	"s390x":   {"__s390x__"},
}

// Predefined returns the predefined macros by which headers recognise an
// architecture.
func Predefined(arch layout.Arch) []string { return predefined[arch.Name] }

// Find returns the compiler that is run by a command with arguments.
func Find(command ...string) (*Compiler, error) {
	if len(command) == 0 {
		return nil, errors.New("no C compiler is named")
	}
	c := &Compiler{command: command}
	out, errs, err := c.run("", "-dM", "-E")
	if err != nil {
		return nil, fmt.Errorf("%s does not work: %w%s", c, err, shorten(errs))
	}
	macros := map[string]bool{}
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 {
			macros[words[1]] = true
		}
	}
	isDefined := func(name string) bool { return macros[name] }
	var names []string
	for _, arch := range layout.Arches {
		needed := append([]string{"__linux__", "__LP64__"}, predefined[arch.Name]...)
		if !slices.ContainsFunc(needed, func(name string) bool { return !isDefined(name) }) {
			c.Arch = arch
		}
		names = append(names, "linux/"+arch.Name)
	}
	if c.Arch.Name == "" {
		return nil, fmt.Errorf("%s compiles for another architecture than %s", c, strings.Join(names, ", "))
	}
	if c.roots, err = included.RootsOf(command...); err != nil {
		return nil, err
	}
	if isDefined("__clang__") { // clang stops after 20 errors
		c.command = append(slices.Clone(c.command), "-ferror-limit=0")
	}
	return c, nil
}

// String returns the command without its arguments.
func (c *Compiler) String() string { return c.command[0] }

// run compiles source, and returns what the compiler writes to its two outputs.
func (c *Compiler) run(source string, args ...string) (out, errs string, err error) {
	cmd := exec.Command(c.command[0], slices.Concat(c.command[1:], args, []string{"-x", "c", "-"})...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // this package parses the messages
	cmd.Stdin = strings.NewReader(source)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

var diagnostic = regexp.MustCompile(`(?m)^(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)$`)

// complaints compiles s, and returns the first error in the line of each fact,
// by the fact's index. headers and after are folders as in Declarations.
// complaints fails if there is an error in any other line, or if the compiler
// took one of rdma-core's headers from the system.
func (c *Compiler) complaints(s source, headers, after string) (map[int]string, error) {
	// From C23 on, int f() would have a prototype.
	args := append([]string{"-fsyntax-only", "-w", "-std=gnu17", included.Option}, folders(headers, after)...)
	_, errs, err := c.run(s.text, args...)
	files, errs := included.List(errs)
	if foreign := c.roots.Check(headers, files); foreign != nil {
		return nil, errors.New(strings.TrimSpace(shorten(foreign.Error())))
	}
	if err == nil {
		return nil, nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return nil, err
	}
	found := map[int]string{}
	var elsewhere []string
	for _, d := range diagnostic.FindAllStringSubmatch(errs, -1) {
		line, _ := strconv.Atoi(d[2]) // cannot fail: the pattern has digits only
		i := line - s.before - 1
		if d[1] != "<stdin>" || i < 0 || i >= s.facts {
			elsewhere = append(elsewhere, d[0])
		} else if _, ok := found[i]; !ok {
			found[i] = d[3]
		}
	}
	if len(elsewhere) > 0 {
		return nil, fmt.Errorf("%w%s", err, shorten(strings.Join(elsewhere, "\n")))
	}
	if len(found) == 0 { // no error has the expected form
		return nil, fmt.Errorf("%w%s", err, shorten(errs))
	}
	return found, nil
}

// folders returns the compiler's arguments for the folders in which it looks
// first and last for headers. Each may be empty.
func folders(headers, after string) (args []string) {
	if headers != "" {
		args = append(args, "-isystem", headers)
	}
	if after != "" {
		args = append(args, "-idirafter", after)
	}
	return args
}

// shorten returns a newline and the first lines of a compiler's messages, or ""
// if there are none.
func shorten(errs string) string {
	const most = 10
	errs = strings.TrimSpace(errs)
	if errs == "" {
		return ""
	}
	lines := strings.Split(errs, "\n")
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("... and %d lines more", len(lines)-most))
	}
	return "\n" + strings.Join(lines, "\n")
}
