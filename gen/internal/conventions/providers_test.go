// SPDX-License-Identifier: Apache-2.0

package conventions

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

func TestProviders(t *testing.T) {
	all, err := ParseProviders("p.txt", []byte(`
# A comment.
library libone.so.1
ONE_1.0 code one_a one_b # rest
ONE_1.25.1 pointer __one_c
library libtwo.so.3
TWO_1.2 void two
`))
	require.NoError(t, err)
	require.Equal(t, []*Provider{
		{"libone.so.1", []ProviderFunction{{"one_a", "ONE_1.0", "code"}, {"one_b", "ONE_1.0", "code"}, {"__one_c", "ONE_1.25.1", "pointer"}}},
		{"libtwo.so.3", []ProviderFunction{{"two", "TWO_1.2", "void"}}},
	}, all)

	for text, want := range map[string]string{
		"ONE_1.0 code a":                              `p.txt:1: expected a library such as libmlx5.so.1, or a node, a kind and functions, found "ONE_1.0 code a"`,
		"library one":                                 `p.txt:1: expected a library such as libmlx5.so.1, or a node, a kind and functions, found "library one"`,
		"library libone.so.1\nONE_1.0 code":           `p.txt:2: expected a library such as libmlx5.so.1, or a node, a kind and functions, found "ONE_1.0 code"`,
		"library libone.so.1\nONE_1.0 float a":        `p.txt:2: expected a library such as libmlx5.so.1, or a node, a kind and functions, found "ONE_1.0 float a"`,
		"library libone.so.1\nONE code a":             `p.txt:2: expected a library such as libmlx5.so.1, or a node, a kind and functions, found "ONE code a"`,
		"library libone.so.1\nONE_1.0 code a b a":     `p.txt:2: the function "a" is listed twice, or is not a C identifier`,
		"library libone.so.1\nONE_1.0 code a;system(": `p.txt:2: the function "a;system(" is listed twice, or is not a C identifier`,
	} {
		_, err := ParseProviders("p.txt", []byte(text))
		require.EqualError(t, err, want)
	}
	_, err = LoadProviders("nowhere.txt")
	require.Error(t, err)

	real, err := LoadProviders(filepath.Join(headertest.Top(t), "headers", "providers.txt"))
	require.NoError(t, err)
	require.Len(t, real, 2)
	require.Greater(t, len(real[0].Functions), 130)
}

func FuzzProviders(f *testing.F) {
	f.Add([]byte("library libone.so.1\nONE_1.0 code a b\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := ParseProviders("p.txt", text)
		if err != nil {
			return
		}
		for _, p := range all {
			for _, fn := range p.Functions {
				require.Regexp(t, identifier, fn.Name)
			}
		}
	})
}
