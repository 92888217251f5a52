// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/nodes"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// runScan writes the snapshots of one version of the headers: of the folder
// facts, and of each folder in it that describes other libraries. If draft is
// not empty, it writes a draft to this file instead: the snapshot of facts
// alone, for which the conventions may lack lines. The headers may build on
// those of a draft at the path base.
func runScan(facts, headers, libc, version, draft, base string) error {
	if headers == "" || version == "" {
		return errors.New("scan needs the flags -headers and -version")
	}
	if _, err := api.ParseVersion(version); err != nil {
		return err
	}
	if draft != "" {
		return writeSnapshot(facts, headers, libc, version, draft, true, base)
	}
	folders, err := emit.Folders(facts)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if err := writeSnapshot(folder, headers, libc, version, filepath.Join(folder, "api", version+".json"), false, ""); err != nil {
			return err
		}
	}
	return nil
}

func writeSnapshot(facts, headers, libc, version, path string, draft bool, base string) error {
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	snapshot, err := makeSnapshot(facts, headers, libc, version, known, draft, base, os.Stderr)
	if err != nil {
		return err
	}
	text, err := snapshot.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// makeSnapshot scans the headers, and the libraries if they are present. If
// they are not, it writes a message to notes.
func makeSnapshot(facts, headers, libc, version string, known *conventions.Table, draft bool, onDraft string, notes io.Writer) (*api.API, error) {
	options := scan.Options{
		Headers: headers, Libc: libc, Source: filepath.Join(facts, "umbrella.h"), Version: version, Known: known, Draft: draft, Absent: draft,
	}
	shim := filepath.Join(facts, "shim")
	var base *emit.Input
	if emit.IsPart(facts) {
		var err error
		if base, err = loadBase(filepath.Dir(filepath.Clean(facts)), cmp.Or(onDraft, filepath.Join(filepath.Dir(filepath.Clean(facts)), "api", version+".json"))); err != nil {
			return nil, err
		}
		shim, options.Base = filepath.Join(facts, "..", "shim"), base.API
		options.Known = known.Over(base.Known)
	}
	if !draft { // lines that a draft still lacks may change the names
		options.Check = func(a *api.API) []api.Finding { return emit.Check(a, known, base) }
	}
	if isFolder(shim) {
		options.Shim = shim
	} else if !isFolder(libc) {
		return nil, fmt.Errorf("neither %s nor %s is there: gen reads the headers in one of them in place of libc's; %s", shim, libc, libcBrought)
	}
	snapshot, err := scan.Scan(options)
	if err != nil && strings.Contains(err.Error(), scan.NotFound) && !isFolder(libc) {
		return nil, fmt.Errorf("%w\nlibc's headers that %s lacks are read from %s, which is not there; %s", err, shim, cmp.Or(libc, "-libc"), libcBrought)
	}
	if err != nil {
		return nil, err
	}
	for _, h := range snapshot.Absent {
		fmt.Fprintf(notes, "gen scan: %s:%d includes <%s>, which is not found and counts as empty\n", cmp.Or(h.Header, options.Source), h.Line, h.Name)
	}
	var sonames []string
	for _, l := range known.Own() {
		sonames = append(sonames, l.Soname)
	}
	exported, err := nodes.Read(nodes.Dir(headers), sonames)
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(notes, "gen scan: the snapshot says nothing of version nodes: %v\n", err)
		return snapshot, nil
	}
	if err != nil {
		return nil, err
	}
	return snapshot, nodes.Record(snapshot, exported, known, draft)
}

// libcBrought says where the folder with musl's and the kernel's headers comes
// from.
const libcBrought = "scripts/fetch-libc brings .cache/libc"

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// loadBase loads the facts about the headers that the headers of other
// libraries include, with the snapshot at a path. facts is the folder with
// them.
func loadBase(facts, path string) (*emit.Input, error) {
	base := new(emit.Input)
	var err error
	if base.Known, err = conventions.Load(filepath.Join(facts, "conventions.txt")); err != nil {
		return nil, err
	}
	base.API, err = api.Load(path)
	return base, err
}
