// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/included"
)

// folders returns the folders all of whose headers the conventions must
// explain.
func (s *scanner) folders() []string {
	if len(s.known.Libraries) > 0 {
		return nil // other libraries also have headers there
	}
	return included.Folders
}

// headers records the headers that were opened, and those in the same folders
// that were not. It rejects headers for which the conventions have no line.
func (s *scanner) headers(opened []string, source string) error {
	read := map[string]bool{}
	for _, file := range opened {
		file = filepath.Clean(file)
		if name, ok := s.below(file); ok && file != filepath.Clean(source) && !isBelow(file, s.system) {
			read[name] = true
		}
	}
	all := maps.Clone(read)
	for _, folder := range s.folders() {
		err := filepath.WalkDir(filepath.Join(s.include, folder), func(file string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				all[filepath.ToSlash(strings.TrimPrefix(file, s.include))] = true
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if line := s.known.Header(name); line != nil && line.Other != "" || s.isPart() && !s.known.Binds(name) {
			continue
		}
		if !s.draft {
			s.explainedHeader(name, read[name])
		}
		s.api.Headers = append(s.api.Headers, &api.Header{Name: name, Included: read[name]})
	}
	return nil
}

// explainedHeader rejects a header for which the conventions have no line, and
// a header that the conventions bind although no file includes it.
func (s *scanner) explainedHeader(name string, included bool) {
	at := problem{file: filepath.Join(s.include, filepath.FromSlash(name)), line: 1, column: 1}
	switch line := s.known.Header(name); {
	case line == nil && included:
		s.rejectAt(at, "the header %s is included and neither bound nor explained; add to the conventions a line such as: header %s libibverbs", name, name)
	case line == nil:
		s.rejectAt(at, "the header %s is neither bound nor explained; add to the conventions a line such as: header %s skip=\"why\"", name, name)
	case line.Package != "" && !included:
		s.rejectAt(at, "the conventions bind the header %s, but neither the umbrella file nor a header that it includes includes it", name)
	}
}
