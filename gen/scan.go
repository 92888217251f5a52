// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/nodes"
	"github.com/verbena-go/verbena/gen/internal/scan"
)

// runScan writes the snapshot of one version of the headers. A draft goes to a
// file that is named, and asks for no lines in the conventions.
func runScan(facts, headers, version, draft string) error {
	if headers == "" || version == "" {
		return errors.New("scan needs -headers and -version")
	}
	if _, err := api.ParseVersion(version); err != nil {
		return err
	}
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	path := draft
	if draft == "" {
		path = filepath.Join(facts, "api", version+".json")
	}
	snapshot, err := makeSnapshot(facts, headers, version, known, draft != "", os.Stderr)
	if err != nil {
		return err
	}
	text, err := snapshot.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// makeSnapshot scans the headers and, if they are there, the libraries; notes
// is where it says that they are not.
func makeSnapshot(facts, headers, version string, known *conventions.Table, draft bool, notes io.Writer) (*api.API, error) {
	options := scan.Options{
		Headers: headers, Shim: filepath.Join(facts, "shim"), Source: filepath.Join(facts, "umbrella.h"),
		Version: version, Known: known, Draft: draft,
	}
	if !draft { // a name can be settled in the conventions
		options.Check = func(a *api.API) []api.Finding { return emit.Check(a, known) }
	}
	snapshot, err := scan.Scan(options)
	if err != nil {
		return nil, err
	}
	exported, err := nodes.Read(nodes.Dir(headers))
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(notes, "gen scan: the snapshot says nothing of version nodes: %v\n", err)
		return snapshot, nil
	}
	if err != nil {
		return nil, err
	}
	return snapshot, nodes.Record(snapshot, exported, known, draft)
}
