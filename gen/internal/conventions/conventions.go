// SPDX-License-Identifier: Apache-2.0

// Package conventions reads headers/conventions.txt. It says which headers are
// bound, and what C declarations do not say about functions, enums, structs and
// macros.
package conventions

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Class is the way in which a C function reports an error.
type Class string

// The classes; headers/conventions.txt describes each.
const (
	Status   Class = "status"
	Count    Class = "count"
	Pointer  Class = "pointer"
	List     Class = "list"
	Code     Class = "code"
	Negative Class = "negative"
	Minus    Class = "minus"
	Poll     Class = "poll"
	Wait     Class = "wait"
	Rereg    Class = "rereg"
	EAI      Class = "eai"
	Void     Class = "void"
	Value    Class = "value"
	String   Class = "string"
	Interior Class = "interior"
)

var classes = []Class{
	Status, Count, Pointer, List, Code, Negative, Minus, Poll, Wait, Rereg, EAI, Void, Value, String, Interior,
}

// Func is the line of a C function.
type Func struct {
	Name   string
	Class  Class
	Blocks bool
	Nil    []string // parameters that may be NULL
	Keeps  []string // parameters whose memory C uses after the call
	Bytes  []string // parameters of type const char * that are memory with a length, not strings
	Out    []string // parameters that are results
	Enums  Enums    // enum types of integer parameters; that of the result has the name Result
	Own    bool     // whether the bindings have a C function of their own in place of the header's inline function
	Forms  []Form   // functions that are bound instead of a variadic one
	Skip   string   // the reason why it is not bound
}

// Form is a function that is bound instead of a variadic one: it has a fixed
// list of additional arguments.
type Form struct {
	Name string // name in the style of C
	Args []Arg
}

// Arg is an additional argument of a variadic function.
type Arg struct{ Type, Name string }

// Named returns the names of all parameters in the line.
func (f *Func) Named() []string {
	params := slices.DeleteFunc(slices.Sorted(maps.Keys(f.Enums)), func(name string) bool { return name == Result })
	return slices.Concat(f.Nil, f.Keeps, f.Bytes, f.Out, params)
}

// Enums maps the names of integer parameters or members to the enum that has
// their values, which C's declaration does not say. An enum is named as its
// line names it: by its tag, or by a colon and its first enumerator.
type Enums map[string]string

// Result stands for the result of a function in Enums. No parameter can have
// this name.
const Result = "return"

// read reads the value of enum=, such as attr_mask:ibv_qp_attr_mask. It returns
// false if the value has another form or names something twice.
func (e *Enums) read(value string) bool {
	if *e == nil {
		*e = Enums{}
	}
	for pair := range strings.SplitSeq(value, ",") {
		name, key, _ := strings.Cut(pair, ":")
		if name == "" || key == "" || (*e)[name] != "" {
			return false
		}
		(*e)[name] = key
	}
	return true
}

// Enum is the line of an enum.
type Enum struct {
	Key    string // tag of the enum, or a colon and its first enumerator
	Flags  bool
	GoName string // name in Go; if empty, it is made from the tag; "-" means constants without a type
	// Modifier, if set, is the enumerator of a bit that may be added to
	// each of the other values.
	Modifier string
}

// Header is the line of a header. One of Package, Skip and Other is set.
type Header struct {
	Name    string // name in #include; if Other is set, a pattern for path.Match
	Package string // Go package that binds the header
	Skip    string // the reason why it is not bound
	Other   string // distribution's package that contains the header, if that is not one of rdma-core
}

// Library is a C library, and the Go package that binds its headers.
type Library struct {
	Name           string   // name of the Go package
	Soname         string   // such as libibverbs.so.1
	Debian, Fedora string   // distributions' packages that contain the library
	Prefixes       []string // prefixes of C names that Go names leave out; the first that fits counts
	Program        string   // package that programs should use instead; empty for Base, whose packages are ibverbs and rdmacm
	Apart          bool     // whether VERBENA_DEVICE has no effect on the library; see dl.Library.Apart
}

