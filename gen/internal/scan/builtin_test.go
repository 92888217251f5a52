// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/conventions"
)

func TestBuiltins(t *testing.T) {
	all := map[string]bool{}
	functions := 0
	for _, b := range builtins {
		all[b.function] = true
		if b.function != "" {
			functions++
		}
	}
	require.Greater(t, functions, 150)
	require.Equal(t, cc.Builtin, builtinsFor(all))
	none := builtinsFor(nil)
	require.NotContains(t, none, ");\n")
	require.Equal(t, strings.Count(cc.Builtin, "#"), strings.Count(none, "#"))
	require.Contains(t, none, "int __predefined_declarator;\n")
	for _, name := range []string{"strlen", "__builtin_strlen"} {
		require.Equal(t, 1, strings.Count(builtinsFor(map[string]bool{name: true}), ");\n"), name)
	}
}

// TestUsedBuiltins has headers that use functions which no header declares: by
// name, as part of a macro, and with a name that the preprocessor makes.
func TestUsedBuiltins(t *testing.T) {
	known := &conventions.Table{Funcs: map[string]*conventions.Func{"ibv_f": {Name: "ibv_f"}}, Macros: map[string]string{"SWAP": "why", "PASTE": "why"}}
	a, err := scanText(t, headerFolder(t), "#define SWAP(x) __builtin_bswap32(x)\n#define PASTE(a, b) a ## b\n"+
		"#define SIZE sizeof(PASTE(__builtin_, bswap64)(8))\n"+
		"static inline int ibv_f(const char *s)\n{\n\treturn SWAP(1) + PASTE(__builtin_bsw, ap64)(2) + strlen(s) + __builtin_abs(3);\n}\n", known)
	require.NoError(t, err)
	require.Len(t, a.Functions, 1)
	require.Len(t, a.Macros, 1)
	require.EqualValues(t, 8, a.Macros[0].Value, "of the declared result, which is no int")
}
