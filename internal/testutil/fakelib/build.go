// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

//go:embed testdata
var testdata embed.FS

// read returns a file of testdata.
func read(name string) []byte {
	data, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		panic(err) // the file is part of this program
	}
	return data
}

// api is a snapshot of the C headers.
type api struct {
	Functions []function
	Structs   []structure
}

// function is a C function in a snapshot of the headers.
type function struct {
	Name, Header, Type string
	Params             []string
	Inline             *struct{ Call, Guard string }
}

// build compiles libibverbs and librdmacm without a device into dir. The
// functions in without are left out.
func build(dir string, without []string) error {
	a, err := snapshot()
	if err != nil {
		return err
	}
	for _, name := range []string{"libibverbs", "librdmacm"} {
		if err := compile(dir, name, list(a.Functions, name, without), []string{"fake.c"}); err != nil {
			return err
		}
	}
	return nil
}

// parts has the directory in headers of each library that has one of its own.
var parts = map[string]string{"libefa": "efa", "libibmad": "ibmad", "libibumad": "ibumad", "libmlx5": "mlx5"}

// soname returns the file name of a library.
func soname(name string) string {
	versions := map[string]string{"libibmad": "5", "libibumad": "3"}
	return name + ".so." + cmp.Or(versions[name], "1")
}

// drivers are the libraries of these that belong to a driver.
var drivers = []string{"libefa", "libmlx5"}

// buildPart compiles such a library without a device into dir.
func buildPart(dir, name string) error {
	a, err := load(filepath.Join(parts[name], "api"))
	if err != nil {
		return err
	}
	return compileWith(dir, name, name, list(a.Functions, "", nil), []string{"fake.c"})
}

// buildVendors compiles the libibverbs with a device, and the drivers'
// libraries that use it, into dir.
func buildVendors(dir string) error {
	if err := buildProvider(dir); err != nil {
		return err
	}
	base, err := snapshot()
	if err != nil {
		return err
	}
	for _, name := range drivers {
		folder := parts[name]
		a, err := load(filepath.Join(folder, "api"))
		if err != nil {
			return err
		}
		source := folder + ".c"
		err = compileWith(dir, name, name, vendorWrappers(a, base, source), []string{source, "vendor.h", "calls.h"},
			filepath.Join(dir, "libibverbs.so.1"))
		if err != nil {
			return err
		}
	}
	return nil
}

// buildProvider compiles the libibverbs with a device into dir.
func buildProvider(dir string) error {
	a, err := snapshot()
	if err != nil {
		return err
	}
	return compile(dir, "libibverbs", wrappers(a), providerFiles)
}

// buildCM compiles the libibverbs with a device, and the librdmacm that uses
// it, into dir.
func buildCM(dir string) error {
	if err := buildProvider(dir); err != nil {
		return err
	}
	a, err := snapshot()
	if err != nil {
		return err
	}
	return compile(dir, "librdmacm", cmWrappers(a), cmFiles, filepath.Join(dir, "libibverbs.so.1"))
}

// compile compiles a library from files of testdata, with the declarations of
// libibverbs and librdmacm. The first file includes the other files and
// functions.h, whose content is the parameter functions. others are libraries
// to link the library with.
func compile(dir, name, functions string, files []string, others ...string) error {
	return compileWith(dir, name, "librdmacm", functions, files, others...)
}

// compileWith is like compile, but uses the declarations of the generated
// package with that name.
func compileWith(dir, name, declarations, functions string, files []string, others ...string) error {
	sources := filepath.Join(dir, name)
	if err := os.Mkdir(sources, 0o700); err != nil {
		return err
	}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(sources, file), read(file), 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(sources, "functions.h"), []byte(functions), 0o600); err != nil {
		return err
	}
	args := []string{
		"-shared", "-fPIC", "-pthread", "-Wall", "-Werror",
		"-Wl,-Bsymbolic", // both libraries have functions of the same names; each must call its own
		"-I", filepath.Join(top(), "generated", declarations),
		"-o", filepath.Join(dir, soname(name)), filepath.Join(sources, files[0]),
	}
	cc := exec.Command("cc", append(args, others...)...)
	if out, err := cc.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cc.Args, err, out)
	}
	return nil
}

// top returns the root directory of the repository.
func top() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// snapshot reads the newest snapshot of the headers of libibverbs and
// librdmacm.
func snapshot() (api, error) { return load("api") }

// load reads the newest snapshot in a directory in headers.
func load(folder string) (a api, err error) {
	path, err := newest(filepath.Join(top(), "headers", folder))
	if err != nil {
		return a, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(data, &a)
}

// newest returns the snapshot of the highest version in a folder.
func newest(folder string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return "", err
	}
	if len(paths) == 0 {
		return "", fmt.Errorf("no snapshot in %s", folder)
	}
	return slices.MaxFunc(paths, func(a, b string) int { return slices.Compare(version(a), version(b)) }), nil
}

// version returns the numbers in the name of a snapshot, such as 65.0.json.
func version(path string) (numbers []int) {
	for part := range strings.SplitSeq(strings.TrimSuffix(filepath.Base(path), ".json"), ".") {
		n, _ := strconv.Atoi(part) // a part that is no number counts as 0
		numbers = append(numbers, n)
	}
	return numbers
}

// list returns the content of functions.h for the functions of a library, or
// for all functions if library is empty. The functions in without are left out.
func list(functions []function, library string, without []string) string {
	var b strings.Builder
	for _, f := range functions {
		switch {
		case library != "" && library != home(f.Header), slices.Contains(without, f.Name):
		case f.Inline == nil:
			fmt.Fprintf(&b, "EXPORTED(%s)\n", f.Name)
		case f.Inline.Call != "":
			b.WriteString(f.operation())
		}
	}
	return b.String()
}

// home returns the name of the library that has the functions of a header.
func home(header string) string {
	if strings.HasPrefix(header, "rdma/") {
		return "librdmacm"
	}
	return "libibverbs"
}

// operation returns the line in functions.h for an inline function that calls
// an operation. Inline.Call is the call, such as
// qp->context->ops.post_send(...), or vctx->advise_mr(...). In the latter form,
// Inline.Guard says which context vctx is.
func (f function) operation() string {
	owner := f.Inline.Guard
	if before, _, ok := strings.Cut(f.Inline.Call, "->ops."); ok {
		owner = before
	}
	object, _, _ := strings.Cut(owner, "->")
	if owner == "" {
		owner = "no_object"
		object, _, _ = strings.Cut(f.Inline.Call, "->")
	}
	params, _, _ := strings.Cut(strings.TrimPrefix(f.Type, "func("), ")")
	typ := strings.Split(params, ", ")[slices.Index(f.Params, object)]
	return fmt.Sprintf("OPERATION(%s, %s *, %s, %s, %s)\n",
		f.Name, strings.TrimPrefix(typ, "*"), object, owner, f.Inline.Call)
}
