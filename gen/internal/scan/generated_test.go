// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// forgetLayout takes out what a generator does not know.
func forgetLayout(members []*api.Member) {
	for _, m := range members {
		m.Offset = 0
		if m.Bits != nil {
			m.Bits.At = 0
		}
		forgetLayout(m.Members)
	}
}

// normal makes a scanned and a generated snapshot comparable.
func normal(a *api.API) *api.API {
	for _, s := range a.Structs {
		s.Size, s.Align = 0, 0
		forgetLayout(s.Members)
	}
	forgetSpelling(a)
	slices.SortFunc(a.Macros, func(a, b *api.Macro) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(a.Aliases, func(a, b *api.Alias) int { return cmp.Compare(a.Name, b.Name) })
	a.Version = "test"
	return a
}

// unvaluedMacros are those of the generated headers that have no value.
var unvaluedMacros = []string{"CALL", "OPEN", "TEXT"}

// unvalued returns those that a text defines and does not undefine after that.
func unvalued(text string) (out []*api.Unvalued) {
	for _, name := range unvaluedMacros {
		if strings.LastIndex(text, "#define "+name) > strings.LastIndex(text, "#undef "+name) {
			out = append(out, &api.Unvalued{Name: name, Header: "infiniband/verbs.h"})
		}
	}
	return out
}

var errorLine = regexp.MustCompile(`(?m)^infiniband/verbs\.h:(\d+):`)

// FuzzGenerated shows that everything that a header declares is in the
// snapshot, exactly, and that each line with something unsupported gives an
// error, and no other line.
func FuzzGenerated(f *testing.F) {
	for n := range byte(20) {
		var data []byte
		for i := range 200 {
			data = append(data, byte((int(n)+7)*(i*i+i+3*int(n))>>2))
		}
		f.Add(data[:10*int(n)], n%4 == 3)
	}
	dir := headerFolder(f)
	f.Fuzz(func(t *testing.T, data []byte, unsupported bool) {
		g := generate(data, unsupported)
		got, err := scanText(t, dir, g.text.String(), g.known)
		if len(g.bad) > 0 {
			require.Error(t, err, g.text.String())
			var lines []int
			for _, m := range errorLine.FindAllStringSubmatch(err.Error(), -1) {
				line, err := strconv.Atoi(m[1])
				require.NoError(t, err)
				lines = append(lines, line)
			}
			require.Equal(t, g.bad, slices.Compact(lines), "%v\n%s", err, g.text.String())
			return
		}
		require.NoError(t, err, g.text.String())
		g.want.Unvalued = unvalued(g.text.String())
		require.Equal(t, marshal(t, normal(&g.want)), marshal(t, normal(got)), g.text.String())
	})
}
