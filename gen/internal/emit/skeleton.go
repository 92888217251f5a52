// SPDX-License-Identifier: Apache-2.0

package emit

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// The skeleton is the counterpart of the stubs: a library with the functions
// that they look up, and the operations of the objects that it makes. Functions
// that post, poll or only read an object are written in C by hand. All others
// call a Go function.

const capiPkg = module + "/softroce/internal/capi"

//go:embed c/skeleton.h.tmpl
var skeletonHeader string

//go:embed c/skeleton.c.tmpl
var skeletonSource string

//go:embed c/own_skeleton.c
var ownSkeleton string

// skeleton describes the skeleton of one C library: C functions with the same
// names, most of which call Go functions of package capi.
type skeleton struct {
	*pkg
	file      string // name of its files, without the ending
	typ       string // name of the Go struct with its functions
	functions []*provided
	tables    []table
}

// provided is a function of the skeleton: an exported one, or an operation.
type provided struct {
	*function
	C     string // name of the skeleton's C function
	inC   bool   // whether the C function never calls Go
	owner string // struct of the operation; empty for an exported function
	// through is the function by which programs call the operation.
	through string
}

// table is a C struct whose members are pointers to operations.
type table struct {
	Struct  string
	Context bool // whether Struct is verbs_context
	Members []entry
	Ops     []entry // operations of the ibv_context in a verbs_context
}

type entry struct{ Member, Function string }

// operations lists the structs whose operations programs call. It omits ibv_dm
// and ibv_wq, because the skeleton cannot make these objects.
var operations = []string{"ibv_context_ops", "verbs_context", "ibv_qp_ex", "ibv_cq_ex"}

