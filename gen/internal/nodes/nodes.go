// SPDX-License-Identifier: Apache-2.0

// Package nodes reads the ELF version node of each function from the libraries.
// A node is a name such as IBVERBS_1.15. A linked program asks for a function
// under its node, and the node shows which release added the function.
package nodes

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
)

// Dir returns the folder of the libraries that belong to a folder with headers.
func Dir(headers string) string { return filepath.Join(headers, "usr", "lib") }

// Read returns the node of each function that the libraries in dir export.
// libraries has their file names. If dir has none of them, the error matches
// fs.ErrNotExist.
func Read(dir string, libraries []string) (map[string]string, error) {
	nodes := map[string]string{}
	var missing []error
	for _, name := range libraries {
		err := read(filepath.Join(dir, name), nodes)
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, err)
		} else if err != nil {
			return nil, err
		}
	}
	switch len(missing) {
	case 0:
		return nodes, nil
	case len(libraries):
		return nil, fmt.Errorf("%w: %s in %s", fs.ErrNotExist, strings.Join(libraries, " and "), dir)
	}
	return nil, fmt.Errorf("%s has only some of the libraries: %v", dir, missing[0])
}

func read(path string, nodes map[string]string) error {
	data, err := os.Open(path)
	if err != nil {
		return err
	}
	defer data.Close()
	file, err := elf.NewFile(data)
	if err != nil {
		return fmt.Errorf("%s is not an ELF library, or is incomplete: %w", path, err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("read the dynamic symbols of %s: %w", path, err)
	}
	for _, s := range symbols {
		defined := s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC
		// A hidden version is for programs that were linked with an
		// older library.
		if defined && s.HasVersion && !s.VersionIndex.IsHidden() && s.Version != "" {
			nodes[s.Name] = s.Version
		}
	}
	return nil
}

// Record adds to a snapshot the nodes, and the functions that a library exports
// although no header declares them as exported. Unless draft is set, it fails
// if a bound function is not exported, is exported only for private use, or has
// a node of another library than the header's. The error has a line for each
// such function.
func Record(a *api.API, nodes map[string]string, known *conventions.Table, draft bool) error {
	declared := map[string]bool{}
	for _, f := range a.Functions {
		declared[f.Name] = f.Inline == nil
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if !declared[name] && !isPrivate(nodes[name]) {
			a.Undeclared = append(a.Undeclared, &api.Export{Name: name, Node: nodes[name]})
		}
	}
	var errs []error
	for _, f := range a.Functions {
		if f.Inline != nil {
			continue
		}
		node := nodes[f.Name]
		if f.Private = isPrivate(node); !f.Private {
			f.Node = node
		}
		if f.Node != "" && !draft && !belongs(f.Node, known.Header(f.Header)) {
			errs = append(errs, fmt.Errorf("%s declares %s, whose node %s is that of another library than the one "+
				"to which the conventions assign the header", f.Header, f.Name, f.Node))
		}
		if f.Node != "" || draft || isSkipped(known, f.Name) {
			continue
		}
		why := unexported(known)
		if node != "" {
			why = "the library exports under the private node " + node + " only"
		}
		errs = append(errs, fmt.Errorf(`%s declares %s, which %s; if that is right, add skip="reason" to its line in the conventions`,
			f.Header, f.Name, why))
	}
	return errors.Join(errs...)
}

func isSkipped(known *conventions.Table, function string) bool {
	line := known.Funcs[function]
	return line != nil && line.Skip != ""
}

// unexported returns the words of an error that say that no library of the
// table exports a function.
func unexported(known *conventions.Table) string {
	var names []string
	for _, l := range known.Own() {
		names = append(names, l.Soname)
	}
	if len(names) == 1 {
		return names[0] + " does not export under a version node"
	}
	return "neither " + strings.Join(names, " nor ") + " exports under a version node"
}

// belongs reports whether a node such as IBVERBS_1.15 belongs to the library of
// the header's package.
func belongs(node string, header *conventions.Header) bool {
	library, _, _ := strings.Cut(node, "_")
	return header != nil && header.Package == "lib"+strings.ToLower(library)
}

func isPrivate(node string) bool { return strings.Contains(node, "_PRIVATE_") }
