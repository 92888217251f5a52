// SPDX-License-Identifier: Apache-2.0

// Package bind makes a Go package for a C header, in another module. It first
// proposes the decisions that a person must make about the header. When these
// are made, it writes the package, which imports nothing of this module.
package bind

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/diff"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/included"
	"github.com/verbena-go/verbena/gen/internal/layout"
	"github.com/verbena-go/verbena/gen/internal/propose"
	"github.com/verbena-go/verbena/gen/internal/scan"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// Options says what to bind.
type Options struct {
	Header    string // name of the header in #include, or its path
	Include   string // folder in which programs look for the header; empty means the compiler's own folders
	Library   string // soname of the library, such as libnuma.so.1
	Into      string // folder for the package
	Libc      string // folder with musl's and the kernel's headers; empty means the installed ones
	Compilers string // further C compilers that check the result, separated by commas
}

// The errors of a run that cannot go on without a person. ErrUndecided means
// that lines of the table are still marked as unread.
var (
	ErrUndecided = errors.New("decisions are missing")
	ErrDifferent = errors.New("a C compiler contradicts the snapshot")
)

// The paths of files in the package's folder.
const (
	snapshotName = "testdata/header.json"
	claimsName   = "testdata/header.c"
)

// job is the state of a run.
type job struct {
	Options
	*place
	log       io.Writer
	header    *header
	more      []string // the compiler's own folders of headers, without that of the header
	libc      string
	compilers []*check.Compiler
	umbrella  string         // path of a file that includes the header
	unfit     []propose.Line // proposed lines for functions that cannot be bound
	isLinked  bool           // whether libc is a folder of links; a path below it is, without the folder, that of the installed file
}

// Run proposes decisions or, if all decisions are made, writes the package. It
// writes to log what it has done.
func Run(o Options, log io.Writer) error {
	if o.Header == "" || o.Library == "" || o.Into == "" {
		return errors.New("bind needs the flags -header, -library and -into")
	}
	if err := validSoname(o.Library); err != nil {
		return err
	}
	j, clean, err := prepare(o, log)
	if err != nil {
		return err
	}
	defer clean()
	return j.plain(j.run())
}

// validSoname fails if a name cannot be the soname of a library.
func validSoname(name string) error {
	switch {
	case strings.ContainsRune(name, filepath.Separator):
		return fmt.Errorf("-library %s: expected a soname, such as %s, rather than a path", name, filepath.Base(name))
	case !strings.Contains(name, ".so") || strings.ContainsAny(name, " \t\"#"):
		return fmt.Errorf("-library %s: expected a soname, such as libnuma.so.1; readelf -d FILE shows that of a library", name)
	}
	return nil
}

// prepare returns the job for a run, for which it finds the package's folder,
// the compilers and the headers. It also returns a function that removes
// temporary files.
func prepare(o Options, log io.Writer) (*job, func(), error) {
	p, env, err := find(o.Into)
	if err != nil {
		return nil, nil, err
	}
	j := &job{Options: o, place: p, log: log}
	native, roots, err := compiler(env)
	if err != nil {
		return nil, nil, err
	}
	j.compilers = append(j.compilers, native)
	for command := range strings.SplitSeq(o.Compilers, ",") {
		if strings.TrimSpace(command) == "" {
			continue
		}
		cc, err := check.Find(strings.Fields(command)...)
		if err != nil {
			return nil, nil, fmt.Errorf("-cc: %w", err)
		}
		j.compilers = append(j.compilers, cc)
	}
	if err := j.locate(roots); err != nil {
		return nil, nil, err
	}
	var removeLinks func()
	if j.libc, removeLinks, err = libc(o.Libc); err != nil {
		return nil, nil, err
	}
	j.isLinked = o.Libc == ""
	if err := j.isHidden(roots); err != nil {
		removeLinks()
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "gen-bind-")
	if err != nil {
		removeLinks()
		return nil, nil, err
	}
	clean := func() {
		removeLinks()
		os.RemoveAll(dir)
	}
	j.umbrella = filepath.Join(dir, "umbrella.h")
	return j, clean, os.WriteFile(j.umbrella, []byte("#include <"+j.header.name+">\n"), 0o600)
}

