package scan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/internal/golden"
)

// scanFile scans one of the headers in testdata as infiniband/verbs.h. Paths
// in errors start at the include folder.
func scanFile(t *testing.T, file string) (*api.API, error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	dir := t.TempDir()
	folder := filepath.Join(dir, "include", "infiniband")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	prologue := "#include <stddef.h>\n#include <stdint.h>\n#include <errno.h>\n#include <time.h>\n#include <linux/types.h>\n"
	source := filepath.Join(dir, "include", "umbrella.h")
	require.NoError(t, os.WriteFile(source, []byte(prologue+"#include <infiniband/verbs.h>\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "verbs.h"), text, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "extra.h"), []byte("struct ignored { int bits : 3; };\nint ignored(void);\n"), 0o644))
	known, err := conventions.Load(filepath.Join("testdata", "conventions.txt"))
	require.NoError(t, err)
	out, err := Scan(Options{
		Headers: filepath.Join(dir, "include"), Shim: filepath.Join(headertest.Top(t), "headers", "shim"),
		Source: source, Version: "test", Known: known,
	})
	if err != nil {
		err = fmt.Errorf("%s", strings.ReplaceAll(err.Error(), filepath.Join(dir, "include")+"/", ""))
	}
	return out, err
}

// TestGood compares what is made of the headers in testdata/good with the
// snapshots beside them.
func TestGood(t *testing.T) {
	for _, name := range []string{"structs", "enums", "functions", "inline"} {
		t.Run(name, func(t *testing.T) {
			a, err := scanFile(t, filepath.Join("good", name+".h"))
			require.NoError(t, err)
			text, err := a.Marshal()
			require.NoError(t, err)
			golden.Compare(t, filepath.Join("testdata", "good", name+".json"), string(text))
		})
	}
}

// TestInline states which bodies count as a call through a table; all others
// have logic of their own.
func TestInline(t *testing.T) {
	a, err := scanFile(t, "good/inline.h")
	require.NoError(t, err)
	want := map[string]api.Inline{
		"ibv_dispatch":      {Call: "q->context->ops.post"},
		"ibv_dispatch_void": {Call: "q->start"},
		"ibv_guarded":       {Call: "vctx->newer", Guard: "c"},
		"ibv_guarded_ptr":   {Call: "vctx->made", Guard: "q->context"},
	}
	require.Len(t, a.Functions, 14)
	for _, f := range a.Functions {
		require.NotNil(t, f.Inline, f.Name)
		require.Equal(t, want[f.Name], *f.Inline, f.Name)
	}
}

// TestBad has every header in testdata/bad, and the errors that it gives.
func TestBad(t *testing.T) {
	const verbs = "infiniband/verbs.h:"
	bad := map[string]string{
		"unknown-function": verbs + "2:5: no convention for ibv_unheard_of; add to the conventions a line such as: func ibv_unheard_of code\n" +
			verbs + "3:6: no convention for ibv_gives_pointer; add to the conventions a line such as: func ibv_gives_pointer pointer\n" +
			verbs + "4:6: no convention for ibv_gives_nothing; add to the conventions a line such as: func ibv_gives_nothing void",
		"unknown-enum": verbs + "1:1: no kind for enum unheard_of; add to the conventions a line such as: enum unheard_of values\n" +
			verbs + "2:1: no kind for enum :NAMELESS; add to the conventions a line such as: enum :NAMELESS values name=GoName",
		"unknown-macro": verbs + "2:9: the macro UNHEARD_OF has no value; add to the conventions a line such as: macro UNHEARD_OF skip=\"why\"\n" +
			verbs + "3:9: the macro UNHEARD_OF_TEXT has no value; add to the conventions a line such as: macro UNHEARD_OF_TEXT skip=\"why\"",
		"macro-in-front":        verbs + "2:9: the macro ibv_twice stands in front of the function, which the conventions must mark as inline=own",
		"unknown-parameter":     verbs + "1:12: the conventions name a parameter to of ibv_pointers, which has none such",
		"bit-field":             verbs + "3:6: a bit-field cannot be represented",
		"packed":                verbs + "4:18: the attribute packed cannot be represented",
		"packed-member":         verbs + "3:23: the attribute __packed__ cannot be represented",
		"packed-enum":           verbs + "1:35: the attribute packed cannot be represented",
		"pragma-pack":           verbs + "1:9: #pragma pack cannot be represented",
		"aligned":               verbs + "3:18: the attribute aligned cannot be represented",
		"aligned-member":        verbs + "2:23: the attribute aligned(16) cannot be represented",
		"alignas":               verbs + "1:1: struct s: size 4 align 4 by our rules, 16 and 16 by cc's",
		"flexible":              verbs + "3:7: a flexible array cannot be represented",
		"flexible-old":          verbs + "3:7: a flexible array cannot be represented",
		"array-of-unnamed":      verbs + "2:20: a pointer to, or array of, an unnamed struct cannot be represented",
		"missing-include":       verbs + "2:10: include file not found: <infiniband/missing.h>",
		"missing-own-include":   verbs + `1:10: include file not found: "missing.h"`,
		"syntax":                verbs + "3:2: unexpected 'int', expected ';'",
		"unknown-type":          verbs + "1:28: unexpected identifier, expected ')'",
		"cut-off":               "umbrella.h:7:1: the headers end in the middle of a declaration",
		"unterminated":          verbs + "1:1: comment not terminated",
		"error-directive":       verbs + "1:2: not for you",
		"redefined-struct":      verbs + "2:1: incompatible redeclaration of 'struct s {a long}' at " + verbs + "1:1",
		"redefined-function":    verbs + "2:6: conflicting types for 'ibv_twice', previous declaration at " + verbs + "1:5:, function(int) returning int and function(int) returning long",
		"undeclared":            verbs + "3:9: undefined: undeclared",
		"unsupported-member":    verbs + `1:1: struct s: member "a": the size of float is not known`,
		"unsupported-parameter": verbs + "1:8: the type double of ibv_number cannot be represented\n" + verbs + "1:8: the type _Complex float of ibv_number cannot be represented",
		"typedef":               verbs + `2:1: struct s: member "o": the size of other is not known`,
		"typeof":                verbs + `1:12: a type written as "__typeof__(1)" cannot be represented`,
		"typeof-declared":       verbs + "1:1: this is beyond the C parser",
		"unnamed": verbs + "1:19: a type without a name cannot be represented here\n" +
			verbs + "2:33: a type without a name cannot be represented here\n" +
			verbs + "3:18: a type without a name cannot be represented here\n" +
			verbs + "4:31: a type without a name cannot be represented here",
		"variable":        verbs + "1:12: the variable ibv_variable cannot be represented",
		"big-enum":        verbs + "1:1: an enum of 8 bytes cannot be represented",
		"contains-itself": verbs + `1:1: struct s: member "s": struct s contains itself`,
		"incomplete":      verbs + `2:1: struct s: member "l": the size of struct later is not known`,
		"includes-itself": "umbrella.h:1:1: the C parser gives up on the headers, of which one may include itself: ",
		"nothing":         "nothing is declared in the headers that are bound",
		"two":             verbs + "1:16: a bit-field cannot be represented\n" + verbs + "2:17: a flexible array cannot be represented",
	}
	files, err := filepath.Glob(filepath.Join("testdata", "bad", "*.h"))
	require.NoError(t, err)
	require.Len(t, bad, len(files))
	for name, want := range bad {
		t.Run(name, func(t *testing.T) {
			_, err := scanFile(t, filepath.Join("bad", name+".h"))
			require.Error(t, err)
			if strings.HasSuffix(want, ": ") || name == "nothing" {
				require.Contains(t, err.Error(), want)
			} else {
				require.Equal(t, want, err.Error())
			}
		})
	}
}

func TestMissingFiles(t *testing.T) {
	shim := filepath.Join(headertest.Top(t), "headers", "shim")
	_, err := Scan(Options{Headers: "testdata", Shim: "testdata", Source: "testdata/good/enums.h"})
	require.ErrorContains(t, err, "predefined.h")
	_, err = Scan(Options{Headers: "testdata", Shim: shim, Source: "testdata/none.h"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// inChild is set in the process that TestEndless starts, which takes the
// parser's loop with it when it ends.
const inChild = "VERBENA_TEST_ENDLESS"

// TestEndless has a header that the parser never gets through.
func TestEndless(t *testing.T) {
	if os.Getenv(inChild) == "" {
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(self, "-test.run=^TestEndless$", "-test.count=1")
		cmd.Env = append(os.Environ(), inChild+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	patience = time.Second
	_, err := scanFile(t, "endless.h")
	require.EqualError(t, err, "umbrella.h:1:1: the C parser finds no end; a header that it includes has a syntax error")
}

func TestGaveUp(t *testing.T) {
	require.EqualError(t, gaveUp("umbrella.h", "cpp.go:1435:macro\n\tTODO /usr/include/a.h:3:4: \"x\""),
		"/usr/include/a.h:3:4: the C parser gives up here")
}
