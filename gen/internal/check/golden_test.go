// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/layout"
)

func TestGolden(t *testing.T) {
	dir := t.TempDir()
	golden := Golden{Dir: dir, API: small(t), Home: func(string) string { return "lib" }}
	common, arm64 := filepath.Join(dir, "lib.layout"), filepath.Join(dir, "lib.arm64.layout")

	different, err := golden.Check(layout.AMD64)
	require.NoError(t, err)
	require.Equal(t, []string{common + " is not what the snapshot says of amd64; check -update rewrites it"}, different)

	golden.Update = true
	for _, arch := range layout.Arches {
		different, err := golden.Check(arch)
		require.NoError(t, err)
		require.Empty(t, different, arch.Name)
	}
	requireFile(t, common, `struct inner size 24 align 4
struct inner.text offset 0 size 16
struct inner.color offset 16 size 4
struct inner.number offset 20 size 4
struct outer size 96 align 8
struct outer.inner offset 0 size 24
struct outer.name offset 24 size 8
struct outer.wide offset 32 size 8
struct outer.parts offset 32 size 4
struct outer.parts.first offset 32 size 1
struct outer.parts.second offset 34 size 2
struct outer.call offset 40 size 8
struct outer.level offset 48 size 4
struct outer.mutex offset 56 size 40
`)
	requireFile(t, arm64, "struct outer size 104 align 8\nstruct outer.mutex offset 56 size 48\n")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2, "only where an architecture is different")

	golden.Update = false
	different, err = golden.Check(archOf(t, "arm64"))
	require.NoError(t, err)
	require.Empty(t, different)

	// Without the mutex, nothing is different any more.
	outer := golden.API.Structs[1]
	outer.Members, outer.Size = outer.Members[:5], 56
	different, err = golden.Check(archOf(t, "arm64"))
	require.NoError(t, err)
	require.Len(t, different, 1)
	golden.Update = true
	different, err = golden.Check(archOf(t, "arm64"))
	require.NoError(t, err)
	require.Empty(t, different)
	require.NoFileExists(t, arm64)
}

func TestGoldenErrors(t *testing.T) {
	golden := Golden{Dir: filepath.Join(t.TempDir(), "none"), API: small(t), Home: func(string) string { return "lib" }, Update: true}
	_, err := golden.Check(layout.AMD64)
	require.ErrorIs(t, err, os.ErrNotExist)

	golden.API.Structs[0].Members[0].Type.Elem.Name = "quad"
	_, err = golden.Check(layout.AMD64)
	require.EqualError(t, err, "struct inner: the size of quad is not known")
	_, err = Facts(golden.API, archOf(t, "arm64"))
	require.EqualError(t, err, `struct inner: member "text": the size of quad is not known`)
}

func requireFile(t *testing.T, path, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(text))
}
