//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

//go:embed testdata/fake.c
var source []byte

// function is what a snapshot of the headers says of one.
type function struct {
	Name, Header, Type string
	Params             []string
	Inline             *struct{ Call, Guard string }
}

// build compiles the two libraries into dir. They lack the functions named.
func build(dir string, without []string) error {
	_, file, _, _ := runtime.Caller(0)
	top := filepath.Join(filepath.Dir(file), "..", "..")
	functions, err := snapshot(top)
	if err != nil {
		return err
	}
	for _, name := range []string{"libibverbs", "librdmacm"} {
		sources := filepath.Join(dir, name)
		if err := os.Mkdir(sources, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(sources, "fake.c"), source, 0o600); err != nil {
			return err
		}
		list := []byte(list(functions, name, without))
		if err := os.WriteFile(filepath.Join(sources, "functions.h"), list, 0o600); err != nil {
			return err
		}
		cc := exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Werror",
			"-I", filepath.Join(top, "generated", "librdmacm"), // its abi.h has both libraries
			"-o", filepath.Join(dir, name+".so.1"), filepath.Join(sources, "fake.c"))
		if out, err := cc.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cc.Args, err, out)
		}
	}
	return nil
}

// snapshot reads the newest one.
func snapshot(top string) ([]function, error) {
	data, err := os.ReadFile(filepath.Join(top, "headers", "api", "65.0.json"))
	if err != nil {
		return nil, err
	}
	var api struct{ Functions []function }
	err = json.Unmarshal(data, &api)
	return api.Functions, err
}

// list writes functions.h for a library.
func list(functions []function, library string, without []string) string {
	var b strings.Builder
	for _, f := range functions {
		switch {
		case library != home(f.Header), slices.Contains(without, f.Name):
		case f.Inline == nil:
			fmt.Fprintf(&b, "EXPORTED(%s)\n", f.Name)
		case f.Inline.Call != "":
			b.WriteString(f.operation())
		}
	}
	return b.String()
}

func home(header string) string {
	if strings.HasPrefix(header, "rdma/") {
		return "librdmacm"
	}
	return "libibverbs"
}

// operation writes the line of an inline function, whose body is a call such
// as qp->context->ops.post_send(...), or vctx->advise_mr(...) for the context
// that Guard has.
func (f function) operation() string {
	owner := f.Inline.Guard
	if before, _, ok := strings.Cut(f.Inline.Call, "->ops."); ok {
		owner = before
	}
	object, _, _ := strings.Cut(owner, "->")
	if owner == "" {
		owner = "nobody"
		object, _, _ = strings.Cut(f.Inline.Call, "->")
	}
	params, _, _ := strings.Cut(strings.TrimPrefix(f.Type, "func("), ")")
	typ := strings.Split(params, ", ")[slices.Index(f.Params, object)]
	return fmt.Sprintf("OPERATION(%s, %s *, %s, %s, %s)\n",
		f.Name, strings.TrimPrefix(typ, "*"), object, owner, f.Inline.Call)
}
