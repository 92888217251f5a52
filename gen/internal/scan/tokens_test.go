// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"modernc.org/cc/v4"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestTokens compares tokensOf with the C parser's own function.
func TestTokens(t *testing.T) {
	opts := versionOptions(t, headertest.Newest(t))
	headers, err := translate(opts, IncludeDir(opts.Headers))
	require.NoError(t, err)
	count := 0
	for u := headers.ast.TranslationUnit; u != nil; u = u.TranslationUnit {
		want := cc.NodeTokens(u.ExternalDeclaration)
		require.Equal(t, want, tokensOf(u.ExternalDeclaration))
		count += len(want)
	}
	require.Greater(t, count, 10_000)
	first, second := headers.ast.TranslationUnit.ExternalDeclaration, headers.ast.TranslationUnit.TranslationUnit.ExternalDeclaration
	both := append(cc.NodeTokens(second), cc.NodeTokens(first)...)
	slices.SortFunc(both, func(a, b cc.Token) int { return cmp.Compare(a.Seq(), b.Seq()) })
	require.Equal(t, both, tokensOf(second, first))
	require.Empty(t, tokensOf(nil, (*cc.Declaration)(nil)))
}
