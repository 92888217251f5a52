// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

func knownIn(t *testing.T, facts string) *conventions.Table {
	t.Helper()
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	require.NoError(t, err)
	return known
}

// TestSnapshot proves that each file in headers/api is what the headers and the
// libraries of its version say, to the byte. TestScanAll does so for the
// newest.
func TestSnapshot(t *testing.T) {
	facts := filepath.Join(headertest.Top(t), "headers")
	folders, err := emit.Folders(facts)
	require.NoError(t, err)
	require.Equal(t, []string{
		facts, filepath.Join(facts, "efa"), filepath.Join(facts, "ibmad"), filepath.Join(facts, "ibumad"), filepath.Join(facts, "mlx5"),
	}, folders)
	for _, folder := range folders {
		versions, err := api.Versions(filepath.Join(folder, "api"))
		require.NoError(t, err)
		require.Equal(t, headertest.Versions(t), versions)
		for _, version := range versions[:len(versions)-1] {
			t.Run(filepath.Base(folder)+" "+version, func(t *testing.T) {
				snapshot, err := makeSnapshot(folder, headertest.Dir(t, version), headertest.Libc(t), version, knownIn(t, folder), false, "", io.Discard)
				require.NoError(t, err)
				got, err := snapshot.Marshal()
				require.NoError(t, err)
				path := filepath.Join(folder, "api", version+".json")
				require.True(t, read(t, path) == string(got), "%s is not what the headers say; "+
					"go run ./gen scan -headers .cache/headers/%s -version %[2]s rewrites it", path, version)
			})
		}
	}
}

// TestScanAll writes the snapshots of all folders of facts, and a draft of one.
func TestScanAll(t *testing.T) {
	newest := headertest.Newest(t)
	snapshot := newest + ".json"
	facts := filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(headertest.Top(t), "headers"))))
	for _, folder := range []string{"api", "efa/api", "mlx5/api"} {
		require.NoError(t, os.Remove(filepath.Join(facts, folder, snapshot)))
	}
	headers, libc := headertest.Dir(t, newest), headertest.Libc(t)
	require.NoError(t, run([]string{"scan", "-facts", facts, "-headers", headers, "-libc", libc, "-version", newest}))
	for _, folder := range []string{"api", "efa/api", "mlx5/api"} {
		path := filepath.Join(folder, snapshot)
		require.Equal(t, read(t, filepath.Join(headertest.Top(t), "headers", path)), read(t, filepath.Join(facts, path)))
	}
	draft := filepath.Join(t.TempDir(), "draft.json")
	require.NoError(t, run([]string{"scan", "-facts", filepath.Join(facts, "efa"), "-headers", headers, "-version", newest, "-draft", draft}))
	a, err := api.Load(draft)
	require.NoError(t, err)
	require.Equal(t, "infiniband/efadv.h:41", a.Places["func efadv_query_device"])
	a.Places = nil
	text, err := a.Marshal()
	require.NoError(t, err)
	require.Equal(t, read(t, filepath.Join(facts, "efa", "api", snapshot)), string(text))

	// A part needs the snapshot that its headers build on, or a draft of it.
	base := filepath.Join(t.TempDir(), "base.json")
	require.NoError(t, os.Rename(filepath.Join(facts, "api", snapshot), base))
	require.NoError(t, run([]string{"scan", "-facts", filepath.Join(facts, "efa"), "-headers", headers, "-version", newest, "-draft", draft, "-base", base}))
	err = run([]string{"scan", "-facts", filepath.Join(facts, "efa"), "-headers", headers, "-version", newest, "-draft", draft})
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestScanWithoutLibraries scans a plain folder of headers.
func TestScanWithoutLibraries(t *testing.T) {
	newest := headertest.Newest(t)
	facts := filepath.Join(headertest.Top(t), "headers")
	with, plain := headertest.Dir(t, newest), t.TempDir()
	require.NoError(t, os.CopyFS(plain, os.DirFS(filepath.Join(with, "usr", "include"))))
	var notes bytes.Buffer
	got, err := makeSnapshot(facts, plain, "", newest, knownIn(t, facts), false, "", &notes)
	require.NoError(t, err)
	require.Equal(t, "gen scan: the snapshot says nothing of version nodes: file does not exist: "+
		"libibverbs.so.1 and librdmacm.so.1 in "+filepath.Join(plain, "usr", "lib")+"\n", notes.String())

	want, err := api.Load(filepath.Join(facts, "api", newest+".json"))
	require.NoError(t, err)
	for _, f := range want.Functions {
		f.Node, f.Private = "", false
	}
	want.Undeclared = nil
	require.Equal(t, want, got)
}

// TestScanWithoutLibc scans without musl's headers, which those of libibumad
// need, and without any shims.
func TestScanWithoutLibc(t *testing.T) {
	newest := headertest.Newest(t)
	headers, facts := headertest.Dir(t, newest), filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(headertest.Top(t), "headers"))))
	err := run([]string{"scan", "-facts", facts, "-headers", headers, "-version", newest})
	require.ErrorContains(t, err, "infiniband/mad.h:40:10: include file not found: <stdlib.h>\nlibc's headers that "+filepath.Join(facts, "shim")+
		" lacks are read from .cache/libc, which is not there; scripts/fetch-libc brings .cache/libc")
	require.NoError(t, os.RemoveAll(filepath.Join(facts, "shim")))
	err = run([]string{"scan", "-facts", facts, "-headers", headers, "-version", newest})
	require.EqualError(t, err, "neither "+filepath.Join(facts, "shim")+" nor .cache/libc is there: gen reads the headers in one of them in place of libc's; "+
		"scripts/fetch-libc brings .cache/libc")
}

// TestScanRefusesPrivate leaves out of the conventions that a function is not
// bound which the library keeps to itself.
func TestScanRefusesPrivate(t *testing.T) {
	newest := headertest.Newest(t)
	release, _, _ := strings.Cut(newest, ".")
	headers := headertest.Dir(t, newest)
	facts := filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(headertest.Top(t), "headers"))))
	known := read(t, filepath.Join(facts, "conventions.txt"))
	changed := strings.Replace(known, `skip="exported only with a private symbol version"`, "", 1)
	require.NotEqual(t, known, changed)
	require.NoError(t, os.WriteFile(filepath.Join(facts, "conventions.txt"), []byte(changed), 0o600))
	_, err := makeSnapshot(facts, headers, "", newest, knownIn(t, facts), false, "", io.Discard)
	require.EqualError(t, err, "infiniband/verbs.h declares ibv_wr_opcode_str, which the library exports under the private node "+
		"IBVERBS_PRIVATE_"+release+` only; if that is right, add skip="reason" to its line in the conventions`)
}

// TestScanRefusesLibraries has a library that cannot be read: the headers alone
// are not taken for the whole then.
func TestScanRefusesLibraries(t *testing.T) {
	newest := headertest.Newest(t)
	facts := filepath.Join(headertest.Top(t), "headers")
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(headertest.Dir(t, newest))))
	library := filepath.Join(dir, "usr", "lib", "librdmacm.so.1")
	require.NoError(t, os.WriteFile(library, []byte("not a library"), 0o600))
	_, err := makeSnapshot(facts, dir, "", newest, knownIn(t, facts), false, "", io.Discard)
	require.ErrorContains(t, err, library+" is not an ELF library, or is incomplete: ")
}