// Base holds libibverbs and librdmacm. A table whose file defines no libraries
// is about these.
var Base = []*Library{
	{
		Name: "libibverbs", Soname: "libibverbs.so.1", Prefixes: []string{"ibv_"},
		Debian: "libibverbs1 and ibverbs-providers", Fedora: "libibverbs",
	},
	{
		Name: "librdmacm", Soname: "librdmacm.so.1", Prefixes: []string{"rdma_"},
		Debian: "librdmacm1 (librdmacm1t64) and ibverbs-providers", Fedora: "librdmacm",
	},
}

// Table is the content of a conventions file.
type Table struct {
	Libraries []*Library // libraries that the file defines; empty means Base
	Headers   []*Header
	Funcs     map[string]*Func
	Enums     map[string]*Enum
	Structs   map[string]string // by tag of a struct whose members are not bound: the reason
	Members   map[string]Enums  // by tag of a struct: the enum types of integer members, such as a.b for member b of member a
	Names     map[string]string // by "func NAME" or "struct TAG": the Go name, if it is not made from the C name
	Macros    map[string]string // by name of a macro without a value: the reason why it is not bound
	Lines     map[string]string // by the first two words of a line: where it is, such as conventions.txt:7
}

// At returns where the line is that begins with these words.
func (t *Table) At(kind, name string) string {
	return cmp.Or(t.Lines[kind+" "+name], "conventions")
}

// Own returns the libraries that this table is about.
func (t *Table) Own() []*Library {
	if len(t.Libraries) == 0 {
		return Base
	}
	return t.Libraries
}

// Binds reports whether a package of Own binds the header.
func (t *Table) Binds(header string) bool {
	line := t.Header(header)
	return line != nil && slices.ContainsFunc(t.Own(), func(l *Library) bool { return l.Name == line.Package })
}

// Over returns a table with the lines of t and of below. Where both have a
// line, that of t counts. The libraries are those of t.
func (t *Table) Over(below *Table) *Table {
	merged := &Table{
		Lines:     map[string]string{},
		Libraries: t.Libraries, Funcs: maps.Clone(below.Funcs), Enums: maps.Clone(below.Enums),
		Structs: maps.Clone(below.Structs), Members: maps.Clone(below.Members), Names: map[string]string{}, Macros: maps.Clone(below.Macros),
	}
	merged.Headers = slices.Concat(t.Headers, below.Headers) // Header returns the first line that fits
	maps.Copy(merged.Funcs, t.Funcs)
	maps.Copy(merged.Enums, t.Enums)
	maps.Copy(merged.Structs, t.Structs)
	maps.Copy(merged.Members, t.Members)
	maps.Copy(merged.Names, below.Names)
	maps.Copy(merged.Names, t.Names)
	maps.Copy(merged.Macros, t.Macros)
	maps.Copy(merged.Lines, below.Lines)
	maps.Copy(merged.Lines, t.Lines)
	return merged
}

// Header returns the line for the header of that name, or nil.
func (t *Table) Header(name string) *Header {
	for _, h := range t.Headers {
		if match, _ := path.Match(h.Name, name); match && h.Other != "" || h.Name == name { // Parse has checked the pattern
			return h
		}
	}
	return nil
}

// Load reads the table from a file.
func Load(path string) (*Table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads the table. name is the file name in errors.
func Parse(name string, data []byte) (*Table, error) {
	t := &Table{Funcs: map[string]*Func{}, Enums: map[string]*Enum{}, Structs: map[string]string{}, Members: map[string]Enums{}, Names: map[string]string{}, Macros: map[string]string{}, Lines: map[string]string{}}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		words, err := fields(lines.Text())
		if err == nil && len(words) > 0 {
			err = t.line(words)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		if len(words) == 0 {
			continue
		}
		if key := words[0] + " " + words[1]; t.Lines[key] == "" {
			t.Lines[key] = fmt.Sprintf("%s:%d", name, n)
		}
	}
	return t, lines.Err()
}

func (t *Table) line(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("expected at least three words, found %q", strings.Join(words, " "))
	}
	switch words[0] {
	case "library":
		return t.library(words[1:])
	case "header":
		return t.header(words[1:])
	case "func":
		return t.function(words[1:])
	case "enum":
		return t.enum(words[1:])
	case "struct":
		return t.structure(words[1:])
	case "macro":
		return explain(t.Macros, "macro", "skip", words[1:])
	}
	return fmt.Errorf("expected library, header, func, enum, struct or macro, found %q", words[0])
}

