// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/propose"
)

// runPropose prints the lines that the conventions of new headers lack.
func runPropose(facts, headers, libc, version string, w, notes io.Writer) error {
	if headers == "" || version == "" {
		return errors.New("propose needs -headers and -version")
	}
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	if err != nil {
		return err
	}
	a, err := makeSnapshot(facts, headers, libc, version, known, true, "", notes)
	if err != nil {
		return err
	}
	for _, line := range propose.Lines(a, known) {
		fmt.Fprintln(w, line.Text)
	}
	return nil
}
