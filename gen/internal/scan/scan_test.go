// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/internal/testutil/golden"
)

// scanFile scans one of the headers in testdata with their conventions.
func scanFile(t *testing.T, file string) (*api.API, error) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	known, err := conventions.Load(filepath.Join("testdata", "conventions.txt"))
	require.NoError(t, err)
	return scanText(t, headerFolder(t), string(text), known)
}

// headerFolder makes an include folder for scanText.
func headerFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"umbrella.h": "#include <stddef.h>\n#include <stdint.h>\n#include <errno.h>\n#include <time.h>\n#include <linux/types.h>\n" +
			"#include <infiniband/verbs.h>\n",
		"infiniband/extra.h": "struct ignored { int bits : 3; };\nint ignored(void);\n",
		"infiniband/libc.h":  "typedef short ssize_t;\n",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// scanText scans a text as infiniband/verbs.h, of whose neighbours nothing is
// bound. Paths in errors start at the include folder.
func scanText(t testing.TB, dir, text string, known *conventions.Table) (*api.API, error) {
	t.Helper()
	known.Headers = append(known.Headers,
		&conventions.Header{Name: "infiniband/verbs.h", Package: "libibverbs"},
		&conventions.Header{Name: "infiniband/extra.h", Skip: "of the test"}, &conventions.Header{Name: "infiniband/libc.h", Skip: "of the test"})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", "verbs.h"), []byte(text), 0o644))
	out, err := Scan(Options{
		Headers: dir, Shim: filepath.Join(headertest.Top(t), "headers", "shim"),
		Source: filepath.Join(dir, "umbrella.h"), Version: "test", Known: known,
	})
	if err != nil {
		err = errorWithout(dir, err)
	}
	return out, err
}

// errorWithout takes the folder out of an error's text.
func errorWithout(dir string, err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), dir+"/", ""))
}

// TestGood compares what is made of the headers in testdata/good with the
// snapshots beside them.
func TestGood(t *testing.T) {
	for _, name := range []string{"structs", "enums", "functions", "inline", "typedefs", "records", "layouts"} {
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
		require.Len(t, f.Inline.Body, 16, f.Name)
		require.Equal(t, want[f.Name], api.Inline{Call: f.Inline.Call, Guard: f.Inline.Guard}, f.Name)
	}
}

// TestDigests changes an inline body and macros, and says of which the digest
// is another then.
func TestDigests(t *testing.T) {
	const header = "#include <assert.h>\n#define LIMIT 3\n#define BEYOND(n) ((n) > LIMIT)\n#define OPEN {\n" +
		"static inline int ibv_plain(int n)\n{\n\tassert(n > 0);\n\treturn BEYOND(n) ? 1 : 2;\n}\n"
	digests := func(text string) [3]string {
		known := &conventions.Table{Funcs: map[string]*conventions.Func{"ibv_plain": {Name: "ibv_plain"}}, Macros: map[string]string{"BEYOND": "why", "OPEN": "why"}}
		a, err := scanText(t, headerFolder(t), text, known)
		require.NoError(t, err)
		require.Len(t, a.Unvalued, 2)
		return [3]string{a.Functions[0].Inline.Body, a.Unvalued[0].Body, a.Unvalued[1].Body}
	}
	before := digests(header)
	require.NotEqual(t, before[1], before[2])
	for name, tt := range map[string]struct {
		old, new string
		want     [3]bool // whether the body, BEYOND and OPEN are other ones
	}{
		"blanks":              {"\treturn ", "\n\n  return\t", [3]bool{}},
		"a comment":           {"\treturn ", "\treturn /* 1 */ ", [3]bool{}},
		"another line":        {"#define LIMIT", "\n\n#define LIMIT", [3]bool{}},
		"a word":              {"? 1", "? 3", [3]bool{true, false, false}},
		"words that run on":   {"return BEYOND(n) ? 1 : 2", "return BEYOND(n) ? 12 : 0", [3]bool{true, false, false}},
		"a condition":         {"assert(n > 0)", "assert(n >= 0)", [3]bool{true, false, false}},
		"what a macro is":     {"LIMIT 3", "LIMIT 4", [3]bool{true, false, false}},
		"a macro's text":      {"((n) > LIMIT)", "((n) >= LIMIT)", [3]bool{true, true, false}},
		"a macro's parameter": {"BEYOND(n) ((n) > LIMIT)", "BEYOND(m) ((m) > LIMIT)", [3]bool{false, true, false}},
		"a bracket":           {"OPEN {", "OPEN {{", [3]bool{false, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, header, tt.old)
			after := digests(strings.Replace(header, tt.old, tt.new, 1))
			for i := range before {
				require.Equal(t, tt.want[i], before[i] != after[i])
			}
		})
	}
}

