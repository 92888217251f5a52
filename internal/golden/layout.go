// Package golden compares what the Go side says with what C said, which is
// kept in tests/golden.
package golden

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Update rewrites golden files instead of comparing.
var Update = flag.Bool("update", false, "rewrite the golden files")

// LayoutList collects the layouts of a package in the words of its golden
// file, one line for every type and one for every member, at any depth.
type LayoutList struct {
	b strings.Builder
}

// Layout starts a list that is compared with tests/golden/NAME.layout at the
// end of the test, which runs two folders below the top.
func Layout(t *testing.T, name string) *LayoutList {
	l := new(LayoutList)
	t.Cleanup(func() {
		if !t.Failed() {
			Compare(t, filepath.Join("..", "..", "tests", "golden", name+".layout"), l.b.String())
		}
	})
	return l
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

// Compare compares text with a golden file, or rewrites it.
func Compare(t *testing.T, path, text string) {
	t.Helper()
	if *Update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "%s differs; -update rewrites it", path)
}
