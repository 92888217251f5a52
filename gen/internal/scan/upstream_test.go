// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"
)

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
