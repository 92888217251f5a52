// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var madeElsewhere = regexp.MustCompile(`&cerr\.\w+\{`)

// Errors are made by functions of internal/cerr, which give them the types that
// users can name. A literal of another package would not have such a type. The
// packages in internal/bound are left out: they have a cerr of their own.
func TestErrorsAreMadeInOnePlace(t *testing.T) {
	looked := 0
	for _, folder := range []string{"fabric", "generated", "ibverbs", "internal", "rdmacm"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.Contains(path, "internal/cerr/") || strings.Contains(path, "internal/bound/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			looked++
			require.NotRegexp(t, madeElsewhere, string(text), path)
			return nil
		}))
	}
	require.Greater(t, looked, 100)
}
