// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/bind"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// client is a module of another repository.
type client struct{ dir string }

// newClient makes an empty module, which requires no other.
func newClient(t *testing.T) *client {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	c := &client{dir}
	c.write(t, "go.mod", "module example.org/tools\n\ngo 1.26.0\n")
	return c
}

func (c *client) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(c.dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func (c *client) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(text)
}

// edit replaces the first text by the second in a file, and so on.
func (c *client) edit(t *testing.T, name string, pairs ...string) {
	t.Helper()
	text := c.read(t, name)
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, text, pairs[i])
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	c.write(t, name, text)
}

// goTool runs the go command in the module.
func (c *client) goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = c.dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", cmd, out)
	require.NotContains(t, string(out), "warning", "the C compiler's")
	return string(out)
}

// files returns the content of all files in a folder.
func (c *client) files(t *testing.T, folder string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(filepath.Join(c.dir, folder), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			var text []byte
			text, err = os.ReadFile(path)
			all[path] = string(text)
		}
		return err
	}))
	return all
}

// libcOfShims makes a folder that has the project's shims where musl's headers
// are expected.
func libcOfShims(t *testing.T) string {
	libc := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(libc, "usr", "include", "x86_64-linux-musl"), os.DirFS(filepath.Join(headertest.Top(t), "headers", "shim"))))
	return libc
}

const (
	notInline   = "1 inline function is not bound: only the header has its body, and the package is built without it.\n"
	pointInline = "static inline int point_twice(int n) { return 2 * n; }\n"
	pointHeader = `#pragma once
#include <linux/types.h>
#include <point/units.h>

#ifdef __GNUC__
#define POINT_PACKED __attribute__((packed))
#else
#define POINT_PACKED
#endif
struct point_wire { char kind; int length; } POINT_PACKED;
struct point { int x, y; };
struct point_turned { unsigned int axes; };
struct point_flags { unsigned int is_set : 1, count : 7; };
typedef int (*point_visit)(void *of, int n);
enum point_axis { POINT_X = 1, POINT_Y = 2, POINT_Z = 4 };
#ifdef __x86_64__
#define POINT_PAGE 4096
#else
#define POINT_PAGE 65536
#endif
#define POINT_MAX 7
#define POINT_INLINE inline
struct point point_mirror(struct point p, enum point_axis axis);
int point_open(const char *name, unit *id);
int point_turn(int axes, unsigned int *left);
int point_find(const char *all, int all_size);
int point_each(point_visit visit, void *of);
int point_print(const char *format, __builtin_va_list list);
int point_next(void);
#define point_next() 3
extern int point_count;
__be32 point_order(__be32 n);
`
	pointUnits  = "typedef unsigned int unit;\n"
	pointSource = `#include <errno.h>
#include <string.h>
#include "point.h"
#undef point_next
int point_count = 5;
struct point point_mirror(struct point p, enum point_axis axis) { if (axis & POINT_X) p.x = -p.x; if (axis & POINT_Y) p.y = -p.y; return p; }
int point_open(const char *name, unit *id) { if (strcmp(name, "origin")) { errno = ENOENT; return -1; } *id = 42; return 0; }
int point_turn(int axes, unsigned int *left) { *left = ~axes & 7; return axes; }
int point_find(const char *all, int all_size) { for (int i = 0; i < all_size; i++) if (all[i] == 'x') return i; return -ENOENT; }
int point_each(point_visit visit, void *of) { return visit != 0; }
int point_print(const char *format, __builtin_va_list list) { return 0; }
int point_next(void) { return 9; }
__be32 point_order(__be32 n) { return n; }
`
	pointProgram = `package main

import (
	"errors"
	"fmt"
	"syscall"

	"example.org/tools/point"
)

func main() {
	p, err := point.Mirror(point.Point{X: 3, Y: 4}, point.POINT_X|point.POINT_Y)
	fmt.Println(p, err)
	if err != nil {
		return
	}
	id, err := point.Open("origin")
	fmt.Println(id, err)
	_, err = point.Open("elsewhere")
	fmt.Println(err, errors.Is(err, syscall.ENOENT))
	_, err = point.Open("") // no NULL, which C would follow
	fmt.Println(errors.Is(err, syscall.ENOENT))
	id, err = point.Open("origin\x00and more")
	fmt.Println(id, err, errors.Is(err, syscall.EINVAL))
	memory := []byte("\x00\x00x")
	at, err := point.Find(&memory[0], int32(len(memory)))
	fmt.Println(at, err)
	_, err = point.Find(nil, 0)
	fmt.Println(err)
	var turned point.Turned
	done, left, err := point.Turn(point.POINT_X | point.POINT_Z)
	turned.Axes = done | left
	fmt.Println(done, left, turned.Axes, err)
	next, err := point.Next()
	fmt.Println(next, err)
	count, err := point.Count()
	fmt.Println(*count, err)
	order, err := point.Order(point.NewBe32(1))
	fmt.Println(order.Host(), err)
	err = point.Lost()
	fmt.Println(err, errors.Is(err, errors.ErrUnsupported))
	fmt.Println(point.POINT_Y, point.POINT_MAX)
}
`
)

