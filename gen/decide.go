// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/decide"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/since"
)

// errUndecided is the error of the command decide if files of facts lack lines.
// The output above it lists the lines.
var errUndecided = errors.New("the files of facts lack lines, listed above")

// runDecide prints the decisions that a person must make about the snapshot
// "to", which follows the snapshot "from".
// The headers may build on those of a draft at the path base.
func runDecide(facts, golden, skeleton, base, from, to string, w io.Writer) error {
	if from == "" || to == "" {
		return errors.New("decide needs two operands, each a version or a file with a snapshot")
	}
	a, err := api.Load(snapshotPath(facts, from))
	if err != nil {
		return err
	}
	b, err := api.Load(snapshotPath(facts, to))
	if err != nil {
		return err
	}
	in, err := emit.Load(facts)
	if err != nil {
		return err
	}
	if base != "" && in.Base != nil {
		if in.Base.API, err = api.Load(base); err != nil {
			return err
		}
	}
	table := in.Known
	if in.Base != nil {
		table = table.Over(in.Base.Known)
	}
	known := decide.Facts{Folder: facts, Known: table, Since: in.Since, Strings: in.Strings, Manual: in.Manual, Written: emit.Written}
	if known.Older, err = older(in.Snapshots, b.Version); err != nil {
		return err
	}
	if known.Texts, err = decide.LoadTexts(filepath.Join(golden, "strings.txt")); err != nil {
		return err
	}
	if in.Base != nil {
		known.Others = []*api.API{in.Base.API}
	}
	if known.Elsewhere, err = elsewhere(facts); err != nil {
		return err
	}
	known.Refused = func(lines, releases []string) (decide.Refusal, error) {
		return refusedOf(facts, skeleton, in, known.Older, b, lines, releases)
	}
	list, err := decide.For(a, b, known)
	if err != nil {
		return err
	}
	list.Print(w)
	if list.Open() {
		return fmt.Errorf("%s: %w", b.Version, errUndecided)
	}
	return nil
}

// elsewhere maps each header that a folder of facts inside the folder facts
// binds to that folder.
func elsewhere(facts string) (map[string]string, error) {
	folders, err := emit.Folders(facts)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, folder := range folders[1:] {
		known, err := conventions.Load(filepath.Join(folder, "conventions.txt"))
		if err != nil {
			return nil, err
		}
		for _, h := range known.Headers {
			if known.Binds(h.Name) {
				all[h.Name] = folder
			}
		}
	}
	return all, nil
}

// refusedOf returns the reasons why emit would fail for the snapshot b, which
// follows the snapshots before, if the given lines were added to the
// conventions and to since.txt.
func refusedOf(facts, skeleton string, in emit.Input, before []*api.API, b *api.API, lines, releases []string) (r decide.Refusal, err error) {
	added, err := conventions.Parse("proposed", []byte(strings.Join(lines, "\n")))
	if err != nil {
		return r, err
	}
	own := in.Known.Libraries
	in.Known = added.Over(in.Known)
	in.Known.Libraries = own
	path := filepath.Join(facts, "since.txt")
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if in.Since, err = since.Parse(path, append(text, strings.Join(releases, "\n")...)); err != nil {
		return r, err
	}
	in.API, in.Snapshots = b, append(slices.Clone(before), b)
	r.Lines, r.Kept = emit.Refused(in), emit.Kept(in)
	if in.Base != nil || in.Alone || len(before) == 0 { // the skeleton belongs to libibverbs and librdmacm
		return r, nil
	}
	var more []string
	r.Functions, more, err = emit.Unwritten(in, before[len(before)-1], skeleton)
	for _, line := range more {
		if !slices.Contains(r.Lines, line) {
			r.Lines = append(r.Lines, line)
		}
	}
	return r, err
}

// older returns the snapshots before a version.
func older(all []*api.API, version string) ([]*api.API, error) {
	limit, err := api.ParseVersion(version)
	if err != nil {
		return nil, err
	}
	for i, a := range all {
		v, err := api.ParseVersion(a.Version)
		if err != nil {
			return nil, err
		}
		if v.Compare(limit) >= 0 {
			return all[:i], nil
		}
	}
	return all, nil
}
