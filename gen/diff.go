// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/diff"
)

// errBreak is the error of the command diff if programs that were compiled for
// the old version can fail with the new one. The output above it lists the
// changes.
var errBreak = errors.New("ABI break")

// runDiff prints what changed from the snapshot "from" to the snapshot "to".
// Each is a version or the path of a file.
func runDiff(facts, from, to string, asJSON bool, w io.Writer) error {
	if from == "" || to == "" {
		return errors.New("diff needs two operands, each a version or a file with a snapshot")
	}
	a, err := api.Load(snapshotPath(facts, from))
	if err != nil {
		return err
	}
	b, err := api.Load(snapshotPath(facts, to))
	if err != nil {
		return err
	}
	report := diff.Compare(a, b)
	text := []byte(report.Markdown())
	if asJSON {
		if text, err = report.JSON(); err != nil {
			return err
		}
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if report.Breaks > 0 {
		return fmt.Errorf("%s -> %s: %w", a.Version, b.Version, errBreak)
	}
	return nil
}

func snapshotPath(facts, name string) string {
	if strings.ContainsRune(name, filepath.Separator) || strings.HasSuffix(name, ".json") {
		return name
	}
	return filepath.Join(facts, "api", name+".json")
}