// TestBind takes a header in another module from nothing to a package, and
// follows the header when it moves.
func TestBind(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a package")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	c := newClient(t)
	c.write(t, "c/point.h", pointHeader+pointInline+"int point_lost(void);\n")
	c.write(t, "more/point/units.h", pointUnits)
	c.write(t, "c/point.c", pointSource)
	t.Setenv("CC", "cc -isystem "+filepath.Join(c.dir, "more")) // so that the compiler knows the folder
	t.Setenv("CGO_CFLAGS", "-I"+filepath.Join(c.dir, "c"))
	t.Setenv("LD_LIBRARY_PATH", c.dir)
	cc := exec.Command("cc", "-I", filepath.Join(c.dir, "c"), "-isystem", filepath.Join(c.dir, "more"), "-shared", "-fPIC", "-o", filepath.Join(c.dir, "libpoint.so.1"),
		filepath.Join(c.dir, "c", "point.c"))
	out, err := cc.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Chdir(c.dir)
	libc := libcOfShims(t)
	again := func() (string, error) {
		var said bytes.Buffer
		err := bind.Run(bind.Options{Header: "point.h", Include: "c", Library: "libpoint.so.1", Into: "point", Libc: libc}, &said)
		return said.String(), err
	}

	said, err := again()
	require.ErrorIs(t, err, bind.ErrUndecided)
	require.Contains(t, said, "10 func ")
	require.Contains(t, said, notInline)
	table := c.read(t, "point/conventions.txt")
	require.Contains(t, table, "\nlibrary point libpoint.so.1 prefix=point_ debian=- fedora=- program=-  # unread\n\nheader point.h point\n")
	_, proposed, _ := strings.Cut(table, "\nheader point.h point\n")
	require.Equal(t, `
header point/units.h point  # unread

macro POINT_PAGE skip="arm64 has another value"  # unread

# int point_print(const char *format, __builtin_va_list list);
func point_print value skip="the type __builtin_va_list of point_print cannot be represented"  # unread

enum point_axis flags  # unread

# struct point point_mirror(struct point p, enum point_axis axis);
func point_mirror value  # unread
`, proposed[:strings.Index(proposed, "\n# int point_open")], table)
	require.Equal(t, 1, len(c.files(t, "point")), "the package is not written yet")

	c.edit(t, "point/conventions.txt", "func point_open value", "func point_open status out=id # mine:", "func point_lost value", "func point_lost status",
		"func point_find value bytes=all  # unread", "func point_find negative bytes=all",
		"func point_turn value  # unread", "func point_turn value out=left enum=axes:point_axis,left:point_axis,return:point_axis\nstruct point_turned enum=axes:point_axis")
	_, err = again()
	require.ErrorIs(t, err, bind.ErrUndecided)
	c.edit(t, "point/conventions.txt", "  # unread", "", "debian=-", "debian=libpoint1")
	decided := c.read(t, "point/conventions.txt")
	said, err = again()
	require.NoError(t, err)
	require.Regexp(t, `^example.org/tools/point: 9 functions and variables of libpoint.so.1, 4 structs, 1 enums, 1 constants; cc agrees with \d+ facts for linux/`, said)
	require.True(t, strings.HasSuffix(said, "\n"+notInline), said)
	require.Equal(t, decided, c.read(t, "point/conventions.txt"))

	c.goTool(t, "vet", "./...")
	require.NotContains(t, c.goTool(t, "list", "-deps", "-test", "./point"), "verbena")
	tests := c.goTool(t, "test", "-v", "./point")
	for _, name := range []string{"TestLayout", "TestUnions", "TestEnums", "TestHeader", "TestByteOrder"} {
		require.Contains(t, tests, "--- PASS: "+name)
	}
	c.write(t, "main.go", pointProgram)
	require.Equal(t, "{-3 -4} <nil>\n42 <nil>\npoint_open: no such file or directory true\ntrue\n"+
		"0 point_open: name contains a zero byte true\n2 <nil>\npoint_find: all is nil\n"+
		"POINT_X|POINT_Z POINT_Y POINT_X|POINT_Y|POINT_Z <nil>\n9 <nil>\n5 <nil>\n1 <nil>\n"+
		"point_lost: the installed libpoint.so.1 does not have it true\nPOINT_Y 7\n", c.goTool(t, "run", "."))
	require.NoError(t, os.Remove(filepath.Join(c.dir, "libpoint.so.1")))
	require.Contains(t, c.goTool(t, "run", "."), "cannot load libpoint.so.1 (on Debian and Ubuntu install libpoint1): ")

	before := c.files(t, "point")
	_, err = again()
	require.NoError(t, err)
	require.Equal(t, before, c.files(t, "point"), "the same header gives the same files")
	require.NoError(t, run([]string{"check", "-into", "point", "-I", "c", "-libc", libc}))

	// The header moves.
	c.edit(t, "c/point.h", "POINT_Z = 4", "POINT_Z = 8", "int point_lost(void);", "int point_found(int where);", "POINT_INLINE inline", "POINT_PLAIN plain")
	require.ErrorIs(t, run([]string{"check", "-into", "point", "-I", "c", "-libc", libc}), bind.ErrDifferent)
	said, err = again()
	require.ErrorIs(t, err, bind.ErrUndecided)
	for _, want := range []string{"# point.h has changed", "POINT_Z", "`point_lost`", "point_found", "1 func "} {
		require.Contains(t, said, want)
	}
	require.Equal(t, decided+"\n# int point_found(int where);\nfunc point_found value  # unread\n\nmacro POINT_PLAIN skip=\"it has no value\"  # unread\n",
		c.read(t, "point/conventions.txt"))
	test := exec.Command("go", "test", "./point")
	text, err := test.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(text), "POINT_Z value is not 4")
	c.edit(t, "point/conventions.txt", "  # unread", "")
	_, err = again()
	require.ErrorContains(t, err, "a line for the function point_lost, which the headers do not have")
	require.ErrorContains(t, err, "a line for the macro POINT_INLINE, which the headers do not have")
	delete(before, filepath.Join(c.dir, "point", "conventions.txt"))
	for name, text := range before {
		require.Equal(t, text, c.read(t, strings.TrimPrefix(name, c.dir)), "a run that fails writes nothing")
	}
	c.edit(t, "point/conventions.txt", "func point_lost status\n", "", "macro POINT_INLINE skip=\"it has no value\"\n", "")
	_, err = again()
	require.NoError(t, err)
	c.edit(t, "main.go", "err = point.Lost()", "_, err = point.Found(1)")
	c.goTool(t, "vet", "./...")
	c.goTool(t, "test", "./point")

	// What a person has put into the folder stays, and stops the command.
	c.write(t, "point/wrapper.go", "package point\n")
	_, err = again()
	require.ErrorContains(t, err, "has files that gen has not written: wrapper.go; ")
	require.Equal(t, "package point\n", c.read(t, "point/wrapper.go"))
	require.NoError(t, os.Remove(filepath.Join(c.dir, "point", "wrapper.go")))

	// A struct that is no more, and its layouts, leave no file behind.
	c.write(t, "c/point.h", "int point_next(void);\n")
	c.write(t, "point/conventions.txt", "library point libpoint.so.1 prefix=point_ debian=- fedora=- program=-\nheader point.h point\nfunc point_next value\n")
	_, err = again()
	require.NoError(t, err)
	after := c.files(t, "point")
	require.NotContains(t, after, filepath.Join(c.dir, "point", "layout_test.go"))
	require.NotContains(t, after, filepath.Join(c.dir, "point", "testdata", "point.layout"))
	c.goTool(t, "test", "./point")
}

