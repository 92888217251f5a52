// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table in docs/softroce.md has each function of the skeleton once, and
// tells which there are.
func TestDocumentedFunctions(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/softroce.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]*\| (`+"`"+`[^|]+) \| (yes|no|differs) \| ([^|]*)\|$`).FindAllStringSubmatch(string(doc), -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name = strings.Trim(name, "`")
			require.NotContains(t, documented, name)
			documented[name] = row[2]
			require.False(t, row[2] == "differs" && strings.TrimSpace(row[3]) == "", "how does %s differ?", name)
		}
	}

	check := func(function, _ string, field, _ any) {
		status := documented[function]
		require.NotEmpty(t, status, "%s is not in the table", function)
		delete(documented, function)
		switch there := !reflect.ValueOf(field).Elem().IsNil(); {
		case function == "get_srq_num": // whose errno is written by hand
		case there:
			require.NotEqual(t, "no", status, function)
		default:
			require.Equal(t, "no", status, function)
		}
	}
	verbsFunctions(check)
	cmFunctions(func(function, class string, field, stub any) {
		if strings.HasPrefix(function, "rdma_") {
			check(function, class, field, stub)
			return
		}
		require.NotEmpty(t, documented[function], "%s is not in the table", function) // the tests of package csocket check its status
		delete(documented, function)
	})

	header, err := os.ReadFile("verbs_skeleton.h")
	require.NoError(t, err)
	byHand, _, found := strings.Cut(string(header), "/* Written by gen. */")
	require.True(t, found)
	for _, m := range regexp.MustCompile(`\bsoft_(\w+)\(`).FindAllStringSubmatch(byHand, -1) {
		require.Contains(t, documented, m[1])
		delete(documented, m[1])
	}
	require.Empty(t, documented, "there are no such functions")
}
