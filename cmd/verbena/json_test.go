// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the commands print as JSON, as the golden files have it, has names in
// snake_case, and only numbers that JavaScript can hold.
func TestJSONOfAll(t *testing.T) {
	files, err := filepath.Glob("internal/*/testdata/*.json")
	require.NoError(t, err)
	require.Greater(t, len(files), 4)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for d := json.NewDecoder(strings.NewReader(string(text))); d.More(); {
			var value any
			d.UseNumber()
			require.NoError(t, d.Decode(&value), file)
			requirePlain(t, file, value)
		}
	}
}

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func requirePlain(t *testing.T, at string, value any) {
	t.Helper()
	switch value := value.(type) {
	case map[string]any:
		for name, of := range value {
			require.Regexp(t, snakeCase, name, at)
			requirePlain(t, at+" "+name, of)
		}
	case []any:
		for _, of := range value {
			requirePlain(t, at, of)
		}
	case json.Number:
		f, err := value.Float64()
		require.NoError(t, err, at)
		require.Less(t, math.Abs(f), float64(1<<53), at)
	}
}
