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

// patience bounds the processor time of the program for headers which all
// other limits let pass. What has no end by then goes on until the program
// ends.
var patience = 30 * time.Second

const (
	endName = "<end>" // of what is appended to the headers
	mark    = "#pragma verbena\n"
)

// translation is the reading of headers with cc.
type translation struct {
	system               []string // folders of libc's and the kernel's headers
	include, source      string
	predefined, umbrella string // texts
	files                *files
	packs                packs
	expansions           map[string][]string // of the macros that are object-like
}

// translated is what cc makes of the headers, and what it leaves out.
type translated struct {
	ast        *cc.AST
	unusable   map[string]unusable // the macros that cannot be evaluated
	opened     []string            // files
	texts      map[string]string   // of the files
	expansions map[string][]string // of the macros that are object-like
	packs      *packs
}

// translate has cc preprocess, parse and type-check the headers.
func translate(opts Options, include string) (*translated, error) {
	known := predefined()
	if opts.Libc == "" {
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
		system: systemDirs(opts), include: include, source: opts.Source, predefined: known, umbrella: string(umbrella),
		files: newFiles(systemDirs(opts), include, filepath.Dir(opts.Source)),
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
	}, report(r.problems)
}

// await returns what comes from done, or false if spent grows by more than
// patience before.
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
		if p := recover(); p != nil { // cc panics at what it does not expect
			ast, bad, problems = nil, nil, []problem{t.gaveUp(fmt.Sprint(p))}
		}
	}()
	bad, problems = t.preprocess()
	if len(problems) > 0 {
		return nil, nil, problems
	}
	if problems = t.syntax(); len(problems) > 0 {
		return nil, nil, problems
	}
	ast, problems = t.types(bad)
	return ast, bad, problems
}

// types type-checks the headers, and evaluates their macros but for the
// unusable ones. Those of which cc may have another value than C are also put
// into assertions, for the scanner to evaluate.
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
	folders := append(slices.Clone(t.system), t.include)
	abi, err := cc.NewABI("linux", "amd64")
	if err != nil {
		panic(err) // cc knows this one
	}
	return &cc.Config{
		ABI: abi, ExpansionLimit: maxWork, FS: t.files, FSOnly: true,
		IncludePaths:    append([]string{""}, folders...), // the empty one is the including file's
		SysIncludePaths: folders,
		PragmaHandler:   t.pragmas(atMark),
	}
}

// sources returns the headers, and what is appended to them.
func (t *translation) sources(end any) []cc.Source {
	return []cc.Source{
		{Name: "<predefined>", Value: t.predefined}, // the name is special to cc
		{Name: "<builtin>", Value: cc.Builtin},
		{Name: t.source, Value: t.umbrella},
		{Name: endName, Value: end},
	}
}

// harmlessPragmas are about warnings, and about what a library exports.
var harmlessPragmas = []string{"GCC diagnostic", "GCC visibility", "GCC system_header", "GCC warning", "clang diagnostic"}

// pragmaOperator is what cc calls the source of a _Pragma.
const pragmaOperator = "_Pragma_"

func isHarmless(pragma []string) bool {
	return len(pragma) > 1 && slices.Contains(harmlessPragmas, pragma[0]+" "+pragma[1])
}

// pragmas returns a handler for what cc leaves to its user. It honours once,
// ignores what a compiler's warnings are about, notes pack, which cc does not
// apply, and refuses all others.
func (t *translation) pragmas(atMark func()) func([]cc.Token) error {
	seen := map[string]bool{}
	return func(words []cc.Token) error {
		if len(words) == 0 {
			return nil
		}
		at, name := words[0].Position(), words[0].SrcStr()
		switch {
		case name == "once":
			// A second one in the same header says nothing new.
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

// inPanic finds the position of a header in the text of a panic of cc.
var inPanic = regexp.MustCompile(`(\S+\.h):(\d+):(\d+)`)

// gaveUp is the problem for a panic of cc, which names a position at best.
func (t *translation) gaveUp(text string) problem {
	p := t.files.somewhere("the C parser gives up; a header may include itself")
	if m := inPanic.FindStringSubmatch(text); m != nil {
		p.file = m[1]
		p.line, _ = strconv.Atoi(m[2])
		p.column, _ = strconv.Atoi(m[3])
	}
	return p
}