// inPlace is what every error looks like.
var inPlace = regexp.MustCompile(`^(infiniband/verbs|infiniband/libc|umbrella)\.h:[1-9]\d*:[1-9]\d*: \S`)

// badErrors has the errors of the headers in testdata/bad that were scanned.
var badErrors = map[string]error{}

// scanBad scans a header in testdata/bad, once.
func scanBad(t *testing.T, header string) error {
	t.Helper()
	if badErrors[header] == nil {
		_, badErrors[header] = scanFile(t, filepath.Join("bad", filepath.Base(header)))
		require.Error(t, badErrors[header])
	}
	return badErrors[header]
}

// TestBad compares the errors that the headers in testdata/bad give with the
// text files beside them.
func TestBad(t *testing.T) {
	headers, err := filepath.Glob(filepath.Join("testdata", "bad", "*.h"))
	require.NoError(t, err)
	texts, err := filepath.Glob(filepath.Join("testdata", "bad", "*.txt"))
	require.NoError(t, err)
	require.True(t, *golden.Update || len(texts) == len(headers), "a text without a header")
	for _, header := range headers {
		name := strings.TrimSuffix(filepath.Base(header), ".h")
		t.Run(name, func(t *testing.T) {
			err := scanBad(t, header)
			for line := range strings.Lines(err.Error()) {
				require.Regexp(t, inPlace, line)
			}
			golden.Compare(t, filepath.Join("testdata", "bad", name+".txt"), err.Error()+"\n")
		})
	}
}

// TestOpaque follows the advice of errors about structs: with the lines that
// they name, nothing is wrong with the structs any more.
func TestOpaque(t *testing.T) {
	headers, err := filepath.Glob(filepath.Join("testdata", "bad", "*.h"))
	require.NoError(t, err)
	advice := regexp.MustCompile(`(?m); to bind its name alone, say in the conventions: (struct .*)$`)
	followed := 0
	for _, header := range headers {
		var lines strings.Builder
		for _, m := range advice.FindAllStringSubmatch(scanBad(t, header).Error(), -1) {
			lines.WriteString(m[1] + "\n")
		}
		if lines.Len() == 0 {
			continue
		}
		followed++
		text, err := os.ReadFile(header)
		require.NoError(t, err)
		known, err := conventions.Load(filepath.Join("testdata", "conventions.txt"))
		require.NoError(t, err)
		unique := slices.Compact(slices.Sorted(strings.Lines(lines.String())))
		more, err := conventions.Parse("", []byte(strings.Join(unique, "")))
		require.NoError(t, err)
		known.Structs = more.Structs
		if _, err = scanText(t, headerFolder(t), string(text), known); err != nil {
			require.NotRegexp(t, advice, err.Error(), header)
			require.NotContains(t, err.Error(), "bit-field", header)
		}
	}
	require.Greater(t, followed, 15)
}

