// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"embed"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// nothing holds the file that is read in the place of an absent header.
//
//go:embed absent.h
var nothing embed.FS

// absentDir is the folder in which cc finds the absent headers.
const absentDir = "<absent>"

// absent holds the headers that were not found, with the places where they are
// included.
type absent map[string]problem

var notFound = regexp.MustCompile(`^` + NotFound + `: <(\S+)>$`)

// without makes cc do without the headers that the problems say are not found,
// if it may, and reports whether one of them is new.
func (t *translation) without(problems []problem) bool {
	if !t.mayLack {
		return false
	}
	before := len(t.files.absent)
	for _, p := range problems {
		if m := notFound.FindStringSubmatch(p.text); m != nil {
			t.files.absent[m[1]] = p
		}
	}
	return len(t.files.absent) > before
}

// open opens an absent header. It returns false if name is not in absentDir.
func (a absent) open(name string) (file fs.File, ok bool, err error) {
	rest, ok := strings.CutPrefix(filepath.ToSlash(name), absentDir+"/")
	if !ok {
		return nil, false, nil
	}
	if _, is := a[rest]; !is {
		return nil, true, fs.ErrNotExist
	}
	file, err = nothing.Open("absent.h")
	return file, true, err
}

// absent records the headers that were not found.
func (s *scanner) absent(all absent, source string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		at := all[name]
		header := ""
		if at.file != source {
			header, _ = s.headerName(at.file)
		}
		s.api.Absent = append(s.api.Absent, &api.Absent{Name: name, Header: header, Line: at.line})
	}
}