func (j *job) locate(roots included.Roots) (err error) {
	if j.header, err = locate(j.Header, j.Include, roots); err != nil {
		return err
	}
	for _, root := range roots {
		// The compiler's own headers are in a folder with this one and
		// without libc's.
		if _, err := os.Stat(filepath.Join(root, "stdarg.h")); err != nil && root != j.header.root {
			j.more = append(j.more, root)
		}
	}
	return nil
}

// isHidden fails if libc or the kernel has a header of the same name. The scan
// would read that one.
func (j *job) isHidden(roots included.Roots) error {
	if scan.FindLibcs(j.libc, j.header.name) == "" {
		return nil
	}
	if slices.Contains(roots, j.header.root) {
		return fmt.Errorf("-header %s: the C library and the kernel have their own header of this name, and gen does not bind these", j.Header)
	}
	abs, err := filepath.Abs(j.header.root)
	if err != nil {
		return err
	}
	return fmt.Errorf("-header %s: the C library has a header of this name; name yours with its folder: -I %s -header %s",
		j.Header, filepath.Dir(abs), path.Join(filepath.Base(abs), j.header.name))
}

// headerPath returns the path of a header that the scan has read.
func (j *job) headerPath(name string) string {
	file := filepath.FromSlash(name)
	for _, root := range j.more {
		if _, err := os.Stat(filepath.Join(j.header.root, file)); err == nil {
			break
		}
		if _, err := os.Stat(filepath.Join(root, file)); err == nil {
			return filepath.Join(root, file)
		}
	}
	return filepath.Join(j.header.root, file)
}

// libcName returns a description of the folder with libc's headers, for errors.
func (j *job) libcName() string {
	if j.isLinked {
		return "the folders in which they are installed"
	}
	return j.libc
}

