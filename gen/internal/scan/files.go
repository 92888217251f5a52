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

// maxFile is the maximum size of a header in bytes. rdma-core's largest header
// has an eighth of it.
const maxFile = 1 << 20

// files opens the files that the headers include, for cc. It rejects files with
// errors that cc would not report.
type files struct {
	system   []string           // folders of libc's and the kernel's headers
	folders  []string           // all folders from which cc may open files
	absent   absent             // headers that were not found and count as empty
	packs    *packs             // settings of #pragma pack in the text that cc has read
	checked  map[string]bool    // files that were checked, and whether they passed
	texts    map[string]string  // texts of the checked files
	last     string             // header, not of the system, that was checked last
	lastEnd  problem            // problem with the position of the end of last
	macros   map[string]problem // where the object-like macros of all files are defined
	deep     *problem           // first place at which brackets may be nested too deep
	problems []problem
}

func newFiles(system []string, folders ...string) *files {
	return &files{
		system: system, folders: append(folders, system...), absent: absent{}, checked: map[string]bool{}, texts: map[string]string{},
		macros: map[string]problem{},
	}
}

// Open implements fs.FS for cc, whose names are paths of the host. It opens
// only files in the folders, so that none comes from this machine's system.
func (f *files) Open(name string) (fs.File, error) {
	if file, ok, err := openCompiler(name); ok {
		return file, err
	}
	if file, ok, err := f.absent.open(name); ok {
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

// read checks a file unless it was checked before. Afterwards, cc can read the
// file from its start.
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

// passes checks the text of a file, and reports whether it has no problem.
func (f *files) passes(name, content string) bool {
	before := len(f.problems)
	if len(content) > maxFile {
		f.reject(problem{name, 1, 1, fmt.Sprintf("the header has more than %d bytes", maxFile)})
	} else if end := f.check(name, content); !isBelow(name, f.system) {
		f.last, f.lastEnd = name, end
	}
	f.texts[name] = content
	f.checked[name] = len(f.problems) == before
	return f.checked[name]
}

func (f *files) reject(p problem) { f.problems = append(f.problems, p) }

// somewhere returns the problem for an error without a position. It names the
// header that was checked last, because the error is in that header or in one
// that includes it.
func (f *files) somewhere(format string, args ...any) problem {
	return problem{f.last, 1, 1, fmt.Sprintf(format, args...)}
}