func (t *Table) library(words []string) error {
	l := &Library{Name: words[0], Soname: words[1]}
	known := func(other *Library) bool { return other.Name == l.Name }
	if slices.ContainsFunc(Base, known) || slices.ContainsFunc(t.Libraries, known) {
		return fmt.Errorf("library %s: already defined", l.Name)
	}
	for _, w := range words[2:] {
		switch key, value, _ := strings.Cut(w, "="); {
		case w == "apart":
			l.Apart = true
		case value == "":
			return fmt.Errorf("library %s: expected apart, or prefix=, debian=, fedora= or program= with a value, found %q", l.Name, w)
		case key == "prefix":
			l.Prefixes = strings.Split(value, ",")
		case key == "debian":
			l.Debian = value
		case key == "fedora":
			l.Fedora = value
		case key == "program":
			l.Program = value
		default:
			return fmt.Errorf("library %s: unknown attribute %q: expected prefix=, debian=, fedora=, program= or apart", l.Name, w)
		}
	}
	if len(l.Prefixes) == 0 || l.Debian == "" || l.Fedora == "" || l.Program == "" {
		return fmt.Errorf("library %s: prefix=, debian=, fedora= and program= are needed", l.Name)
	}
	t.Libraries = append(t.Libraries, l)
	return nil
}

func (t *Table) header(words []string) error {
	h := &Header{Name: words[0]}
	key, value, isReason := strings.Cut(words[1], "=")
	switch {
	case len(words) == 2 && slices.Contains(t.packages(), words[1]):
		h.Package = words[1]
	case len(words) == 2 && isReason && value != "" && key == "skip":
		h.Skip = value
	case len(words) == 2 && isReason && value != "" && key == "other":
		h.Other = value
	case len(words) == 2 && !isReason:
		return fmt.Errorf("header %s: no line above defines the library %s: add one such as: library %[2]s %[2]s.so.1 prefix=PREFIX debian=\"PACKAGES\" fedora=\"PACKAGES\" program=PACKAGE; "+
			"or write one of %[3]s, skip=REASON and other=PACKAGE here", h.Name, words[1], strings.Join(t.packages(), ", "))
	default:
		return fmt.Errorf("header %s: expected one of %s, skip=REASON and other=PACKAGE, found %q", h.Name, strings.Join(t.packages(), ", "), strings.Join(words[1:], " "))
	}
	if _, err := path.Match(h.Name, ""); err != nil {
		return fmt.Errorf("header %s: %w", h.Name, err)
	}
	if slices.ContainsFunc(t.Headers, func(old *Header) bool { return old.Name == h.Name }) {
		return fmt.Errorf("header %s: listed twice", h.Name)
	}
	t.Headers = append(t.Headers, h)
	return nil
}

// packages returns the names of the Go packages that bind headers.
func (t *Table) packages() []string {
	var names []string
	for _, l := range t.Own() {
		names = append(names, l.Name)
	}
	return names
}

// fields returns the words of a line. Words are separated by blanks outside
// quotes. A comment is left out.
func fields(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	quoted := false
	flush := func() {
		if word.Len() > 0 {
			words = append(words, word.String())
			word.Reset()
		}
	}
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case r == '#' && !quoted:
			flush()
			return words, nil
		case (r == ' ' || r == '\t') && !quoted:
			flush()
		default:
			word.WriteRune(r)
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed")
	}
	flush()
	return words, nil
}

