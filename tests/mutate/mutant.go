// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is a change.
type mutant struct {
	number   int
	kind     string
	file     string // its name
	position token.Position
	function string // the one that it is in
	returns  bool   // it removes a return
	source   string // what it changes
	edits    []edit
	compiles bool
}

// place returns the file and line.
func (m *mutant) place() string { return fmt.Sprintf("%s:%d", m.file, m.position.Line) }

func (m *mutant) String() string {
	source := strings.Join(strings.Fields(m.source), " ")
	if len(source) > 90 {
		source = source[:90] + "..."
	}
	return fmt.Sprintf("%-22s %-10s %s", m.place(), m.kind, source)
}

// edit replaces bytes of a file. Of edits that insert at one place, those that
// close come first, the inner ones before the outer ones, and of those that
// open the outer ones.
type edit struct {
	at, end int
	text    string
	closes  bool
	depth   int // of the node; larger is further in
	number  int
}

// source is a package whose files are to be changed.
type source struct {
	path, name, dir string
	files           map[string]*file // by their names
	mutants         []*mutant
}

type file struct {
	path string
	text []byte
}

// load reads a package and finds its mutants.
func load(pattern string, files *regexp.Regexp) (*source, error) {
	list := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles", pattern)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pattern, err)
	}
	var listed struct {
		ImportPath, Name, Dir string
		GoFiles               []string
	}
	if err := json.Unmarshal(out, &listed); err != nil {
		return nil, fmt.Errorf("%s is not one package: %w", pattern, err)
	}
	s := &source{path: listed.ImportPath, name: listed.Name, dir: listed.Dir, files: map[string]*file{}}
	set := token.NewFileSet()
	for _, name := range listed.GoFiles {
		if !files.MatchString(name) {
			continue
		}
		path := filepath.Join(listed.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		s.files[name] = &file{path, text}
		f := finder{source: s, set: set, name: name, text: text}
		for _, decl := range parsed.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Body != nil {
				f.function = d.Name.Name
				f.keep = lastReturn(d.Body)
				f.walk(d.Body, 0)
			}
		}
	}
	return s, nil
}

// finder finds the mutants of a file.
type finder struct {
	*source
	set      *token.FileSet
	name     string
	text     []byte
	function string
	keep     ast.Stmt // a return without which the function does not compile
}

// lastReturn returns the return at the end of a function, or nil.
func lastReturn(body *ast.BlockStmt) ast.Stmt {
	if n := len(body.List); n > 0 {
		if last, ok := body.List[n-1].(*ast.ReturnStmt); ok {
			return last
		}
	}
	return nil
}

func (f *finder) offset(p token.Pos) int { return f.set.Position(p).Offset }

// add adds a mutant that calls a function around a node: open has a place for
// the number.
func (f *finder) add(kind string, n ast.Node, depth int, open, close string, more ...edit) *mutant {
	m := &mutant{
		number: len(f.mutants) + 1, kind: kind, file: f.name, position: f.set.Position(n.Pos()), function: f.function,
		source: string(f.text[f.offset(n.Pos()):f.offset(n.End())]), compiles: true,
	}
	begin, end := f.offset(n.Pos()), f.offset(n.End())
	m.edits = append(more,
		edit{at: begin, end: begin, text: fmt.Sprintf(open, m.number), depth: depth},
		edit{at: end, end: end, text: close, closes: true, depth: depth})
	for i := range m.edits {
		m.edits[i].number = m.number
	}
	f.mutants = append(f.mutants, m)
	return m
}

// Each node may have several mutants, which are as many levels of depth.
const levels = 4

func (f *finder) walk(n ast.Node, depth int) {
	if n == nil {
		return
	}
	switch n := n.(type) {
	case *ast.FuncLit:
		outer := f.keep
		f.keep = lastReturn(n.Body)
		f.walk(n.Body, depth+levels)
		f.keep = outer
		return
	case *ast.GenDecl: // constants and types; variables have few conditions
		return
	case *ast.BlockStmt:
		f.statements(n.List, depth)
	case *ast.CaseClause:
		f.statements(n.Body, depth)
	case *ast.CommClause:
		f.statements(n.Body, depth)
	case *ast.IfStmt:
		f.condition(n.Cond, depth)
	case *ast.ForStmt:
		f.condition(n.Cond, depth)
	case *ast.BinaryExpr:
		f.binary(n, depth)
	case *ast.ArrayType:
		return
	}
	for _, child := range children(n) {
		f.walk(child, depth+levels)
	}
}

// children returns the nodes right below a node.
func children(n ast.Node) (all []ast.Node) {
	ast.Inspect(n, func(child ast.Node) bool {
		if child == nil || child == n {
			return child == n
		}
		all = append(all, child)
		return false
	})
	return all
}

func (f *finder) statements(list []ast.Stmt, depth int) {
	for _, s := range list {
		depth := depth + levels - 1 // right outside the statement
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				f.remove(s, depth)
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt, *ast.BranchStmt:
			f.remove(s, depth)
		case *ast.ReturnStmt:
			if s != f.keep {
				f.remove(s, depth).returns = true
			}
		}
	}
}

