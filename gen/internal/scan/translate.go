// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"modernc.org/cc/v4"
)

// patience is the processor time that the program may use to read headers which
// are within all other limits. After that, Scan fails, but the goroutine that
// runs cc continues until the program ends.
var patience = 30 * time.Second

const (
	endName = "<end>"             // name of the text behind the headers
	mark    = "#pragma verbena\n" // pragma that separates the parts of this text
)

// translation holds the input and the state of reading headers with cc.
type translation struct {
	folders              []string // all folders in which cc looks for headers
	source               string
	mayLack              bool   // Options.Absent
	predefined, umbrella string // contents of predefined.h and of the umbrella file
	files                *files
	packs                packs
	words                map[string]bool     // words of the headers and of expansions, once they are preprocessed
	expansions           map[string][]string // expansions of object-like macros, by name
}

// translated holds the results of reading headers with cc.
type translated struct {
	ast        *cc.AST
	unusable   map[string]unusable // macros that cannot be evaluated
	opened     []string            // files that were opened
	texts      map[string]string   // texts of the files
	expansions map[string][]string // expansions of object-like macros, by name
	packs      *packs
	absent     absent // headers that were not found
}

// translate has cc preprocess, parse and type-check the headers.
func translate(opts Options, include string) (*translated, error) {
	known := predefined(opts.Machine)
	if opts.Shim != "" {
		text, err := os.ReadFile(filepath.Join(opts.Shim, "predefined.h"))
		if err != nil {
			return nil, err
		}
		known = string(text)
	}
	umbrella, err := os.ReadFile(opts.Source)
	if err != nil {
		return nil, err
	}
	t := &translation{
		folders: append(searched(opts, include), absentDir), source: opts.Source, mayLack: opts.Absent, predefined: known, umbrella: string(umbrella),
		files: newFiles(systemDirs(opts), append([]string{include, filepath.Dir(opts.Source)}, opts.More...)...),
	}
	t.files.packs = &t.packs
	if !t.files.passes(t.source, t.umbrella) {
		return nil, report(t.files.problems)
	}
	type result struct {
		ast      *cc.AST
		unusable map[string]unusable
		problems []problem
	}
	done := make(chan result, 1)
	go func() {
		ast, bad, problems := t.run()
		done <- result{ast, bad, problems}
	}()
	r, ok := await(done, processorTime)
	if !ok {
		text := fmt.Sprintf("the C parser finds no end in %v of processor time", patience)
		return nil, problem{t.source, 1, 1, text}
	}
	return &translated{
		ast: r.ast, unusable: r.unusable, opened: slices.Collect(maps.Keys(t.files.checked)), texts: t.files.texts, packs: &t.packs, expansions: t.expansions,
		absent: t.files.absent,
	}, report(r.problems)
}

// await waits for a result from done and returns it. It returns false if spent
// has grown by more than patience first.
func await[T any](done <-chan T, spent func() time.Duration) (r T, ok bool) {
	limit := spent() + patience
	look := time.NewTicker(patience / 100)
	defer look.Stop()
	for {
		select {
		case r = <-done:
			return r, true
		case <-look.C:
			if spent() > limit {
				return r, false
			}
		}
	}
}

func (t *translation) run() (ast *cc.AST, bad map[string]unusable, problems []problem) {
	defer func() {
		if p := recover(); p != nil { // cc panics on input that it does not expect: see TestCCPanics
			ast, bad, problems = nil, nil, []problem{t.gaveUp(fmt.Sprint(p))}
		}
	}()
	bad, problems = t.preprocess()
	for t.without(problems) {
		bad, problems = t.preprocess()
	}
	if len(problems) == 0 {
		problems = t.syntax()
	}
	if len(problems) == 0 {
		ast, problems = t.types(bad)
	}
	if len(problems) > 0 { // which may be there because a header is absent
		problems = append(problems, slices.Collect(maps.Values(t.files.absent))...)
	}
	return ast, bad, problems
}

