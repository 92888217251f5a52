// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// maxFile bounds the size of one header, in bytes; the largest has an eighth.
const maxFile = 1 << 20

// files opens what the headers include, for cc, and refuses what cc would pass
// over in silence.
type files struct {
	system   []string           // folders of libc's and the kernel's headers
	folders  []string           // in which headers may be
	packs    *packs             // the settings of #pragma pack so far
	checked  map[string]bool    // whether they passed
	texts    map[string]string  // of those
	last     string             // the header that was opened last
	lastEnd  problem            // where it ends
	macros   map[string]problem // where each that is object-like is defined, in any file
	deep     *problem           // where brackets are nested too deep in the text
	problems []problem
}

func newFiles(system []string, folders ...string) *files {
	return &files{
		system: system, folders: append(folders, system...), checked: map[string]bool{}, texts: map[string]string{}, macros: map[string]problem{},
	}
}

// Open implements fs.FS for names as cc has them: paths of the host. It has
// nothing but what lies in the folders, so that no header is the system's.
func (f *files) Open(name string) (fs.File, error) {
	if file, ok, err := openCompiler(name); ok {
		return file, err
	}
	if !slices.ContainsFunc(f.folders, func(folder string) bool {
		inside, err := filepath.Rel(folder, name)
		return err == nil && filepath.IsLocal(inside)
	}) {
		return nil, fs.ErrNotExist
	}
	if p, ok := f.packs.effective(); ok {
		p.text = "#pragma pack is in effect here where " + name + " is included"
		f.reject(p)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := f.read(name, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// read checks a file, once, and leaves it to be read again.
func (f *files) read(name string, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", name)
	}
	passed, known := f.checked[name]
	if !known {
		content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
		if err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		passed = f.passes(name, string(content))
	}
	if !passed {
		return fmt.Errorf("header %s is invalid", name)
	}
	return nil
}

// passes checks the text of a file.
func (f *files) passes(name, content string) bool {
	before := len(f.problems)
	if len(content) > maxFile {
		f.reject(problem{name, 1, 1, fmt.Sprintf("a header of more than %d bytes", maxFile)})
	} else if end := f.check(name, content); !isBelow(name, f.system) {
		f.last, f.lastEnd = name, end
	}
	f.texts[name] = content
	f.checked[name] = len(f.problems) == before
	return f.checked[name]
}

func (f *files) reject(p problem) { f.problems = append(f.problems, p) }

// somewhere is the problem for an error of which cc does not tell the
// position: in the header that was opened last or in what includes it.
func (f *files) somewhere(format string, args ...any) problem {
	return problem{f.last, 1, 1, fmt.Sprintf(format, args...)}
}