// TestBindRefuses shows what each mistake is answered with, and that it writes
// nothing.
func TestBindRefuses(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	libc := libcOfShims(t)
	const header = "int x_call(int n);\nenum x_kind { X_A, X_B };\n"
	for name, tt := range map[string]struct {
		files   map[string]string // of the module; empty content removes one
		env     string
		options bind.Options // those that are empty are right
		want    string
	}{
		"no module":          {files: map[string]string{"go.mod": ""}, want: "the current folder is not in a module: run go mod init first"},
		"outside":            {options: bind.Options{Into: "../x"}, want: "-into ../x: the folder is not in the module in "},
		"another module":     {files: map[string]string{"sub/go.mod": "module sub\n"}, options: bind.Options{Into: "sub/x"}, want: "-into sub/x: the folder is in another module, of "},
		"vendor":             {options: bind.Options{Into: "vendor/x"}, want: "-into vendor/x: Go ignores folders that are called vendor"},
		"hidden":             {options: bind.Options{Into: "_a/x"}, want: "-into _a/x: Go ignores folders that are called _a"},
		"file":               {options: bind.Options{Into: "go.mod"}, want: "go.mod is not a folder"},
		"no identifier":      {options: bind.Options{Into: "go-x"}, want: `-into go-x: the package would be called "go-x", which is not an identifier of Go: choose another folder`},
		"keyword":            {options: bind.Options{Into: "type"}, want: `-into type: the package would be called "type", which is not an identifier of Go`},
		"main":               {options: bind.Options{Into: "main"}, want: `-into main: the package would be called "main", which is reserved`},
		"upper case":         {options: bind.Options{Into: "Lib"}, want: `-into Lib: the package would be called "Lib", which is not a lower-case word`},
		"file name":          {options: bind.Options{Library: "/usr/lib/libx.so.1"}, want: "-library /usr/lib/libx.so.1: expected a soname, such as libx.so.1, rather than a path"},
		"no soname":          {options: bind.Options{Library: "x"}, want: "-library x: expected a soname, such as libnuma.so.1; readelf -d FILE shows that of a library"},
		"no header":          {options: bind.Options{Header: "y.h"}, want: "-header y.h: the folder of -I, c, has no such header"},
		"header in a folder": {options: bind.Options{Header: "../c/x.h"}, want: "-header ../c/x.h: the folder of -I, c, has no such header"},
		"missing include": {files: map[string]string{"c/x.h": "#include <nosuch.h>\n"}, want: "c/x.h:1:10: include file not found: <nosuch.h>\n" +
			"the folders of headers are "},
		"syntax":                {files: map[string]string{"c/x.h": "int x_call(;\n"}, want: "the headers end in the middle of a declaration"},
		"no form in Go":         {files: map[string]string{"c/x.h": "struct x { long double d; };\nint x(struct x *);\n"}, want: "conventions.txt leave out what has no form in Go, or give it another name:"},
		"name of libc's":        {files: map[string]string{"c/stdint.h": "int x_call(void);\n"}, options: bind.Options{Header: "stdint.h"}, want: "-header stdint.h: the C library has a header of this name; name yours with its folder: -I "},
		"no usable name":        {files: map[string]string{"c/x.h": "struct x { int _; };\nint x_call(struct x *);\n", "x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call value\n"}, want: "\n    struct TAG opaque=\"why\" "},
		"nothing":               {files: map[string]string{"c/x.h": "\n"}, want: "x.h: nothing is declared in the headers that are bound"},
		"hand-written":          {files: map[string]string{"x/x.go": "package x\n", "x/README.md": "Hello\n"}, want: "has files that gen has not written: README.md, x.go; "},
		"hand-written below":    {files: map[string]string{"x/internal/dl/x.go": "package dl\n"}, want: "has files that gen has not written: internal/dl/x.go; "},
		"second header":         {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader y.h x\n"}, want: "the package in x is for y.h, not for x.h: use another folder for each header"},
		"other library":         {files: map[string]string{"x/conventions.txt": "library x libx.so.2 prefix=x_ debian=- fedora=- program=-\nheader x.h x\n"}, want: "x/conventions.txt says that the library is libx.so.2, but -library says libx.so.1"},
		"other table":           {files: map[string]string{"x/conventions.txt": "header x.h libibverbs\n"}, want: "x/conventions.txt: expected exactly one line for a library, which begins with: library x"},
		"broken table":          {files: map[string]string{"x/conventions.txt": "library x\n"}, want: `x/conventions.txt:1: expected at least three words, found "library x"`},
		"class of rdma-core":    {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call rereg\n"}, want: "x/conventions.txt: func x_call: the class rereg is for functions of rdma-core"},
		"function of rdma-core": {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call code inline=own\n"}, want: "x/conventions.txt: func x_call: inline=own is for functions of rdma-core"},
		"wrong class":           {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call pointer\nenum x_kind values\n"}, want: "x.h:1:5: func x_call: a function of class pointer must return a pointer, but it returns int"},
		"no such parameter":     {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call code nil=m\nenum x_kind values\n"}, want: "the conventions name a parameter m of x_call, which has no such parameter"},
		"no such enum":          {files: map[string]string{"x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call code enum=n:x_kin\nenum x_kind values\n"}, want: "x/conventions.txt:3: the line for x_call names an enum x_kin, which the headers do not have"},
		"no integer":            {files: map[string]string{"c/x.h": "int x_call(double n);\nenum x_kind { X_A, X_B };\n", "x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call code enum=n:x_kind\nenum x_kind values\n"}, want: "x/conventions.txt:3: the line for x_call gives n the type of enum x_kind, but it is double, not an integer of 4 bytes"},
		"no such member":        {files: map[string]string{"c/x.h": "int x_call(int n);\nenum x_kind { X_A, X_B };\nstruct x { int a; };\n", "x/conventions.txt": "library x libx.so.1 prefix=x_ debian=- fedora=- program=-\nheader x.h x\nfunc x_call code\nenum x_kind values\nstruct x enum=b:x_kind\n"}, want: "x/conventions.txt:5: the line for struct x names a member b, which the headers do not have"},
		"no cgo":                {env: "CGO_ENABLED=0", want: "cgo is disabled, but the package needs it to call C: install a C compiler, such as gcc, and set CGO_ENABLED=1"},
		"no compiler":           {env: "CC=nosuchcc", want: "the C compiler that cgo uses: nosuchcc does not work: "},
		"no cross compiler":     {options: bind.Options{Compilers: "nosuchcc"}, want: "-cc: nosuchcc does not work: "},
		"no libc":               {options: bind.Options{Libc: "c"}, want: "-libc c: the folder has no usr/include/x86_64-linux-musl/stdio.h, which is in Debian's package musl-dev"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.write(t, "c/x.h", header)
			for name, text := range tt.files {
				if text == "" {
					require.NoError(t, os.Remove(filepath.Join(c.dir, name)))
				} else {
					c.write(t, name, text)
				}
			}
			t.Chdir(c.dir)
			t.Setenv("GOFLAGS", "")
			t.Setenv("CGO_ENABLED", "1")
			if key, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(key, value)
			}
			o := bind.Options{Header: "x.h", Include: "c", Library: "libx.so.1", Into: "x", Libc: libc}
			for _, field := range []struct {
				to *string
				is string
			}{{&o.Header, tt.options.Header}, {&o.Library, tt.options.Library}, {&o.Into, tt.options.Into}, {&o.Libc, tt.options.Libc}, {&o.Compilers, tt.options.Compilers}} {
				if field.is != "" {
					*field.to = field.is
				}
			}
			before := c.files(t, ".")
			require.ErrorContains(t, bind.Run(o, io.Discard), tt.want)
			after := c.files(t, ".")
			delete(after, filepath.Join(c.dir, "x", "conventions.txt")) // which is for what has no form in Go
			delete(before, filepath.Join(c.dir, "x", "conventions.txt"))
			require.Equal(t, before, after)
		})
	}
	require.EqualError(t, run([]string{"bind", "-into", "x"}), "bind needs the flags -header, -library and -into")
	require.ErrorContains(t, run([]string{"check", "-into", "internal/bind"}), "internal/bind has no conventions.txt: gen bind has not made this folder")
}

// boundElsewhere are libraries whose headers TestBindOthers binds as a person
// would do it in another repository.
var boundElsewhere = []struct {
	folder, header, soname string
	decisions              map[string]string // lines, by their beginnings
	program, want          string
}{
	{
		"numa", "numa.h", "libnuma.so.1",
		map[string]string{"library numa libnuma.so.1": ` prefix=numa_ debian="libnuma1" fedora="numactl-libs" program=-`},
		`package main

import (
	"fmt"
	"log"

	"example.org/tools/numa"
)

func main() {
	available, err := numa.Available()
	if err != nil {
		log.Fatal(err)
	}
	last, err := numa.MaxNode()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(available, last)
}
`, `^(0|-1) \d+\n$`,
	},
	{
		"rados", "rados/librados.h", "librados.so.2",
		map[string]string{
			"func rados_version": " void out=major,minor,extra", "func rados_create": " status nil=id out=cluster",
			"func rados_conf_set": " status", "func rados_conf_get": " status",
		},
		`package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"syscall"

	"example.org/tools/rados"
)

func main() {
	major, _, _, err := rados.Version()
	if err != nil {
		log.Fatal(err)
	}
	cluster, err := rados.Create("")
	if err != nil {
		log.Fatal(err)
	}
	defer rados.Shutdown(cluster)
	if err := rados.ConfSet(cluster, "mon_host", "192.0.2.1"); err != nil {
		log.Fatal(err)
	}
	value := make([]byte, 64)
	if err := rados.ConfGet(cluster, "mon_host", &value[0], uint64(len(value))); err != nil {
		log.Fatal(err)
	}
	err = rados.ConfSet(cluster, "no_such_option", "1")
	fmt.Printf("%d %s %t\n", major, value[:bytes.IndexByte(value, 0)], errors.Is(err, syscall.ENOENT))
}
`, `^[1-9]\d* 192\.0\.2\.1 true\n$`,
	},
}

// TestBindOthers runs the command in an empty module, as a person would, for
// headers that are downloaded, and calls the libraries. Where VERBENA_OTHERS is
// set, as for TestOtherHeaders, both must be here.
func TestBindOthers(t *testing.T) {
	if os.Getenv("VERBENA_OTHERS") == "" {
		t.Skip("VERBENA_OTHERS names no C compilers; scripts/test check does")
	}
	cache, err := filepath.Abs(headertest.Cache(t))
	require.NoError(t, err)
	include := filepath.Join(cache, "others", "usr", "include")
	require.FileExists(t, filepath.Join(cache, "others", ".complete"), "scripts/fetch-others brings the headers")
	c := newClient(t)
	sums, err := os.ReadFile(filepath.Join(headertest.Top(t), "go.sum"))
	require.NoError(t, err)
	c.write(t, "go.sum", string(sums))
	c.goTool(t, "mod", "edit", "-require", "github.com/verbena-go/verbena@v0.0.0", "-replace", "github.com/verbena-go/verbena="+headertest.Top(t))
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("CGO_CFLAGS", "-I"+include)
	for _, b := range boundElsewhere {
		t.Run(b.folder, func(t *testing.T) {
			// As go generate runs it.
			line := "go run github.com/verbena-go/verbena/gen bind -header " + b.header + " -library " + b.soname + " -into " + b.folder +
				" -I " + include + " -libc " + filepath.Join(cache, "libc")
			c.write(t, "generate.go", "package tools\n\n//go:generate "+line+"\n")
			first := exec.Command("go", "generate", ".")
			first.Dir = c.dir
			out, err := first.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), "lines are marked as unread")
			table := c.read(t, b.folder+"/conventions.txt")
			for begins, rest := range b.decisions {
				line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(begins) + ` .*$`)
				require.Len(t, line.FindAllString(table, -1), 1, begins)
				table = line.ReplaceAllLiteralString(table, begins+rest)
			}
			c.write(t, b.folder+"/conventions.txt", strings.ReplaceAll(table, "  # unread", ""))
			t.Log(c.goTool(t, "generate", "."))
			c.goTool(t, "build", "./...")
			c.goTool(t, "vet", "./...")
			require.NotContains(t, c.goTool(t, "test", "-v", "./"+b.folder), "SKIP")
			c.write(t, "cmd/"+b.folder+"/main.go", b.program)
			require.Regexp(t, b.want, c.goTool(t, "run", "./cmd/"+b.folder))
			compilers := os.Getenv("VERBENA_OTHERS")
			t.Log(c.goTool(t, "run", "github.com/verbena-go/verbena/gen", "check", "-into", b.folder, "-I", include, "-libc", filepath.Join(cache, "libc"), "-cc", compilers))
		})
	}
}