func (t *Table) function(words []string) error {
	f := &Func{Name: words[0], Class: Class(words[1])}
	if !slices.Contains(classes, f.Class) {
		return fmt.Errorf("func %s: unknown class %q", f.Name, words[1])
	}
	if t.Funcs[f.Name] != nil {
		return fmt.Errorf("func %s: listed twice", f.Name)
	}
	for _, w := range words[2:] {
		if name, ok := strings.CutPrefix(w, "name="); ok {
			if err := t.name("func", f.Name, name); err != nil {
				return err
			}
			continue
		}
		if !f.attribute(w) {
			return fmt.Errorf("func %s: unknown attribute %q", f.Name, w)
		}
	}
	t.Funcs[f.Name] = f
	return nil
}

// structure reads the line of a struct: the reason why its members are not
// bound, or its name and the enums of its members.
func (t *Table) structure(words []string) error {
	tag := words[0]
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch {
		case key == "name":
			if err := t.name("struct", tag, value); err != nil {
				return err
			}
		case key == "enum":
			enums := t.Members[tag]
			if !enums.read(value) {
				return fmt.Errorf("struct %s: expected enum=MEMBER:ENUM,... with each member once, found %q", tag, w)
			}
			t.Members[tag] = enums
		default:
			return explain(t.Structs, "struct", "opaque", words)
		}
	}
	return nil
}

// attribute reads one word such as nil=wr,bad_wr.
func (f *Func) attribute(w string) bool {
	key, value, _ := strings.Cut(w, "=")
	if (value == "") != (key == "blocks") {
		return false
	}
	switch key {
	case "blocks":
		f.Blocks = true
	case "nil":
		f.Nil = strings.Split(value, ",")
	case "keeps":
		f.Keeps = strings.Split(value, ",")
	case "bytes":
		f.Bytes = strings.Split(value, ",")
	case "out":
		f.Out = strings.Split(value, ",")
	case "enum":
		return f.Enums.read(value)
	case "inline":
		f.Own = value == "own"
		return f.Own
	case "form":
		words := strings.Fields(value)
		if len(words)%2 == 0 {
			return false
		}
		form := Form{Name: words[0]}
		for pair := range slices.Chunk(words[1:], 2) {
			form.Args = append(form.Args, Arg{Type: pair[0], Name: pair[1]})
		}
		f.Forms = append(f.Forms, form)
	case "skip":
		f.Skip = value
	default:
		return false
	}
	return true
}

var goIdentifier = regexp.MustCompile(`^[A-Z][0-9A-Za-z]*$`)

// name stores the Go name of a declaration.
func (t *Table) name(kind, c, name string) error {
	key := kind + " " + c
	if !goIdentifier.MatchString(name) {
		return fmt.Errorf("%s: %q is no name that Go programs can use", key, name)
	}
	if t.Names[key] != "" {
		return fmt.Errorf("%s: named twice", key)
	}
	t.Names[key] = name
	return nil
}

func (t *Table) enum(words []string) error {
	e := &Enum{Key: words[0], Flags: words[1] == "flags"}
	if !e.Flags && words[1] != "values" {
		return fmt.Errorf("enum %s: expected flags or values, found %q", e.Key, words[1])
	}
	if t.Enums[e.Key] != nil {
		return fmt.Errorf("enum %s: listed twice", e.Key)
	}
	for _, w := range words[2:] {
		switch key, value, _ := strings.Cut(w, "="); {
		case key == "name" && value != "":
			e.GoName = value
		case key == "modifier" && value != "" && !e.Flags:
			e.Modifier = value
		default:
			return fmt.Errorf("enum %s: unknown attribute %q", e.Key, w)
		}
	}
	if strings.HasPrefix(e.Key, ":") && e.GoName == "" {
		return fmt.Errorf("enum %s: an enum without a tag needs name=", e.Key)
	}
	t.Enums[e.Key] = e
	return nil
}

// explain reads a line with a name and the reason why the declaration, or its
// members, are not bound.
func explain(reasons map[string]string, what, key string, words []string) error {
	why, ok := strings.CutPrefix(words[1], key+"=")
	if len(words) != 2 || !ok || why == "" {
		return fmt.Errorf("%s %s: expected only %s=", what, words[0], key)
	}
	if reasons[words[0]] != "" {
		return fmt.Errorf("%s %s: listed twice", what, words[0])
	}
	reasons[words[0]] = why
	return nil
}