// TestPatience shows that a scan ends even if cc does not, and that it is
// processor time which counts.
func TestPatience(t *testing.T) {
	defer func(before time.Duration) { patience = before }(patience)
	patience = 100 * time.Millisecond
	for name, step := range map[string]time.Duration{"busy": patience / 5, "starved": 0} {
		t.Run(name, func(t *testing.T) {
			done := make(chan int, 1)
			looks := 0
			_, ok := await(done, func() time.Duration {
				looks++
				if looks == 200 { // twice the patience by the clock
					done <- 1
				}
				return time.Duration(looks) * step
			})
			require.Equal(t, step == 0, ok)
		})
	}
	before := processorTime()
	for range 1 << 27 {
		runtime.KeepAlive(before)
	}
	require.Greater(t, processorTime(), before)
}

func TestMissingFiles(t *testing.T) {
	shim := filepath.Join(headertest.Top(t), "headers", "shim")
	_, err := Scan(Options{Headers: "testdata", Shim: "testdata", Source: "testdata/good/enums.h"})
	require.ErrorContains(t, err, "predefined.h")
	_, err = Scan(Options{Headers: "testdata", Shim: shim, Source: "testdata/none.h"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestLimits has headers that are too much in other ways than those in
// testdata/bad.
func TestLimits(t *testing.T) {
	const verbs = "infiniband/verbs.h:1:1: "
	for text, want := range map[string]string{
		strings.Repeat(" ", maxFile) + "\n":                         verbs + "the header has more than 1048576 bytes",
		strings.Repeat("int ibv_plain(void);\n", 2e4):               verbs + "the headers expand to more than 100000 words",
		"#include \"../infiniband\"\n":                              "infiniband/verbs.h:1:10: include file not found: \"../infiniband\"",
		"#include \"../../../../dev/zero\"\n":                       "infiniband/verbs.h:1:10: include file not found: \"../../../../dev/zero\"",
		"#include \"/etc/hostname\"\n":                              "infiniband/verbs.h:1:10: include file not found: \"/etc/hostname\"",
		"#include </etc/hostname>\n":                                "infiniband/verbs.h:1:10: include file not found: </etc/hostname>",
		"#include \"../../../../../../../../../etc/hostname\"\n":    "infiniband/verbs.h:1:10: include file not found: \"../../../../../../../../../etc/hostname\"",
		"int ibv_plain(int a" + strings.Repeat("[1]", 3e3) + ");\n": "infiniband/verbs.h:1:5: the type of ibv_plain is nested more than 30 deep",
	} {
		_, err := scanText(t, headerFolder(t), text, &conventions.Table{Funcs: map[string]*conventions.Func{"ibv_plain": {Name: "ibv_plain"}}})
		require.ErrorContains(t, err, want)
	}
}

// TestLongConstants has expressions of many operands.
func TestLongConstants(t *testing.T) {
	const many = 2_000
	a, err := scanText(t, headerFolder(t), "enum long_sum { ONE = 1, SUM = ONE"+strings.Repeat(" + ONE", many)+" };\n"+
		"enum { CASTS = "+strings.Repeat("(enum long_sum)", many)+"SUM };\n"+
		"struct ibv_s { char a["+strings.Repeat("- ", 2*many)+"'\\n'"+"]; };\n", &conventions.Table{Enums: map[string]*conventions.Enum{
		"long_sum": {}, ":CASTS": {},
	}})
	require.NoError(t, err)
	require.EqualValues(t, many+1, a.Enums[0].Values[1].Value)
	require.EqualValues(t, many+1, a.Enums[1].Values[0].Value)
	require.EqualValues(t, '\n', a.Structs[0].Size)
}

// TestIncludeChain includes a header through a hundred others.
func TestIncludeChain(t *testing.T) {
	dir := headerFolder(t)
	for i := range 100 {
		text := fmt.Sprintf("#include \"chain%d.h\"\n", i+1)
		if i == 99 {
			text = "#define DEEP 7\n"
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "infiniband", fmt.Sprintf("chain%d.h", i)), []byte(text), 0o600))
	}
	known := &conventions.Table{Headers: []*conventions.Header{{Name: "infiniband/chain*.h", Other: "of the test"}}}
	a, err := scanText(t, dir, "#include \"chain0.h\"\nstruct s { char a[DEEP]; };\n", known)
	require.NoError(t, err)
	require.EqualValues(t, 7, a.Structs[0].Size)
}

// TestLeftOut has declarations that have no form in a snapshot. A line with
// skip= leaves them out; without it they are refused.
func TestLeftOut(t *testing.T) {
	const skip = "func ibv_x value skip=\"of the test\"\n"
	tests := map[string]struct{ text, want string }{
		"no prototype":      {"int ibv_x();", "1:5: a function without a prototype cannot be represented"},
		"static variable":   {"static const int ibv_x = 5;", "1:18: the static variable ibv_x cannot be represented"},
		"defined variable":  {"int ibv_x = 5;", "1:5: the variable ibv_x is defined in the header"},
		"body":              {"int ibv_x(void) { return 1; }", "1:5: the function ibv_x has a body and is not static"},
		"asm label":         {"int ibv_x(int) __asm__(\"y\");", "1:16: the asm label of ibv_x cannot be represented"},
		"attribute":         {"int ibv_x(int) __attribute__((ms_abi));", "1:31: the attribute ms_abi cannot be represented"},
		"no body":           {"static int ibv_x(int);", "1:12: the static function ibv_x has no body"},
		"thread's variable": {"extern _Thread_local int ibv_x;", "1:8: the storage class _Thread_local cannot be represented"},
		"name":              {"int ibv_x(int größe);", `1:11: the name "größe" cannot be represented`},
		"flexible array":    {"int ibv_x(int (*)[]);", "1:11: a flexible array cannot be represented"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for lines, isRefused := range map[string]bool{"func ibv_ok code\nfunc ibv_x value\n": true, "func ibv_ok code\n" + skip: false} {
				known, err := conventions.Parse("conventions.txt", []byte(lines))
				require.NoError(t, err)
				a, err := scanText(t, headerFolder(t), tt.text+"\nint ibv_ok(void);\n", known)
				if isRefused {
					require.EqualError(t, err, "infiniband/verbs.h:"+tt.want)
					continue
				}
				require.NoError(t, err)
				require.Len(t, a.Functions, 1)
				require.Equal(t, "ibv_ok", a.Functions[0].Name)
				require.Empty(t, a.Variables)
			}
		})
	}
	known, err := conventions.Parse("conventions.txt", []byte(skip))
	require.NoError(t, err)
	_, err = scanText(t, headerFolder(t), "int ibv_x(), ibv_y();\n", known)
	require.ErrorContains(t, err, "1:14: a function without a prototype cannot be represented", "ibv_y has no line")
}

// TestNoLastingValue has macros without a value that holds in every program, or
// with one that cc reads wrongly.
func TestNoLastingValue(t *testing.T) {
	for _, text := range []string{"__LINE__", "__FILE__", "__COUNTER__", "__DATE__ \" \" __TIME__", "(__LINE__ + 1)", `u8"x"`, `"a" u8"x"`} {
		t.Run(text, func(t *testing.T) {
			known, err := conventions.Parse("conventions.txt", []byte("func ibv_ok code\nmacro IBV_Z skip=\"of the test\"\n"))
			require.NoError(t, err)
			_, err = scanText(t, headerFolder(t), "#define IBV_X "+text+"\n#define IBV_Y (IBV_X)\n#define IBV_Z IBV_Y\nint ibv_ok(void);\n", known)
			require.EqualError(t, err, "infiniband/verbs.h:1:9: the macro IBV_X has no value; add to the conventions a line such as: macro IBV_X skip=\"why\"\n"+
				"infiniband/verbs.h:2:9: the macro IBV_Y has no value; add to the conventions a line such as: macro IBV_Y skip=\"why\"")
		})
	}
}