// Skeleton writes the skeleton's files into dir.
func Skeleton(in Input, dir string) error {
	all, err := packages(in)
	if err != nil {
		return err
	}
	written := map[string][]byte{}
	for _, s := range skeletons(all) {
		files, err := s.render()
		if err != nil {
			return fmt.Errorf("skeleton of %s: %w", s.name, err)
		}
		for name, text := range files {
			written[s.file+name] = text
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range written {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Unwritten returns what the skeleton of in lacks, which the snapshot before
// did not need: the prototypes of the functions that stay in C and that no C
// file in dir defines, and what keeps it from being written. Without such a
// folder there is no skeleton.
func Unwritten(in Input, before *api.API, dir string) (prototypes, refused []string, err error) {
	source, err := sources(dir)
	if err != nil || source == "" {
		return nil, nil, err
	}
	old := in
	old.API = before
	have := map[string]bool{}
	for _, s := range skeletons(prepare(old)) {
		for _, f := range s.ByHand() {
			have[f.C] = true
		}
	}
	for _, s := range skeletons(prepare(in)) {
		unclear := map[string]bool{} // what is to be said of these decides
		for _, f := range s.findings {
			refused = append(refused, fmt.Sprintf("%s: %s: %s", in.API.Place(f.Of, f.Header), f.Of, f.Text))
			unclear[f.Of.Name] = true
		}
		for _, f := range s.ByHand() {
			if !have[f.C] && !unclear[f.through] && !strings.Contains(source, f.C+"(") {
				prototypes = append(prototypes, f.Prototype())
			}
		}
	}
	return prototypes, refused, nil
}

// sources returns the C files in dir that are written by hand.
func sources(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, path := range files {
		if strings.HasSuffix(path, "_skeleton.c") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	return all.String(), nil
}

func skeletons(all []*pkg) []*skeleton {
	verbs := &skeleton{pkg: all[0], file: "verbs_skeleton", typ: "Verbs"}
	cm := &skeleton{pkg: all[1], file: "cm_skeleton", typ: "CM"}
	for _, s := range []*skeleton{verbs, cm} {
		for _, f := range s.pkg.functions {
			if f.Function.Inline == nil && !f.Function.Private && f.Func != nil {
				s.functions = append(s.functions, s.exported(f))
			}
		}
	}
	verbs.addOperations()
	return []*skeleton{verbs, cm}
}

// exported returns the skeleton's function for a function that the library
// exports.
func (s *skeleton) exported(f *function) *provided {
	if n := len(f.forms); n > 0 { // the last one has the most arguments
		last := *f.forms[n-1]
		last.goName = f.goName
		f = &last
	}
	c := "soft_" + f.Name()
	return &provided{function: f, C: c, inC: f.staysInC()}
}

// staysInC reports whether the skeleton's function never calls Go.
func (f *function) staysInC() bool {
	return f.betweenPolls() || f.Class == conventions.Interior || f.Class == conventions.String || f.isOwn()
}

// isOwn reports whether own_skeleton.c defines the function.
func (f *function) isOwn() bool {
	return strings.Contains(ownSkeleton, " soft_"+f.Name()+"(") || strings.Contains(ownSkeleton, "*soft_"+f.Name()+"(")
}

// addOperations adds the functions of the operation tables. If an exported
// function has the name and prototype of an operation, it is the operation's
// function, too.
func (s *skeleton) addOperations() {
	var ops []entry
	for _, tag := range operations {
		t := table{Struct: tag, Context: tag == "verbs_context"}
		for _, m := range s.declared("struct " + tag).Members {
			if m.Type == nil || m.Type.Kind != api.Pointer || m.Type.Elem.Kind != api.Func {
				continue
			}
			if f := s.operation(tag, m); f != "" {
				t.Members = append(t.Members, entry{m.Name, f})
			}
		}
		switch tag {
		case "ibv_context_ops": // is in verbs_context
			ops = t.Members
			continue
		case "verbs_context":
			t.Ops = ops
		}
		s.tables = append(s.tables, t)
	}
}

// operation returns the name of the C function for an operation, or "" if the
// skeleton leaves the operation out.
func (s *skeleton) operation(tag string, m *api.Member) string {
	name := strings.TrimPrefix(m.Name, s.prefix)
	old, compat := strings.CutPrefix(name, "_compat_")
	if compat {
		name = old
	}
	t := m.Type.Elem
	if f := s.find(s.prefix + name); f != nil && f.Function.Inline == nil && f.Type.String() == t.String() {
		return "soft_" + f.Name()
	}
	through := s.caller(tag, m.Name)
	switch {
	case compat, strings.HasPrefix(name, "ABI_placeholder"):
		return ""
	case through == nil:
		s.at = of("member", tag+"."+m.Name, s.declared("struct "+tag).Header)
		s.fail("no function of the headers calls the operation")
		return ""
	}
	f := &function{
		Function: &api.Function{Name: name, Header: through.Header, Type: t, Params: slices.Clone(through.Function.ParamNames())},
		Func:     through.Func, goName: goName(name), stub: name,
	}
	if len(t.Params) > len(f.Function.Params) {
		f.Function.Params = append(f.Function.Params, "size") // size of the struct that the previous parameter points to
	}
	for i, name := range f.ParamNames() {
		f.params = append(f.params, s.param(f, name, t.Params[i]))
	}
	f.settle()
	s.functions = append(s.functions, &provided{
		function: f, C: "soft_" + name, owner: tag, through: through.Name(),
		inC: tag == "ibv_qp_ex" || tag == "ibv_cq_ex" || through.dataPath() || name == "bind_mw", // that posts
	})
	return "soft_" + name
}

// find returns the function of that name.
func (s *skeleton) find(name string) *function {
	for _, f := range s.pkg.functions {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// caller returns the function through which programs call an operation.
func (s *skeleton) caller(tag, member string) *function {
	if f := s.find(s.prefix + strings.TrimPrefix(member, s.prefix)); f != nil {
		return f
	}
	for _, f := range s.pkg.functions {
		if f.Inline == nil || !strings.HasSuffix(f.Inline.Call, "->"+member) && !strings.HasSuffix(f.Inline.Call, "."+member) {
			continue
		}
		if object := f.Type.Params[0].Elem; tag == "verbs_context" || object.Name == "struct "+tag || tag == "ibv_context_ops" {
			return f
		}
	}
	return nil
}

func (s *skeleton) render() (map[string][]byte, error) {
	s.check()
	if len(s.findings) > 0 {
		return nil, s.failed()
	}
	files := map[string][]byte{}
	data := map[string]any{
		"Marker": marker, "License": license, "Callable": callable, "File": s.file, "Skeleton": s, "Own": "",
	}
	if s.verbs == nil {
		data["Own"] = ownSkeleton
	}
	var err error
	if files[".h"], err = s.execute(skeletonHeader, data); err != nil {
		return nil, err
	}
	if files[".c"], err = s.execute(skeletonSource, data); err != nil {
		return nil, err
	}
	if files[".go"], err = s.capiFile(s.goSide)(); err != nil {
		return nil, err
	}
	files["_test.go"], err = s.capiFile(s.goTest)()
	return files, err
}
