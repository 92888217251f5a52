// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"
)

// These tests are about the faults of cc that the scanner works around. Each is
// worked around in one file, which the test names, and fails when a new version
// of cc no longer has it. cc's own list is at
// https://gitlab.com/cznic/cc/-/issues.

// parsed returns what cc makes of a text.
func parsed(t *testing.T, text string) *cc.AST {
	t.Helper()
	abi, err := cc.NewABI("linux", "amd64")
	require.NoError(t, err)
	ast, err := cc.Translate(&cc.Config{ABI: abi}, []cc.Source{
		{Name: "<predefined>", Value: predefined(nil)}, {Name: "<builtin>", Value: cc.Builtin}, {Name: "h", Value: text},
	})
	require.NoError(t, err)
	return ast
}

// TestDropped shows that cc still keeps nothing of some attributes. When it
// fails, dropped.go is needed no more.
func TestDropped(t *testing.T) {
	ast := parsed(t, "enum e { A __attribute__((deprecated)) };\n")
	for _, n := range ast.Scope.Nodes["A"] {
		require.NotContains(t, cc.NodeSource(n), "deprecated", "cc keeps the attributes of enumerators")
	}
	ast = parsed(t, "int f(int a) __attribute__((alloc_align(1), nonstring, deprecated));\n")
	var last *cc.ExternalDeclaration
	for u := ast.TranslationUnit; u != nil; u = u.TranslationUnit {
		last = u.ExternalDeclaration
	}
	require.Contains(t, cc.NodeSource(last), "alloc_align")
	require.False(t, strings.Contains(cc.NodeSource(last), "nonstring"), "cc keeps the second of three attributes")
}

// TestCCLayouts shows which layouts cc still gives other sizes than gcc and
// clang. When it fails, hasRules can leave that kind out.
func TestCCLayouts(t *testing.T) {
	for text, size := range map[string]int64{
		"struct s { char a; int b; } __attribute__((packed));":                              5,
		"#pragma pack(1)\nstruct s { char a; int b; };\n#pragma pack()":                     5,
		"struct s { char a; unsigned b : 24; unsigned short c : 9; char d; long e : 50; };": 16,
	} {
		ast := parsed(t, text+"\n")
		for _, n := range ast.Scope.Nodes["s"] {
			if u, ok := n.(*cc.StructOrUnionSpecifier); ok && u.Case == cc.StructOrUnionSpecifierDef {
				t.Logf("%s: %d by cc, %d by compilers", text, u.Type().Size(), size)
				require.NotEqual(t, size, u.Type().Size(), text)
			}
		}
	}
}

// TestCCEnumerators shows that cc still gives enumerators other types than C,
// in which A is an int. When it fails, evaluate.go is no longer needed.
func TestCCEnumerators(t *testing.T) {
	ast := parsed(t, "enum e { A = 1, B = 0x80000000u };\n")
	kinds := map[string]cc.Kind{}
	for name, nodes := range ast.Scope.Nodes {
		for _, n := range nodes {
			if e, ok := n.(*cc.Enumerator); ok {
				kinds[name] = e.Type().Kind()
			}
		}
	}
	require.Equal(t, cc.UInt, kinds["B"])
	require.NotEqual(t, cc.Int, kinds["A"], "cc gives enumerators the types that C gives them")
}

// TestCCTakes shows which texts cc still takes, though they are no C. When it
// fails, text.go, or the rest of what a row names, can leave that one to cc.
func TestCCTakes(t *testing.T) {
	for _, tt := range []struct{ text, rejectedBy string }{
		{"#frobnicate\nint f(void);\n", "text.named"},
		{"#line 7 \"other.h\"\nint f(void);\n", "text.named"},
		{"int f(void);\n\\", "text.backslash"},
		{"struct s { int a; int a; };\n", "structs.go"},
		{"static int f(void);\n", "scanner.everything"},
	} {
		require.NotPanics(t, func() { parsed(t, tt.text) }, tt.rejectedBy)
	}
}

// TestCCPragmaOperator shows that cc still does not say in which file and line
// a _Pragma is. When it fails, pragmaOperator in translate.go is no longer
// needed.
func TestCCPragmaOperator(t *testing.T) {
	abi, err := cc.NewABI("linux", "amd64")
	require.NoError(t, err)
	var file string
	_, err = cc.Translate(&cc.Config{ABI: abi, PragmaHandler: func(words []cc.Token) error {
		file = words[0].Position().Filename
		return nil
	}}, []cc.Source{
		{Name: "<predefined>", Value: predefined(nil)},
		{Name: "<builtin>", Value: cc.Builtin},
		{Name: "h", Value: "\n_Pragma(\"GCC diagnostic push\") int f(void);\n"},
	})
	require.NoError(t, err)
	require.Equal(t, pragmaOperator, file, "cc says where a _Pragma is")
}

// TestCCPanics shows that cc still panics at a header without an end. When it
// fails, translation.run need not recover.
func TestCCPanics(t *testing.T) {
	abi, err := cc.NewABI("linux", "amd64")
	require.NoError(t, err)
	endless := fstest.MapFS{"a.h": {Data: []byte("#include \"a.h\"\n")}}
	require.Panics(t, func() { // a limit is set, so that the stack does not overflow
		err := cc.Preprocess(&cc.Config{ABI: abi, FS: endless, FSOnly: true, ExpansionLimit: maxWork, IncludePaths: []string{""}}, []cc.Source{
			{Name: "<predefined>", Value: predefined(nil)}, {Name: "<builtin>", Value: cc.Builtin}, {Name: "h", Value: "#include \"a.h\"\n"},
		}, io.Discard)
		t.Log(err)
	})
}
