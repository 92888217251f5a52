// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// LayoutList collects the layouts of a package in the words of its golden
// file, one line for every type and one for every member, at any depth.
type LayoutList struct {
	b strings.Builder
}

// Layout returns an empty list. At the end of the test, unless the test has
// failed, the list must equal tests/golden/NAME.layout, with the lines of
// NAME.ARCH.layout in the place of those for the same types and members. These
// files have the layouts in C; only "gen check -update" rewrites them. The
// package of the test must be two folders below the top.
func Layout(t *testing.T, name string) *LayoutList {
	l := new(LayoutList)
	t.Cleanup(func() {
		if !t.Failed() {
			want := readLayout(t, filepath.Join("..", "..", "tests", "golden"), name, runtime.GOARCH)
			require.Equal(t, want, l.b.String(), "Go's layouts on %s differ from those in tests/golden", runtime.GOARCH)
		}
	})
	return l
}

// readLayout returns the lines of NAME.layout, with the lines of
// NAME.ARCH.layout in the place of those for the same types and members.
func readLayout(t *testing.T, dir, name, arch string) string {
	t.Helper()
	common, err := os.ReadFile(filepath.Join(dir, name+".layout"))
	require.NoError(t, err)
	own, err := os.ReadFile(filepath.Join(dir, name+"."+arch+".layout"))
	if os.IsNotExist(err) {
		return string(common)
	}
	require.NoError(t, err)
	return override(t, string(common), string(own))
}

// override puts each line of own in the place of the line of common for the
// same type or member.
func override(t *testing.T, common, own string) string {
	t.Helper()
	lines := strings.SplitAfter(common, "\n")
	place := map[string]int{}
	for i, line := range lines {
		place[subject(line)] = i
	}
	for line := range strings.Lines(own) {
		i, ok := place[subject(line)]
		require.True(t, ok, "%q is about nothing in the common file", line)
		lines[i] = line
	}
	return strings.Join(lines, "")
}

// subject returns the type or member that a line is about.
func subject(line string) string {
	words := strings.Fields(line)
	return strings.Join(words[:min(2, len(words))], " ")
}

// Type lists a struct or union.
func (l *LayoutList) Type(name string, size, align uintptr) {
	fmt.Fprintf(&l.b, "%s size %d align %d\n", name, size, align)
}

// Member lists a member of the aggregate at path; offset counts from the
// start of the outermost one.
func (l *LayoutList) Member(path, name string, offset, size uintptr) {
	fmt.Fprintf(&l.b, "%s.%s offset %d size %d\n", path, name, offset, size)
}