// plain returns err with the paths of installed headers in the place of the
// links to them, and the name of the header in the place of the umbrella.
func (j *job) plain(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(err.Error(), j.umbrella+":1:1: ", j.header.name+": ")
	if j.isLinked {
		text = strings.ReplaceAll(text, j.libc, "")
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

func (j *job) run() error {
	old, err := j.files()
	if err != nil {
		return err
	}
	t, err := openTable(j.place)
	if err != nil {
		return err
	}
	isNew := t == nil
	if isNew {
		if t, err = newTable(j.place, j.header, j.Library); err != nil {
			return err
		}
	} else if err := j.isSame(t); err != nil {
		return err
	}
	if err := t.supported(); err != nil {
		return err
	}
	before := t.text
	a, failed := j.decide(t, isNew)
	if failed != nil && strings.Contains(failed.Error(), scan.NotFound) {
		return fmt.Errorf("%w\nthe folders of headers are %s; libc's and the kernel's headers are in %s", failed,
			strings.Join(append([]string{j.header.root}, j.more...), ", "), j.libcName())
	}
	if isNew || t.text != before {
		if err := j.put(tableName, []byte(t.text)); err != nil {
			return err
		}
	}
	if failed != nil {
		return t.advise(failed)
	}
	digests, err := j.digests(a)
	if err != nil {
		return err
	}
	if err := j.reportChanges(a, digests); err != nil {
		return err
	}
	if open := t.unread(); len(open) > 0 {
		j.ask(t, a, open)
		return fmt.Errorf("%s: %w: %d lines are marked as unread", t.file, ErrUndecided, len(open))
	}
	return j.emit(t, digests, old)
}

// isSame fails if the table is for another header or library than those of the
// run.
func (j *job) isSame(t *table) error {
	library, name, err := t.bound(j.place)
	if err != nil {
		return err
	}
	if name != j.header.name {
		return fmt.Errorf("the package in %s is for %s, not for %s: use another folder for each header", j.Into, name, j.header.name)
	}
	if library.Soname != j.Library {
		return fmt.Errorf("%s says that the library is %s, but -library says %s", t.file, library.Soname, j.Library)
	}
	return nil
}

// options returns the options of a scan with the decisions in known. During the
// scan, functions that cannot be bound are added to j.unfit.
func (j *job) options(known *conventions.Table) scan.Options {
	j.unfit = nil
	return scan.Options{
		Headers: j.header.root, More: j.more, Libc: j.libc, Source: j.umbrella, Version: "1", Known: known, Behind: true,
		Unfit: func(f *api.Function, why string) {
			j.unfit = append(j.unfit, propose.Line{Kind: "func", Text: fmt.Sprintf("func %s value skip=%q", f.Name, why), C: emit.Prototype(f)})
		},
	}
}

// draft scans the headers although decisions are missing. machine has the
// macros of another architecture than amd64.
func (j *job) draft(t *table, machine ...string) (*api.API, error) {
	o := j.options(t.known)
	o.Draft, o.Named, o.Machine = true, true, machine
	return scan.Scan(o)
}

// decide adds proposals for the lines that the table lacks, and returns the
// snapshot.
func (j *job) decide(t *table, isNew bool) (*api.API, error) {
	a, err := j.draft(t)
	if err != nil {
		return nil, err
	}
	if lines := family(a, j.header, t.known, j.name); len(lines) > 0 {
		if err := t.add(lines); err != nil {
			return nil, err
		}
		if a, err = j.draft(t); err != nil {
			return nil, err
		}
	}
	if isNew {
		old := "prefix=" + j.name + "_"
		t.text = strings.Replace(t.text, old, "prefix="+prefix(a, t.known.Binds, j.name+"_"), 1)
		if err := t.parse(); err != nil {
			return nil, err
		}
	}
	if a, err = j.compareMachines(a, t); err != nil {
		return nil, err
	}
	lines, err := t.lacking(j.unfit)
	if err != nil {
		return nil, err
	}
	return a, t.add(append(lines, propose.Lines(a, t.known)...))
}

// compareMachines scans the headers as compilers for the other architectures
// read them. It adds lines that leave out declarations which differ there, and
// returns the snapshot without them.
func (j *job) compareMachines(a *api.API, t *table) (*api.API, error) {
	var others []machine
	for _, arch := range layout.Arches {
		if arch.Name == layout.AMD64.Name {
			continue
		}
		other, err := j.draft(t, check.Predefined(arch)...)
		if err != nil {
			return nil, fmt.Errorf("the headers for the architecture %s: %w", arch.Name, err)
		}
		others = append(others, machine{arch.Name, other})
	}
	lines, errs := differing(a, others, t.known)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if len(lines) == 0 {
		return a, nil
	}
	if err := t.add(lines); err != nil {
		return nil, err
	}
	return j.draft(t)
}

// digests returns a line with a hash of each header that was read. The lines
// show later whether a header has changed.
func (j *job) digests(a *api.API) (string, error) {
	var b strings.Builder
	for _, h := range a.Headers {
		if !h.Included {
			continue
		}
		text, err := os.ReadFile(j.headerPath(h.Name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "// %s %x\n", h.Name, sha256.Sum256(text))
	}
	return b.String(), nil
}

// reportChanges writes to log what has changed in the headers since the package
// was written.
func (j *job) reportChanges(a *api.API, digests string) error {
	before, err := os.ReadFile(filepath.Join(j.dir, filepath.FromSlash(claimsName)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.Contains(string(before), digests) {
		return nil
	}
	from, err := api.Load(filepath.Join(j.dir, filepath.FromSlash(snapshotName)))
	if err != nil {
		return err
	}
	fmt.Fprintf(j.log, "# %s has changed\n\n%s\n", j.header.name, diff.Compare(from, a).Body())
	return nil
}

// ask writes to log what a person must decide.
func (j *job) ask(t *table, a *api.API, open []string) {
	count := map[string]int{}
	for _, line := range open {
		kind, _, _ := strings.Cut(line, " ")
		count[kind]++
	}
	fmt.Fprintf(j.log, "%s has proposals for what %s does not say, each marked as unread. With the library's manual at hand, decide:\n\n", t.file, j.header.name)
	for _, kind := range []struct{ name, question string }{
		{"library", "which packages of distributions contain it, and which prefix names lack in Go"},
		{"header", "whether the package binds it too, or not"},
		{"func", "how it reports an error, which pointers may be nil, which are results, and what the library keeps"},
		{"enum", "whether its values are combined with |"},
		{"struct", "its name, or why its members are not bound"},
		{"macro", "why it is not bound"},
	} {
		if n := count[kind.name]; n > 0 {
			fmt.Fprintf(j.log, "%5d %-8s %s\n", n, kind.name, kind.question)
		}
	}
	fmt.Fprintln(j.log)
	j.sayInline(t, a)
	fmt.Fprintf(j.log, "Then delete \"# unread\" from each line that is right, and run the same command again.\n\n")
}

// sayInline writes to log how many functions are not bound because they are
// inline. The package does not need the header, which alone has their bodies.
func (j *job) sayInline(t *table, a *api.API) {
	n := 0
	for _, f := range a.Functions {
		if t.known.Binds(f.Header) && f.Inline != nil && f.Inline.Call == "" {
			n++
		}
	}
	switch {
	case n == 1:
		fmt.Fprintln(j.log, "1 inline function is not bound: only the header has its body, and the package is built without it.")
	case n > 1:
		fmt.Fprintf(j.log, "%d inline functions are not bound: only the header has their bodies, and the package is built without it.\n", n)
	}
}

// emit writes the package.
func (j *job) emit(t *table, digests string, old []string) error {
	in := emit.Input{Known: t.known, Since: new(since.Table), Alone: true, Path: j.path}
	o := j.options(t.known)
	o.Check = func(a *api.API) []api.Finding {
		of := in
		of.API = a
		return emit.Findings(of)
	}
	var err error
	if in.API, err = scan.Scan(o); err != nil {
		return t.advise(err)
	}
	if _, err := t.lacking(j.unfit); err != nil {
		return err
	}
	in.Snapshots = []*api.API{in.API}
	files, err := emit.Render(in)
	if err != nil {
		return err
	}
	if files[snapshotName], err = in.API.Marshal(); err != nil {
		return err
	}
	if err := j.tests(in, digests, files); err != nil {
		return err
	}
	compared, err := j.compare(in, files["abi.h"])
	if err != nil {
		return err
	}
	if err := j.write(files, old); err != nil {
		return err
	}
	symbols, err := emit.Symbols(in)
	if err != nil {
		return err
	}
	fmt.Fprintf(j.log, "%s: %d functions and variables of %s, %d structs, %d enums, %d constants; %s\n",
		j.path, len(symbols[j.name]), j.Library, len(in.API.Structs), len(in.API.Enums), len(in.API.Macros), compared)
	j.sayInline(t, in.API)
	return nil
}

//go:embed golang/header_test.go.txt
var headerTest string

// tests adds the files of tests that package emit does not write: the golden
// layouts, and a test that compares the package with the header.
func (j *job) tests(in emit.Input, digests string, files map[string][]byte) error {
	layouts, err := os.MkdirTemp("", "gen-bind-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(layouts)
	golden := check.Golden{Dir: layouts, API: in.API, Home: func(string) string { return j.name }, Update: true}
	for _, arch := range layout.Arches {
		if _, err := golden.Check(arch); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(layouts)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if files["testdata/"+entry.Name()], err = os.ReadFile(filepath.Join(layouts, entry.Name())); err != nil {
			return err
		}
	}
	claims, err := check.Header(in.API, j.header.name)
	if err != nil {
		return err
	}
	files[claimsName] = []byte(generated + digests + "\n" + claims)
	test := strings.NewReplacer("PACKAGE", j.name, "HEADER", j.header.name, "NOTINSTALLED", check.NotInstalled).Replace(headerTest)
	files["header_test.go"] = []byte(generated + test)
	return nil
}

// compare has the compilers compare the snapshot with the headers and with the
// package's C declarations.
func (j *job) compare(in emit.Input, declarations []byte) (string, error) {
	links := map[string]string{}
	for _, h := range in.API.Headers {
		folder, _, deep := strings.Cut(h.Name, "/")
		switch {
		case !h.Included:
		case deep && in.Known.Binds(h.Name):
			// A compiler may include others of these than the scan.
			links[folder] = strings.TrimSuffix(j.headerPath(h.Name), filepath.FromSlash(strings.TrimPrefix(h.Name, folder)))
		case links[folder] == "":
			links[h.Name] = j.headerPath(h.Name)
		}
	}
	for name := range links {
		if folder, _, deep := strings.Cut(name, "/"); deep && links[folder] != "" {
			delete(links, name) // it lies in a folder that is linked
		}
	}
	staged, clean, err := linked(links)
	if err != nil {
		return "", err
	}
	defer clean()
	abi := filepath.Join(filepath.Dir(j.umbrella), "abi.h")
	if err := os.WriteFile(abi, declarations, 0o600); err != nil {
		return "", err
	}
	var agree, differ []string
	for _, cc := range j.compilers {
		facts, err := check.Facts(in.API, cc.Arch)
		if err != nil {
			return "", err
		}
		total := 0
		for _, d := range []check.Declarations{
			{Name: j.header.name, Source: j.umbrella, Include: staged, After: scan.IncludeDir(j.libc), Macros: true},
			{Name: "abi.h", Source: abi},
		} {
			result, err := check.Compare(cc, facts, d)
			if err != nil {
				return "", err
			}
			total += result.Total()
			for _, line := range result.Different {
				differ = append(differ, fmt.Sprintf("%s, %s, linux/%s: %s", d.Name, cc, cc.Arch.Name, line))
			}
		}
		agree = append(agree, fmt.Sprintf("%s agrees with %d facts for linux/%s", cc, total, cc.Arch.Name))
	}
	if len(differ) > 0 {
		return "", fmt.Errorf("%w; in conventions.txt, opaque= leaves out the members of a struct, and skip= a function or macro:\n%s", ErrDifferent, strings.Join(slices.Compact(differ), "\n"))
	}
	return strings.Join(agree, ", "), nil
}

// Check has C compilers compare the package in a folder with its header.
func Check(o Options, log io.Writer) error {
	p, _, err := find(o.Into)
	if err != nil {
		return err
	}
	t, err := openTable(p)
	if err != nil {
		return err
	}
	if t == nil {
		return fmt.Errorf("%s has no %s: gen bind has not made this folder", o.Into, tableName)
	}
	if _, o.Header, err = t.bound(p); err != nil {
		return err
	}
	j, clean, err := prepare(o, log)
	if err != nil {
		return err
	}
	defer clean()
	if len(j.compilers) > 1 { // with -cc, leave out cgo's compiler
		j.compilers = j.compilers[1:]
	}
	in := emit.Input{Known: t.known}
	if in.API, err = api.Load(filepath.Join(p.dir, filepath.FromSlash(snapshotName))); err != nil {
		return err
	}
	declarations, err := os.ReadFile(filepath.Join(p.dir, "abi.h"))
	if err != nil {
		return err
	}
	agree, err := j.compare(in, declarations)
	if err != nil {
		return j.plain(err)
	}
	fmt.Fprintf(log, "%s: %s\n", p.path, agree)
	return nil
}
