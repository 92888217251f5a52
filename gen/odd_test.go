// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/included"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// newestHeaders returns a copy of the newest headers, for a test to change.
func newestHeaders(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(headertest.Dir(t, headertest.Newest(t)), "usr", "include"))))
	return dir
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(read(t, path)+text), 0o600))
}

// changedInput scans changed headers and returns what the bindings are made
// from; lines are added to the conventions.
func changedInput(t *testing.T, dir, lines string) (emit.Input, error) {
	t.Helper()
	facts := filepath.Join(headertest.Top(t), "headers")
	text := read(t, filepath.Join(facts, "conventions.txt")) + "\n" + lines
	known, err := conventions.Parse("conventions.txt", []byte(text))
	require.NoError(t, err)
	snapshot, err := makeSnapshot(facts, dir, "", headertest.Newest(t), known, false, "", io.Discard)
	if err != nil {
		return emit.Input{}, errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
	}
	in, err := emit.Load(facts)
	require.NoError(t, err)
	in.API, in.Snapshots, in.Known = snapshot, []*api.API{snapshot}, known
	in.Since, err = since.Parse("since.txt", nil)
	require.NoError(t, err)
	return in, nil
}

// TestOddHeaders makes bindings of headers with everything that C allows and
// has a form in Go: all of it compiles, with cgo and without.
func TestOddHeaders(t *testing.T) {
	dir, odd := newestHeaders(t), filepath.Join("testdata", "odd")
	for _, folder := range []string{"infiniband", "rdma"} {
		require.NoError(t, os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(odd, folder))))
	}
	appendTo(t, filepath.Join(dir, "infiniband", "verbs.h"), "\n#include <infiniband/odd.h>\n")
	appendTo(t, filepath.Join(dir, "rdma", "rdma_cma.h"), "\n#include \"odd.h\"\n")
	in, err := changedInput(t, dir, read(t, filepath.Join(odd, "conventions.txt")))
	require.NoError(t, err)
	out, top := t.TempDir(), headertest.Top(t)
	require.NoError(t, emit.Emit(in, out))

	// The packages stand where the real ones do, for what they import.
	overlay := map[string]map[string]string{"Replace": {}}
	for _, name := range []string{"libibverbs", "librdmacm"} {
		entries, err := os.ReadDir(filepath.Join(out, name))
		require.NoError(t, err)
		for _, e := range entries {
			overlay["Replace"][filepath.Join(top, "generated", name, e.Name())] = filepath.Join(out, name, e.Name())
		}
	}
	text, err := json.Marshal(overlay)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	for _, cgo := range []string{"1", "0"} {
		cmd := exec.Command("go", "vet", "-overlay", path, "./generated/...")
		cmd.Dir, cmd.Env = top, append(os.Environ(), "CGO_ENABLED="+cgo)
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "CGO_ENABLED=%s\n%s", cgo, output)
	}
	for _, name := range []string{"libibverbs", "librdmacm"} {
		roots, err := included.RootsOf("cc")
		require.NoError(t, err)
		messages, err := roots.Run(exec.Command("cc", "-Wall", "-Werror", "-fsyntax-only", filepath.Join(out, name, "stubs.c")), "")
		require.NoError(t, err, messages)
	}
	oddSkeleton(t, in, out)
}