func (f *finder) remove(s ast.Stmt, depth int) *mutant {
	return f.add("remove", s, depth, "if !mutantIs(%d) { ", " }")
}

// condition negates a condition that binary does not.
func (f *finder) condition(e ast.Expr, depth int) {
	if e == nil || isComparison(e) {
		return
	}
	f.add("negate", e, depth+levels-1, "mutantNot(%d, ", ")")
}

var boundaries = map[token.Token]string{
	token.LSS: "mutantLess(%d, ", token.LEQ: "mutantAtMost(%d, ", token.GTR: "mutantMore(%d, ", token.GEQ: "mutantAtLeast(%d, ",
}

func isComparison(e ast.Expr) bool {
	b, ok := e.(*ast.BinaryExpr)
	return ok && b.Op.Precedence() == token.EQL.Precedence()
}

func (f *finder) binary(b *ast.BinaryExpr, depth int) {
	operator := func(text string) edit {
		at := f.offset(b.OpPos)
		return edit{at: at, end: at + len(b.Op.String()), text: text}
	}
	switch b.Op {
	case token.LAND, token.LOR:
		force := "mutantTrue(%d, "
		if b.Op == token.LOR {
			force = "mutantFalse(%d, "
		}
		for _, operand := range []ast.Expr{b.X, b.Y} {
			f.add("force", operand, depth+levels-1, force, ")")
		}
	case token.ADD, token.SUB:
		open := "mutantPlus(%d, "
		if b.Op == token.SUB {
			open = "mutantMinus(%d, "
		}
		f.add("arithmetic", b, depth+1, open, ")", operator(", "))
	case token.EQL, token.NEQ:
		f.add("negate", b, depth, "mutantNot(%d, ", ")")
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		f.add("negate", b, depth, "mutantNot(%d, ", ")")
		f.add("boundary", b, depth+1, boundaries[b.Op], ")", operator(", "))
	}
}

// runtime is the file with the functions that the mutants call.
func (s *source) runtime() []byte {
	return fmt.Appendf(nil, functions, s.name)
}

const functions = `package %s

import (
	mutantcmp "cmp"
	mutantos "os"
	mutantstrconv "strconv"
	mutantatomic "sync/atomic"
)

// mutantNumber is the mutant to be, and mutantHits the file to write to which ones are reached.
var (
	mutantNumber, _ = mutantstrconv.Atoi(mutantos.Getenv("MUTATE_NUMBER"))
	mutantHits      = func() *mutantos.File {
		name := mutantos.Getenv("MUTATE_HITS")
		if name == "" {
			return nil
		}
		f, err := mutantos.OpenFile(name, mutantos.O_APPEND|mutantos.O_WRONLY, 0)
		if err != nil {
			panic(err)
		}
		return f
	}()
	mutantReached [1 << 16]mutantatomic.Bool
)

func mutantIs(n int) bool {
	if mutantHits != nil && !mutantReached[n].Swap(true) {
		mutantHits.WriteString(mutantstrconv.Itoa(n) + "\n")
	}
	return n == mutantNumber
}

func mutantNot[B ~bool](n int, b B) B   { return b != B(mutantIs(n)) }
func mutantTrue[B ~bool](n int, b B) B  { return b || B(mutantIs(n)) }
func mutantFalse[B ~bool](n int, b B) B { return b && !B(mutantIs(n)) }

func mutantLess[T mutantcmp.Ordered](n int, a, b T) bool    { return a < b || a == b && mutantIs(n) }
func mutantAtMost[T mutantcmp.Ordered](n int, a, b T) bool  { return a < b || a == b && !mutantIs(n) }
func mutantMore[T mutantcmp.Ordered](n int, a, b T) bool    { return a > b || a == b && mutantIs(n) }
func mutantAtLeast[T mutantcmp.Ordered](n int, a, b T) bool { return a > b || a == b && !mutantIs(n) }

type mutantNumeric interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64
}

func mutantPlus[T mutantNumeric](n int, a, b T) T {
	if mutantIs(n) {
		return a - b
	}
	return a + b
}

func mutantMinus[T mutantNumeric](n int, a, b T) T {
	if mutantIs(n) {
		return a + b
	}
	return a - b
}
`

// mutated returns the text of a file with all mutants that compile.
func (s *source) mutated(name string) []byte {
	var edits []edit
	for _, m := range s.mutants {
		if m.file == name && m.compiles {
			edits = append(edits, m.edits...)
		}
	}
	slices.SortStableFunc(edits, func(a, b edit) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case a.closes != b.closes:
			if a.closes {
				return -1
			}
			return 1
		case a.closes:
			return b.depth - a.depth
		}
		return a.depth - b.depth
	})
	var out bytes.Buffer
	text, at := s.files[name].text, 0
	for _, e := range edits {
		out.Write(text[at:e.at])
		out.WriteString(e.text)
		at = e.end
	}
	out.Write(text[at:])
	return out.Bytes()
}
