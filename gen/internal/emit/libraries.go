// SPDX-License-Identifier: Apache-2.0

package emit

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// C programs call the skeleton through shared libraries that have the names of
// rdma-core's libraries. This file writes the C source and the linker map of
// each of them, with the version nodes of the original. Their functions call
// those of the library with the skeleton.

//go:embed c/library.c.tmpl
var librarySource string

//go:embed c/provider.c.tmpl
var providerSource string

//go:embed c/library.map.tmpl
var libraryMap string

// privateNodes is how the names of libibverbs' private version nodes begin.
// Behind it is a number that changes with the release. ibv_devinfo uses a
// function that is in such a node and that no header declares.
const privateNodes = "IBVERBS_PRIVATE_"

// node is a version node of a library.
type node struct {
	Name, Before string
	Symbols      []string
	number       []int // parts of the version in its name
}

// Libraries writes the libraries' files into dir.
func Libraries(in Input, dir string) error {
	all, err := packages(in)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, s := range skeletons(all) {
		s.check()
		if len(s.findings) > 0 {
			return fmt.Errorf("library %s: %w", s.name, s.failed())
		}
		data := map[string]any{"Marker": marker, "License": license, "Skeleton": s, "File": s.file, "Nodes": s.nodes(), "Private": s.privateNodes()}
		if files[s.name+".c"], err = s.execute(librarySource, data); err != nil {
			return err
		}
		if files[s.name+".map"], err = s.execute(libraryMap, data); err != nil {
			return err
		}
	}
	for _, p := range in.Providers {
		name, _, _ := strings.Cut(p.Soname, ".")
		data := map[string]any{"Marker": marker, "License": license, "Functions": p.Functions, "Nodes": providerNodes(p), "Private": []string(nil)}
		if files[name+".c"], err = all[0].execute(providerSource, data); err != nil {
			return err
		}
		if files[name+".map"], err = all[0].execute(libraryMap, data); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// nodes returns the version nodes of the library's exports, each with the node
// before it.
func (s *skeleton) nodes() []node {
	nodes := map[string][]string{}
	for _, f := range s.Versioned() {
		nodes[s.nodeOf(f)] = append(nodes[s.nodeOf(f)], f.Name())
	}
	for _, f := range s.Undeclared() {
		nodes[f.Node] = append(nodes[f.Node], f.Name)
	}
	return chain(nodes)
}

// Versioned returns the functions with a node in some snapshot. Programs cannot
// be linked to other functions.
func (s *skeleton) Versioned() []*provided {
	return s.which(func(f *provided) bool { return f.owner == "" && s.nodeOf(f) != "" })
}

// nodeOf returns the version node of a function, from the newest snapshot that
// has one. A snapshot that was made without the library has none.
func (s *skeleton) nodeOf(f *provided) string {
	for _, snapshot := range slices.Backward(s.Snapshots) {
		for _, known := range snapshot.Functions {
			if known.Name == f.Name() && known.Node != "" {
				return known.Node
			}
		}
	}
	return ""
}

// undeclared is a function that a library exports although no header declares
// it, with the line that defines it.
type undeclared struct{ Name, Node, Text string }

// Undeclared returns the undeclared functions that programs call. It leaves out
// those that convert structs of kernels before Linux 2.6.20.
func (s *skeleton) Undeclared() []undeclared {
	if s.verbs != nil {
		return nil
	}
	known := map[string]string{
		"ibv_dofork_range":    "int ibv_dofork_range(void *base, size_t size) { return 0; } /* no memory is pinned */",
		"ibv_dontfork_range":  "int ibv_dontfork_range(void *base, size_t size) { return 0; }",
		"ibv_get_sysfs_path":  "const char *ibv_get_sysfs_path(void) { return \"/sys\"; }",
		"ibv_read_sysfs_file": "int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size) { return soft_read_file(dir, file, buf, size); }",
	}
	var all []undeclared
	for _, snapshot := range slices.Backward(s.Snapshots) {
		for _, u := range snapshot.Undeclared {
			if text := known[u.Name]; text != "" {
				all = append(all, undeclared{u.Name, u.Node, text})
			}
		}
		if len(all) > 0 { // older snapshots have the same
			break
		}
	}
	return all
}

// privateNodes returns the private node of each release from that of the oldest
// snapshot to that of the newest.
func (s *skeleton) privateNodes() []string {
	if s.verbs != nil {
		return nil
	}
	major := func(version string) int {
		text, _, _ := strings.Cut(version, ".")
		n, _ := strconv.Atoi(text)
		return n
	}
	var all []string
	for n := major(s.Snapshots[0].Version); n <= major(s.API.Version); n++ {
		all = append(all, privateNodes+strconv.Itoa(n))
	}
	return all
}

func providerNodes(p *conventions.Provider) []node {
	nodes := map[string][]string{}
	for _, f := range p.Functions {
		nodes[f.Node] = append(nodes[f.Node], f.Name)
	}
	return chain(nodes)
}

// chain returns a version node for each name in symbols, ordered by their
// versions.
func chain(symbols map[string][]string) []node {
	var all []node
	for name, s := range symbols {
		slices.Sort(s)
		n := node{Name: name, Symbols: s}
		_, version, _ := strings.Cut(name, "_")
		for part := range strings.SplitSeq(version, ".") {
			number, _ := strconv.Atoi(part)
			n.number = append(n.number, number)
		}
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b node) int { return slices.Compare(a.number, b.number) })
	for i := 1; i < len(all); i++ {
		all[i].Before = all[i-1].Name
	}
	return all
}

// Alone returns what a function does while the process has no device, if that
// is not what the device does. librspreload makes every select(2) of a program
// rpoll(3), also before the program has sockets and in forked children.
func (f *provided) Alone() string {
	return map[string]string{
		"rpoll":   "soft_system_poll(fds, nfds, timeout)",
		"rselect": "soft_system_select(nfds, readfds, writefds, exceptfds, timeout)",
	}[f.Name()]
}

// PassOn returns the statements that call the skeleton's function.
func (f *provided) PassOn() string {
	var lines, args []string
	for i, param := range f.params {
		if i >= len(f.Type.Params) {
			lines = append(lines, fmt.Sprintf("%s = va_arg(list, %s);", param.t.C(param.stub), param.t.C("")))
		}
		args = append(args, param.stub)
	}
	if f.Type.Variadic {
		last := f.params[len(f.Type.Params)-1].stub
		lines = slices.Concat([]string{"va_list list;", "va_start(list, " + last + ");"}, lines, []string{"va_end(list);"})
	}
	call := "found(" + strings.Join(args, ", ") + ");"
	if f.Type.Elem.IsVoid() {
		lines = append(lines, "if (found)", "\t"+call)
	} else {
		lines = append(lines, "if (!found)", "\t"+f.refusal("ENOSYS"), "return "+call)
	}
	return "\t" + strings.Join(lines, "\n\t")
}

// Exports returns the declaration of the library's function.
func (f *provided) Exports() string {
	exported := *f
	exported.C = f.Name()
	return exported.Prototype()
}

// refusal returns the C statement with which a function fails with an errno.
func (f *function) refusal(errno string) string {
	switch f.Class {
	case conventions.Code, conventions.Wait:
		return "return " + errno + ";"
	case conventions.Negative, conventions.Minus:
		return "return -" + errno + ";"
	case conventions.Status, conventions.Count, conventions.EAI, conventions.Rereg, conventions.Poll:
		return "return errno = " + errno + ", -1;"
	case conventions.Pointer, conventions.List, conventions.Interior:
		return "return errno = " + errno + ", NULL;"
	case conventions.String:
		return "return \"\";"
	case conventions.Void:
		return "return;"
	}
	return "return 0;"
}