// oddSkeleton writes the skeleton of a library with the odd headers, which
// compiles, too: the functions to a copy of the module, where it finds their
// declarations.
func oddSkeleton(t *testing.T, in emit.Input, generated string) {
	t.Helper()
	module, top := t.TempDir(), headertest.Top(t)
	for _, name := range []string{"internal/cerr", "internal/dl", "internal/enum"} {
		require.NoError(t, os.CopyFS(filepath.Join(module, name), os.DirFS(filepath.Join(top, name))))
	}
	require.NoError(t, os.CopyFS(filepath.Join(module, "generated"), os.DirFS(generated)))
	capi := filepath.Join(module, "softroce", "internal", "capi")
	require.NoError(t, emit.Skeleton(in, capi))
	for _, name := range []string{"go.mod", "go.sum", "softroce/internal/capi/results.go", "softroce/internal/capi/c.h", "softroce/internal/capi/call.h"} {
		require.NoError(t, os.WriteFile(filepath.Join(module, name), []byte(read(t, filepath.Join(top, name))), 0o600))
	}
	table := "package capi\n\nimport \"unsafe\"\n\nfunc table(int) unsafe.Pointer { return nil }\n" // by hand, in C
	require.NoError(t, os.WriteFile(filepath.Join(capi, "table.go"), []byte(table), 0o600))
	compile := []string{"cc", "-Wall", "-Werror", "-I.", "-fsyntax-only", "verbs_skeleton.c", "cm_skeleton.c"}
	output, err := inFolder(capi, compile)
	require.NoError(t, err, "%s", output)
	for _, pattern := range []string{"*_test.go", "*.c"} { // they would have vet link, without what is written by hand
		names, err := filepath.Glob(filepath.Join(capi, pattern))
		require.NoError(t, err)
		for _, name := range names {
			require.NoError(t, os.Remove(name))
		}
	}
	output, err = inFolder(capi, []string{"go", "vet", "."})
	require.NoError(t, err, "%s", output)
}

func inFolder(dir string, command []string) ([]byte, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	return cmd.CombinedOutput()
}

// wrong ends the error about a struct whose layout depends on the architecture.
const wrong = "for which the Go code would be wrong; to bind the name alone, say in the conventions: struct ibv_x opaque=\"why\""