// types type-checks the headers, and evaluates their macros except those in
// bad. If cc may have another value than C for a macro, types also puts the
// macro into an assertion, which the scanner evaluates.
func (t *translation) types(bad map[string]unusable) (*cc.AST, []problem) {
	var end strings.Builder
	for name := range bad {
		fmt.Fprintf(&end, "#undef %s\n", name)
	}
	ast, problems := t.translated(end.String())
	if len(problems) > 0 {
		return nil, problems
	}
	odd := false
	c := newConstants(ast)
	for name, words := range t.expansions {
		if m := ast.Macros[name]; m != nil && c.isOdd(words) {
			if _, isInteger := integerOf(m.Value()); isInteger {
				fmt.Fprintf(&end, "_Static_assert((%s) || 1, \"%[1]s\");\n", name)
				odd = true
			}
		}
	}
	if odd {
		return t.translated(end.String())
	}
	return ast, nil
}

func (t *translation) translated(end string) (*cc.AST, []problem) {
	cfg := t.config(0, func() {})
	cfg.EvalAllMacros = true
	t.packs = packs{}
	ast, err := cc.Translate(cfg, t.sources(end))
	if err == nil {
		return ast, t.packs.unbalanced()
	}
	problems := problemsOf(err)
	for i, p := range problems {
		if p.file == endName {
			problems[i] = t.files.lastEnd
		}
	}
	if len(problems) == 0 {
		problems = append(problems, t.files.lastEnd)
	}
	return nil, problems
}

// config returns the settings of one pass over the headers.
func (t *translation) config(maxWork int, atMark func()) *cc.Config {
	abi, err := cc.NewABI("linux", "amd64")
	if err != nil {
		panic(err) // cc supports linux/amd64
	}
	return &cc.Config{
		ABI: abi, ExpansionLimit: maxWork, FS: t.files, FSOnly: true,
		IncludePaths:    append([]string{""}, t.folders...), // the empty path stands for the folder of the including file
		SysIncludePaths: t.folders,
		PragmaHandler:   t.pragmas(atMark),
	}
}

// sources returns the input of cc: what a compiler predefines, the umbrella
// file, and end.
func (t *translation) sources(end any) []cc.Source {
	return []cc.Source{
		{Name: "<predefined>", Value: t.predefined}, // cc treats this name specially
		{Name: "<builtin>", Value: builtinsFor(t.words)},
		{Name: t.source, Value: t.umbrella},
		{Name: endName, Value: end},
	}
}

// harmlessPragmas lists pragmas that are about warnings or about a library's
// exports only.
var harmlessPragmas = []string{"GCC diagnostic", "GCC visibility", "GCC system_header", "GCC warning", "clang diagnostic"}

// pragmaOperator is the file name that cc reports for a _Pragma: see
// TestCCPragmaOperator.
const pragmaOperator = "_Pragma_"

func isHarmless(pragma []string) bool {
	return len(pragma) > 1 && slices.Contains(harmlessPragmas, pragma[0]+" "+pragma[1])
}

// pragmas returns the handler for the pragmas in the headers. It obeys #pragma
// once, ignores harmless pragmas, records #pragma pack, and rejects all others.
// At a mark, it calls atMark.
func (t *translation) pragmas(atMark func()) func([]cc.Token) error {
	seen := map[string]bool{}
	return func(words []cc.Token) error {
		if len(words) == 0 {
			return nil
		}
		at, name := words[0].Position(), words[0].SrcStr()
		switch {
		case name == "once":
			// A second #pragma once in the same header has no
			// effect.
			place := fmt.Sprintf("%s:%d", filepath.Clean(at.Filename), at.Line)
			if seen[place] {
				return cc.SkipSource
			}
			seen[place] = true
		case at.Filename == endName:
			atMark()
		case len(words) > 1 && isHarmless([]string{name, words[1].SrcStr()}):
		case at.Filename == pragmaOperator:
			return fmt.Errorf("%v: _Pragma(%s) cannot be represented", at, name)
		case name == "pack":
			return t.packs.obey(words)
		default:
			return fmt.Errorf("%v: #pragma %s cannot be represented", at, name)
		}
		return nil
	}
}

// inPanic matches the position in a header that the text of a panic of cc
// contains.
var inPanic = regexp.MustCompile(`(\S+\.h):(\d+):(\d+)`)

// gaveUp returns the problem for a panic of cc, with the position that the text
// of the panic may name.
func (t *translation) gaveUp(text string) problem {
	p := t.files.somewhere("the C parser gives up; a header may include itself")
	if m := inPanic.FindStringSubmatch(text); m != nil {
		p.file = m[1]
		p.line, _ = strconv.Atoi(m[2])
		p.column, _ = strconv.Atoi(m[3])
	}
	return p
}
