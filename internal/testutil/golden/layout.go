// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// LayoutList collects the layouts of the types of a package in the form of the
// golden file: one line for each type, and one for each member at any depth.
type LayoutList struct {
	b strings.Builder
}

// Layout returns an empty list. At the end of a test that has not failed, the
// list must equal tests/golden/NAME.layout, as LayoutIn says. The package of
// the test must be two directories below the root of the repository.
func Layout(t *testing.T, name string) *LayoutList {
	t.Helper()
	return LayoutIn(t, filepath.Join("..", "..", "tests", "golden"), name)
}

// LayoutIn returns an empty list. At the end of a test that has not failed, the
// list must equal dir/NAME.layout, in which the lines of NAME.ARCH.layout
// replace those for the same types and members. These files have the layouts in
// C, and only gen changes them.
func LayoutIn(t *testing.T, dir, name string) *LayoutList {
	t.Helper()
	l := new(LayoutList)
	t.Cleanup(func() {
		if !t.Failed() {
			want := readLayout(t, dir, name, runtime.GOARCH)
			require.Equal(t, want, l.b.String(), "Go's layouts on %s differ from those in %s", runtime.GOARCH, dir)
		}
	})
	return l
}

// readLayout returns the lines of NAME.layout. Lines of NAME.ARCH.layout
// replace the lines of NAME.layout for the same types and members.
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

// override replaces lines of common by the lines of own for the same type or
// member.
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

// subject returns the type or member to which a line belongs.
func subject(line string) string {
	words := strings.Fields(line)
	return strings.Join(words[:min(2, len(words))], " ")
}

// Type adds a struct or union to the list.
func (l *LayoutList) Type(name string, size, align uintptr) {
	fmt.Fprintf(&l.b, "%s size %d align %d\n", name, size, align)
}

// Member adds a member to the list. path is the struct or union that has it,
// and offset counts from the start of the outermost one.
func (l *LayoutList) Member(path, name string, offset, size uintptr) {
	fmt.Fprintf(&l.b, "%s.%s offset %d size %d\n", path, name, offset, size)
}

// Bits adds a bit-field to the list. memory is the memory of the struct that
// has it, and base is the struct's offset in the outermost one. set sets all
// bits of the field, and reports whether they read as set afterwards.
func (l *LayoutList) Bits(path, name string, base uintptr, memory []byte, set func() bool) {
	clear(memory)
	ok := set()
	at, width, end := -1, 0, 0
	for i := range 8 * len(memory) {
		bit := i % 8
		if isBigEndian() {
			bit = 7 - bit
		}
		if memory[i/8]>>bit&1 != 0 {
			if width++; at < 0 {
				at = i
			}
			end = i + 1
		}
	}
	if !ok || end-at != width {
		fmt.Fprintf(&l.b, "%s.%s does not read what was written, or in several places: % x\n", path, name, memory)
		return
	}
	clear(memory)
	fmt.Fprintf(&l.b, "%s.%s bit %d width %d\n", path, name, 8*int(base)+at, width)
}

func isBigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

// Access adds a member to the list whose value is read with get and written
// with set. memory is the memory of the struct that has it, and base is the
// struct's offset in the outermost one.
func Access[T any](l *LayoutList, path, name string, base uintptr, memory []byte, get func() T, set func(T)) {
	clear(memory)
	var v T
	for i := range Memory(&v) {
		Memory(&v)[i] = 0xff
	}
	set(v)
	at := bytes.IndexByte(memory, 0xff)
	back := get()
	if at < 0 || bytes.Count(memory, []byte{0xff}) != len(Memory(&v)) || !bytes.Equal(memory[at:min(at+len(Memory(&v)), len(memory))], Memory(&v)) ||
		!bytes.Equal(Memory(&back), Memory(&v)) {
		fmt.Fprintf(&l.b, "%s.%s does not read what was written, or in several places: % x\n", path, name, memory)
		return
	}
	clear(memory)
	l.Member(path, name, base+uintptr(at), unsafe.Sizeof(v))
}