// TestOddHeadersRefused has headers that lawful C may have and Go has no form
// for: the error has the line and names the declaration.
func TestOddHeadersRefused(t *testing.T) {
	tests := []struct{ name, text, lines, want string }{
		{
			"an opaque union", "struct ibv_x {\n\tint a;\n\tunion ibv_y *y;\n};", "",
			"3:2: member ibv_x.y: no Go type for union ibv_y",
		},
		{
			"functions with one name", "int ibv_x_y(int);\nint ibv_xY(int);", "func ibv_x_y code\nfunc ibv_xY code",
			"2:5: func ibv_xY: ibv_x_y and ibv_xY would both be called XY",
		},
		{
			"a function with the name of a struct", "int _ibv_x(int);\nstruct ibv_x { int a; };", "func _ibv_x code",
			"2:1: struct ibv_x: _ibv_x and struct ibv_x would both be called X",
		},
		{
			"a function with the name of a parser", "enum ibv_x { IBV_X };\nint ibv_parse_x(int);", "enum ibv_x values\nfunc ibv_parse_x code",
			"1:1: enum ibv_x: ibv_parse_x and the parser of enum ibv_x would both be called ParseX",
		},
		{
			"a function with the name of our own", "int ibv_be16(int);", "func ibv_be16 code",
			"1:5: func ibv_be16: the bindings' own Be16 and ibv_be16 would both be called Be16",
		},
		{
			"a function with the name of our C code", "int lacking(int);", "func lacking code",
			"1:5: func lacking: the bindings' own C code uses the name lacking for something else",
		},
		{
			"members with one name", "struct ibv_x {\n\tint a_b;\n\tint aB;\n};", "",
			"3:2: member ibv_x.aB: member ibv_x.a_b and member ibv_x.aB would both be called AB",
		},
		{
			"a member and a view with one name", "struct ibv_x {\n\tint a_b;\n\tunion {\n\t\tint aB;\n\t\tint c;\n\t};\n};", "",
			"4:3: member ibv_x.aB: member ibv_x.a_b and member ibv_x.aB would both be called AB",
		},
		{
			"members of a nested struct with one name", "struct ibv_x {\n\tstruct {\n\t\tint a_;\n\t\tint A;\n\t} in;\n};", "",
			"4:3: member ibv_x.in.A: member ibv_x.in.a_ and member ibv_x.in.A would both be called A",
		},
		{
			"a member's type with the name of a struct", "struct ibv_x_in { int a; };\nstruct ibv_x {\n\tstruct { int a; } in;\n};", "",
			"3:2: member ibv_x.in: struct ibv_x_in and the type of member ibv_x.in would both be called XIn",
		},
		{
			"a member without a letter", "struct ibv_x {\n\tint _;\n};", "",
			`2:2: member ibv_x._: member ibv_x._ would be called "" in Go, which programs cannot use`,
		},
		{
			"a member that begins with a digit", "struct ibv_x {\n\tint _1;\n};", "",
			`2:2: member ibv_x._1: member ibv_x._1 would be called "1" in Go, which programs cannot use`,
		},
		{
			"an enumerator with the name of a type", "enum ibv_x { IBV_X, Qp };", "enum ibv_x values",
			"1:21: enumerator Qp: struct ibv_qp and Qp would both be called Qp",
		},
		{
			"a lower-case macro", "\n#define ibv_x 5", "",
			`2:9: macro ibv_x: macro ibv_x would be called "ibv_x" in Go, which programs cannot use`,
		},
		{
			"macros with one name", "#define IBV_X 5\n#define __IBV_X 6", "",
			"2:9: macro __IBV_X: macro IBV_X and macro __IBV_X would both be called IBV_X",
		},
		{
			"a second name that is taken", "struct ibv_x { int a; };\n#define ibv__x ibv_x", "",
			"2:9: alias ibv__x: struct ibv_x and macro ibv__x would both be called X",
		},
		{
			"opaque structs with one name", "int ibv_x(struct ibv_o_a *, struct ibv_oA *);", "func ibv_x code",
			"1:5: func ibv_x: struct ibv_oA and struct ibv_o_a would both be called OA",
		},
		{
			"a type of the other library", "struct sockaddr_in;\nint ibv_x(struct rdma_cm_id *id);", "func ibv_x code",
			"2:5: func ibv_x: the declarations of rdma/rdma_cma.h are in package librdmacm, which package libibverbs cannot import",
		},
		{
			"a class that does not fit", "void ibv_x(int);", "func ibv_x code",
			"1:6: func ibv_x: a function of class code must return a number, but it returns void",
		},
		{
			"a mutex before bit-fields", "#include <pthread.h>\nstruct ibv_x { pthread_mutex_t m; unsigned int a : 3; };", "",
			"2:1: struct ibv_x: struct ibv_x.a is at bit 320 on amd64 and at bit 384 on arm64, " + wrong,
		},
		{
			"a struct with a mutex before bit-fields",
			"#include <pthread.h>\nstruct ibv_m { int n; pthread_mutex_t m; };\nstruct ibv_x { struct ibv_m m[2]; struct { unsigned int a : 3; }; };", "",
			"3:1: struct ibv_x: the unnamed member after struct ibv_x.m is at byte 96 on amd64 and at byte 112 on arm64, " + wrong,
		},
		{
			"a mutex before a flexible array", "#include <pthread.h>\nstruct ibv_x { pthread_mutex_t m; int a[]; };", "",
			"2:1: struct ibv_x: struct ibv_x.a is at byte 40 on amd64 and at byte 48 on arm64, " + wrong,
		},
		{
			"a mutex before a union", "#include <pthread.h>\nstruct ibv_x { pthread_mutex_t m; union { int a; char b; }; };", "",
			"2:1: struct ibv_x: the unnamed member after struct ibv_x.m is at byte 40 on amd64 and at byte 48 on arm64, " + wrong,
		},
		{
			"a mutex in a union", "#include <pthread.h>\nunion ibv_x { pthread_mutex_t m; int a; };", "",
			"2:1: union ibv_x: union ibv_x.m has 40 bytes on amd64 and 48 on arm64, " + wrong,
		},
		{
			"a packed mutex", "#include <pthread.h>\nstruct ibv_x { char c; pthread_mutex_t m; } __attribute__((packed));", "",
			"2:1: struct ibv_x: struct ibv_x.m has 40 bytes on amd64 and 48 on arm64, " + wrong,
		},
		{
			"a mutex before an aligned member", "#include <pthread.h>\nstruct ibv_x { pthread_mutex_t m; int b; int a __attribute__((aligned(16))); };", "",
			"2:1: struct ibv_x: struct ibv_x.a is at byte 48 on amd64 and at byte 64 on arm64, " + wrong,
		},
		{
			"a bit-field without a name that aligns", "struct ibv_x { char a; int : 5; char b; };", "",
			"1:1: struct ibv_x: struct ibv_x has 3 bytes on amd64 and 4 on arm64, " + wrong,
		},
		{
			"a bit-field of width 0 under #pragma pack", "#pragma pack(push, 1)\nstruct ibv_x { char a; int : 0; char b; };\n#pragma pack(pop)", "",
			"2:1: struct ibv_x: struct ibv_x has 5 bytes on amd64 and 8 on arm64, " + wrong,
		},
		{
			"a nameless enum that is named as a type", "enum ibv_x { IBV_X };", "enum ibv_x values name=-",
			"1:1: enum ibv_x: name=- is for enums without a tag",
		},
	}
	facts, dir := smallHeaders(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", "x.h"), []byte(tt.text+"\n"), 0o600))
			known, err := conventions.Parse("conventions.txt", []byte("header infiniband/verbs.h libibverbs\nheader rdma/rdma_cma.h librdmacm\n"+
				"header infiniband/x.h libibverbs\n"+tt.lines+"\n"))
			require.NoError(t, err)
			_, err = makeSnapshot(facts, dir, "", "1.0", known, false, "", io.Discard)
			require.Error(t, err)
			require.Equal(t, "infiniband/x.h:"+tt.want, strings.ReplaceAll(err.Error(), dir+"/", ""))
		})
	}
}

// TestMutexes has structs with a mutex that are taken, as Go places all that
// follows it.
func TestMutexes(t *testing.T) {
	facts, dir := smallHeaders(t)
	for _, text := range []string{
		"struct ibv_x { int a; pthread_mutex_t m; char c; struct { pthread_mutex_t m[3]; char c; } in; void *p; };",
		"struct ibv_x { unsigned int a : 3; pthread_mutex_t m; };",
		"struct ibv_m { pthread_mutex_t m; int a; }; struct ibv_x { unsigned int a : 3; struct ibv_m m; char c; };",
		"struct ibv_x { pthread_cond_t c; unsigned int a : 3; };",
		"struct ibv_x { union { int a; char b; }; pthread_mutex_t m; };",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", "x.h"), []byte("#include <pthread.h>\n"+text+"\n"), 0o600))
		known, err := conventions.Parse("conventions.txt", []byte("header infiniband/verbs.h libibverbs\nheader rdma/rdma_cma.h librdmacm\nheader infiniband/x.h libibverbs\n"))
		require.NoError(t, err)
		_, err = makeSnapshot(facts, dir, "", "1.0", known, false, "", io.Discard)
		require.NoError(t, err, text)
	}
}

// smallHeaders makes headers of both libraries, with a struct each, which
// include infiniband/x.h, and facts that have the umbrella and the shims alone.
func smallHeaders(t *testing.T) (facts, dir string) {
	t.Helper()
	facts, dir = t.TempDir(), t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(facts, "shim"), os.DirFS(filepath.Join(headertest.Top(t), "headers", "shim"))))
	for path, text := range map[string]string{
		filepath.Join(facts, "umbrella.h"):          "#include <rdma/rdma_cma.h>\n",
		filepath.Join(dir, "infiniband", "verbs.h"): "struct ibv_qp { int n; };\n#include <infiniband/x.h>\n",
		filepath.Join(dir, "rdma", "rdma_cma.h"):    "#include <infiniband/verbs.h>\nstruct rdma_cm_id { struct ibv_qp *qp; };\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return facts, dir
}
